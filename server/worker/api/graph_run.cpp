#include "graph_run.h"

#include <algorithm>
#include <cstring>

namespace fargpu::server {
namespace {

bool conditional(const GraphPlan::Write& write) { return write.conditional; }

}  // namespace

void GraphRun::launch(StreamState& stream, AttendedGraph& graph, std::uint64_t exec) {
  Ordering& ordering = session_.ordering();
  Ordering::GraphLaunch order;
  order.behind = graph.last_launch;
  order.exec = plan_->has_parts && graph.copy() ? 0 : exec;  // changes leave such launches alone (before_change)
  const auto add_handles = [&](const std::vector<CUevent>& events, std::vector<std::uint64_t>& handles) {
    for (const CUevent event : events)
      if (const std::uint64_t handle = session_.objects().event_handle(event)) handles.push_back(handle);
  };
  add_handles(plan_->awaited, order.awaited);
  add_handles(plan_->recorded, order.recorded);
  if (plan_->has_parts) graph.last_launch = running_ = ordering.hold();
  ordering.enqueue(stream, std::move(order), [self = shared_from_this()] { self->begin(); });
}

void GraphRun::begin() {
  StreamState* const target = stream();
  if (!target) {
    end(CUDA_ERROR_INVALID_HANDLE);
    return;
  }
  held_ = session_.ordering().hold(*target);
  next();
}

StreamState* GraphRun::stream() {
  StreamState* const target = session_.contexts().stream(stream_, call_.context);
  return target && session_.contexts().make_current(*target->context) ? target : nullptr;
}

void GraphRun::next() {
  if (step_ == plan_->steps.size()) {
    end(CUDA_SUCCESS);
    return;
  }
  const GraphPlan::Step& step = plan_->steps[step_++];
  if (!step.piece) call(step);
  else if (step.reads.empty() && std::none_of(step.writes.begin(), step.writes.end(), conditional)) submit(step);
  else fetch(step);
}

// What the client's memory holds when the stream has got here, and everything before has been delivered. Memory that a
// conditional node may copy to is fetched too: if the node does not run, the memory is to stay as it is.
void GraphRun::fetch(const GraphPlan::Step& step) {
  StreamState* const target = stream();
  if (!target) return end(CUDA_ERROR_INVALID_HANDLE);
  session_.completions().after(*target, Completions::Kind::signal, [self = shared_from_this(), &step](CUresult result) {
    if (result != CUDA_SUCCESS) return self->end(result);
    self->session_.deliveries().send_changes();
    self->missing_ = step.reads.size() +
                     static_cast<std::size_t>(std::count_if(step.writes.begin(), step.writes.end(), conditional));
    for (const std::uint64_t part : step.reads) self->fetch(step, part);
    for (const GraphPlan::Write& write : step.writes)
      if (write.conditional) self->fetch(step, write.part);
  });
}

void GraphRun::fetch(const GraphPlan::Step& step, std::uint64_t part) {
  const auto staging = [self = shared_from_this(), part] {
    return self->session_.graph_parts().staging(part);  // it may go meanwhile
  };
  if (staging().empty()) return fetched(step, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  session_.client().fetch_part(
      part, staging().size(),
      [staging](std::uint64_t offset, std::span<const std::byte> bytes) {
        if (const auto place = staging(); place.size() >= offset + bytes.size() && !bytes.empty())
          std::memcpy(place.data() + offset, bytes.data(), bytes.size());
      },
      [self = shared_from_this(), &step, staging](std::uint64_t came) {
        self->fetched(step, came == staging().size() && came > 0 ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
      });
}

// One of the parts that the step reads.
void GraphRun::fetched(const GraphPlan::Step& step, CUresult result) {
  if (fetched_ == CUDA_SUCCESS) fetched_ = result;
  if (--missing_ > 0) return;
  if (fetched_ == CUDA_SUCCESS) submit(step);
  else end(fetched_);
}

void GraphRun::submit(const GraphPlan::Step& step) {
  if (!session_.ordering().admit_piece([self = shared_from_this(), &step] { self->submit(step); })) return;
  StreamState* const target = stream();
  if (!target) return end(CUDA_ERROR_INVALID_HANDLE);
  // Staging memory is of no use without the context that it was made in, and the driver's graph still copies there.
  const GraphParts& parts = session_.graph_parts();
  const auto gone = [&](const GraphPlan::Write& write) { return parts.staging(write.part).empty(); };
  if (std::any_of(step.writes.begin(), step.writes.end(), gone)) return end(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  for (const GraphPlan::Write& write : step.writes) {
    const auto bytes = parts.staging(write.part);
    if (write.conditional) before_[write.part].assign(bytes.begin(), bytes.end());
  }
  session_.ordering().catch_up(*target);
  const CUresult result = session_.driver().cuGraphLaunch(step.piece, target->cuda);
  if (result != CUDA_SUCCESS) return end(result);
  session_.ordering().submitted(*target);
  if (!step.writes.empty()) {
    session_.completions().after(*target, Completions::Kind::delivery,
                                 [self = shared_from_this(), &step](CUresult done) {
                                   if (done != CUDA_SUCCESS) return;
                                   for (const GraphPlan::Write& write : step.writes) self->deliver(write);
                                 });
  }
  next();
}

// A conditional copy that left everything as it was has not run, or makes no difference.
void GraphRun::deliver(const GraphPlan::Write& write) {
  const auto bytes = session_.graph_parts().staging(write.part);
  if (write.conditional && std::ranges::equal(bytes, before_[write.part])) return;
  session_.client().deliver_part(write.part, bytes);
}

void GraphRun::call(const GraphPlan::Step& step) {
  StreamState* const target = stream();
  if (!target) return end(CUDA_ERROR_INVALID_HANDLE);
  session_.completions().after(*target, Completions::Kind::signal, [self = shared_from_this(), &step](CUresult result) {
    if (result != CUDA_SUCCESS) return self->end(result);  // a failed stream runs no functions
    self->session_.deliveries().send_changes();
    self->session_.client().call_part(step.function, [self] { self->next(); });
  });
}

void GraphRun::end(CUresult result) {
  session_.finish(call_, result);
  StreamState* const target = stream();
  if (running_ != 0) {
    const auto over = [&session = session_, running = running_](CUresult) { session.ordering().release(running); };
    if (target) session_.completions().after(*target, Completions::Kind::signal, over);
    else session_.completions().soon(Completions::Kind::signal, CUDA_SUCCESS, over);
  }
  announce(session_, target, done_);
  if (held_ != 0) session_.ordering().release(held_);
}

void GraphRun::announce(Session& session, StreamState* stream, std::uint64_t done) {
  if (done == 0) return;
  const auto tell = [&session, done](CUresult) {
    session.deliveries().send_changes();
    session.client().call(done, CUDA_SUCCESS, [] {});
  };
  if (stream) session.completions().after(*stream, Completions::Kind::signal, tell);
  else session.completions().soon(Completions::Kind::signal, CUDA_SUCCESS, tell);
}

}  // namespace fargpu::server
