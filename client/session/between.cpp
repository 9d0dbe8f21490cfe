#include "between.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "calls_stream.capnp.h"
#include "client/base/log.h"
#include "client/base/pages.h"
#include "client/call/refusal.h"
#include "client/call/remote_call.h"
#include "client/copy/copier.h"
#include "client/copy/copy_job.h"
#include "operations.capnp.h"
#include "protocol/channel.h"
#include "protocol/words.h"
#include "relay.h"
#include "session.h"

namespace fargpu::client {
namespace {

// What concerns one session, whose loss is not that of the session which the calling thread's calls go to.
template <class Work>
CUresult within(Session& session, Work&& work) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
      work();
      return CUDA_SUCCESS;
    } else {
      return work();
    }
  } catch (const ChannelClosed&) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;  // its own threads tell of it
  } catch (const std::exception& error) {
    session.lose(words(error.what()));
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
}

}  // namespace

// --- parked streams -------------------------------------------------------------------------------------------------

CUresult Between::park(Thread& thread, Stream& stream, std::set<const Session*> on, std::function<void()> reached,
                       std::uint64_t& id) {
  Session& session = *stream.context->session;
  {
    const std::lock_guard lock(mutex_);
    id = next_++;
  }
  const std::uint64_t number = session.callbacks.open(std::move(reached));
  {
    const std::lock_guard lock(mutex_);
    parked_[id] = {.session = &session, .number = number, .thread = thread.id(), .on = std::move(on)};
  }
  RemoteCall<wire::HostFunction> call(thread, stream.context);
  auto in = call.in();
  in.setStream(stream.wire());
  in.setCallback(number);
  in.setAlways(true);
  const CUresult result = call.post(stream);
  if (result != CUDA_SUCCESS) {
    session.callbacks.remove(number);
    const std::lock_guard lock(mutex_);
    parked_.erase(id);
  }
  return result;
}

void Between::note(std::uint64_t id, bool Parked::*what, CUresult result) {
  std::unique_lock lock(mutex_);
  const auto found = parked_.find(id);
  if (found == parked_.end()) return;
  if (result != CUDA_SUCCESS)
    Thread::deliver_error(found->second.thread, result, "a copy or wait between hosts",
                          /*concerns_others=*/false);
  found->second.*what = true;
  if (!found->second.reached || !found->second.passed) return;
  const Parked parked = std::move(found->second);
  parked_.erase(found);
  lock.unlock();
  changed_.notify_all();
  end(parked);
}

// On a thread of the session's own: telling its worker may have to wait, and the news came from another one.
void Between::end(const Parked& parked) noexcept try {
  parked.session->answers.run([session = parked.session, number = parked.number] {
    try {
      session->callbacks.close(number);
    } catch (const std::exception& error) {
      session->lose(words(error.what()));
    }
  });
} catch (const std::exception& error) {  // it would wait for ever
  parked.session->lose(words(error.what()));
}

// A stream that has not got to its place yet goes on when it does: the worker takes no word of a function that it has
// not asked for.
void Between::lost(const Session& session) noexcept {
  std::map<std::uint64_t, Parked> over;
  {
    const std::lock_guard lock(mutex_);
    for (auto next = parked_.begin(); next != parked_.end();) {
      const auto one = next++;
      Parked& parked = one->second;
      const bool own = parked.session == &session;
      if (!own && parked.on.erase(&session) > 0) {
        Thread::deliver_error(parked.thread, CUDA_ERROR_DEVICE_UNAVAILABLE, "a copy or wait between hosts",
                              /*concerns_others=*/false);
        parked.passed = true;
        if (parked.reached) over.insert(parked_.extract(one));  // which takes no memory
      } else if (own) {
        parked_.erase(one);
      }
    }
    std::erase_if(direct_,
                  [&](const auto& one) { return one.second.source == &session || one.second.target == &session; });
  }
  links_.lost(session);
  changed_.notify_all();
  for (const auto& [id, parked] : over) end(parked);
}

void Between::settle(const Session* session) {
  std::unique_lock lock(mutex_);
  const std::uint64_t before = next_;
  changed_.wait(lock, [&] {
    return std::none_of(parked_.begin(), parked_.end(),
                        [&](const auto& one) {
                          return one.first < before &&
                                 (!session || one.second.session == session || one.second.on.contains(session));
                        }) &&
           std::none_of(direct_.begin(), direct_.end(), [&](const auto& one) {
             return one.first < before && (!session || one.second.source == session || one.second.target == session);
           });
  });
}

// --- events ---------------------------------------------------------------------------------------------------------

CUresult Between::wait(Thread& thread, Stream& stream, const Event& event) {
  Session& here = *stream.context->session;
  Session& there = *event.context->session;
  if (stream.capture.load() || event.capture.load()) {
    here.captures.invalidate(stream);
    return refuse_use("a graph that waits for work of another host");
  }
  const bool known = !event.shared() && !event.recorded_by_work.load();
  if (known && (event.recorded.load() == 0 || event.complete())) return stream.context->failure;
  Stream* const witness = hidden(thread, *event.context, Use::events);
  if (!witness) return CUDA_ERROR_OUT_OF_MEMORY;
  // A word from worker to worker would overtake what the other one, or this program, has to write to memory of the
  // program.
  if (!there.host_memory.expects_any() && !there.waits.held_for_program())
    if (const auto link = links_.between(there, here)) return wait_directly(thread, stream, event, *witness, *link);
  // The id is written before the worker can have heard of it.
  const auto id = std::make_shared<std::uint64_t>(0);
  if (const CUresult bad = park(
          thread, stream, {&there}, [this, id] { note(*id, &Parked::reached); }, *id);
      bad != CUDA_SUCCESS)
    return bad;
  const CUresult asked = within(there, [&] {
    RemoteCall<wire::CuStreamWaitEvent> wait(thread, event.context);
    wait.in().setHStream(witness->wire());
    wait.in().setHEvent(event.handle.value());
    wait.tell();
    there.fences.after(thread, *witness, [this, id] { note(*id, &Parked::passed); });
    there.calls.commands.flush();
  });
  if (asked != CUDA_SUCCESS) note(*id, &Parked::passed, asked);
  here.calls.commands.flush();
  return CUDA_SUCCESS;
}

// The program's stream waits at its worker for a word of the other one.
CUresult Between::wait_directly(Thread& thread, Stream& stream, const Event& event, Stream& witness, Link& link) {
  const std::uint64_t number = link.next_event();
  RemoteCall<wire::AwaitPeer> await(thread, stream.context);
  await.in().setStream(stream.wire());
  await.in().setLink(link.number);
  await.in().setNumber(number);
  if (const CUresult bad = await.post(stream); bad != CUDA_SUCCESS) return bad;
  // If that session is lost meanwhile, so is the link, and the stream goes on.
  (void)within(link.from, [&] {
    RemoteCall<wire::CuStreamWaitEvent> wait(thread, event.context);
    wait.in().setHStream(witness.wire());
    wait.in().setHEvent(event.handle.value());
    wait.tell();
    RemoteCall<wire::TellPeer> tell(thread, witness.context);
    tell.in().setStream(witness.wire());
    tell.in().setLink(link.number);
    tell.in().setNumber(number);
    tell.tell();
    link.from.calls.commands.flush();
  });
  link.to.calls.commands.flush();
  return CUDA_SUCCESS;
}

// --- copies ---------------------------------------------------------------------------------------------------------

// Memory of the program that work may read or write at any time.
bool Between::pinned(const CopySide& side) const {
  const Session* const owner = knowing_(side.begin());
  const auto region = owner ? owner->map.find(side.begin()) : std::nullopt;
  return region && region->on_host();
}

bool Between::has_its_time(const Session& own, const CopySide& side, bool written) const {
  const Session* const owner = knowing_(side.begin());
  if (!owner || owner == &own) return false;
  const auto region = owner->map.find(side.begin());
  if (!region || !region->on_host()) return false;
  if (written || owner->host_memory.expects_any() || owner->host_memory.mapped(side.begin())) return true;
  return own.copy_parts.writers.any() || owner->copy_parts.writers.any();
}

// The context in which a side is copied.
Context* Between::context_of(Session& session, const CopySide& side, Context* named) {
  if (named && named->session == &session && named->active) return named;
  if (!side.in_array()) {
    const auto region = session.map.find(side.place);
    if (region && region->context && region->context->active) return &session.contexts.home(*region->context);
  }
  return session.contexts.any_active();
}

Stream* Between::hidden(Thread& thread, Context& context, Use use) {
  Session& session = *context.session;
  Context& home = session.contexts.home(context);
  const std::lock_guard lock(hiding_);
  if (const auto known = hidden_.find({&home, use}); known != hidden_.end())
    if (Stream* const stream = session.streams.find(known->second)) return stream;
  Stream* stream = nullptr;
  (void)within(session, [&] { stream = session.streams.make_hidden(thread, home, CU_STREAM_NON_BLOCKING); });
  if (stream) hidden_[{&home, use}] = stream->handle;
  return stream;
}

// What the call is told at once: that a side is no memory, or no array, of its session.
CUresult Between::check(Thread& thread, const Copy& copy, Sides sides) {
  const auto check_side = [&](Session* session, CopySide side, Context* named) {
    if (!session) return CUDA_SUCCESS;
    Context* const context = context_of(*session, side, named);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult failure = context->failure; failure != CUDA_SUCCESS) return failure;
    Copy one{.shape = copy.shape, .target = CopySide::packed_at(nullptr, copy.shape), .source = side};
    if (side.in_array()) return within(*session, [&] { return check_arrays(thread, *context, one); });
    return session->map.covered(side.begin(), side.extent(copy.shape)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  if (const CUresult bad = check_side(sides.source, copy.source, copy.source_context); bad != CUDA_SUCCESS) return bad;
  return check_side(sides.target, copy.target, copy.target_context);
}

// Managed memory, and pinned memory that kernels see, has newer bytes in this process perhaps.
std::shared_ptr<Link> Between::link_for(const Copy& copy, Sides sides) {
  if (!sides.source || !sides.target || sides.source == sides.target) return nullptr;
  const auto plain = [](const Session& session, const CopySide& side) {
    if (side.in_array()) return true;
    const auto region = session.map.find(side.begin());
    return region && region->on_device() && !region->managed() && region->kind != Region::Kind::alias;
  };
  if (!plain(*sides.source, copy.source) || !plain(*sides.target, copy.target)) return nullptr;
  return links_.between(*sides.source, *sides.target);
}

// A part of a copy by a link: `stream` leads, `other` is the other worker's.
CUresult Between::give_halves(Thread& thread, Stream& stream, Stream& other, Link& link, const CopyPart& part) {
  const bool reads = stream.context->session == &link.from;
  const CopySide by_link{.kind = CopySide::Kind::peer, .place = link.place(link.next_transfer(part.shape))};
  RemoteCall<wire::CopyIn> in(thread, reads ? other.context : stream.context);
  in.in().setStream(reads ? other.wire() : stream.wire());
  encode(part.shape, by_link, part.target, in.in().initCopy());
  in.in().setLeads(!reads);
  RemoteCall<wire::CopyOut> out(thread, reads ? stream.context : other.context);
  out.in().setStream(reads ? stream.wire() : other.wire());
  encode(part.shape, part.source, by_link, out.in().initCopy());
  out.in().setLeads(reads);
  if (const CUresult bad = reads ? out.post(stream) : in.post(stream); bad != CUDA_SUCCESS) return bad;
  bytes_direct_ += part.shape.bytes();
  // If that session is lost meanwhile, so is the link, and the stream goes on.
  (void)within(reads ? link.to : link.from, [&] {
    if (reads) in.tell();
    else out.tell();
  });
  return CUDA_SUCCESS;
}

// Each of the two workers gets its half. The one whose stream the program has named leads: the transfer begins when
// that stream gets there, and the stream goes on when all bytes have landed.
CUresult Between::directly(Thread& thread, Stream& stream, const Copy& whole, Sides sides, Link& link) {
  Copy copy = whole;
  for (CopySide* const side : {&copy.source, &copy.target})
    if (!side->in_array()) side->kind = CopySide::Kind::device;
  Session& here = *stream.context->session;
  const bool reads = &here == sides.source;
  Session& there = reads ? *sides.target : *sides.source;
  Context* const context =
      context_of(there, reads ? copy.target : copy.source, reads ? copy.target_context : copy.source_context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  Stream* const other = hidden(thread, *context, Use::links);
  if (!other) return CUDA_ERROR_OUT_OF_MEMORY;
  std::uint64_t id;
  {
    const std::lock_guard lock(mutex_);
    id = next_++;
    direct_[id] = sides;
  }
  const auto over = [this, id] {
    {
      const std::lock_guard lock(mutex_);
      direct_.erase(id);
    }
    changed_.notify_all();
  };
  constexpr std::uint64_t whole_slices = std::uint64_t{1} << 48;
  CUresult result;
  try {
    result = CopyJob{thread, stream, copy}.for_parts(
        whole_slices, [&](const CopyPart& part) { return give_halves(thread, stream, *other, link, part); });
    here.fences.after(thread, stream, over);
  } catch (...) {
    over();
    throw;
  }
  (void)within(there, [&] { there.calls.commands.flush(); });
  here.calls.commands.flush();
  return result;
}

CUresult Between::copy(Thread& thread, Stream& stream, const Copy& whole, Sides sides) {
  if (whole.shape.empty()) return CUDA_SUCCESS;
  Session& here = *stream.context->session;
  if (stream.capture.load()) {
    here.captures.invalidate(stream);
    return refuse_use("a graph with a copy from or to another host");
  }
  if (const CUresult bad = check(thread, whole, sides); bad != CUDA_SUCCESS) return bad;
  if (const auto link = link_for(whole, sides); link && (&here == sides.source || &here == sides.target))
    return directly(thread, stream, whole, sides, *link);
  // Memory of the program that is not pinned is read during the call, and written before it returns.
  Copy copy = whole;
  std::shared_ptr<std::vector<std::byte>> taken;
  if (!sides.source && !copy.reads_pageable_in_order() && !pinned(copy.source)) take_source(copy, taken);
  const bool waits = !sides.target && !pinned(copy.target);
  std::set<const Session*> on;
  for (const Session* const session : {sides.source, sides.target})
    if (session) on.insert(session);
  const auto id = std::make_shared<std::uint64_t>(0);
  const auto work = [this, id, copy, sides, taken] {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    try {
      result = perform(Thread::current(), copy, sides);
    } catch (const std::exception& error) {  // for the want of memory: all else is the sessions'
      log::info("a copy between hosts failed: {}", error.what());
    }
    note(*id, &Parked::passed, result);
  };
  const auto reached = [this, id, &here, work] {
    note(*id, &Parked::reached);
    jobs(here, Use::copies).run(work);
  };
  if (const CUresult bad = park(thread, stream, std::move(on), reached, *id); bad != CUDA_SUCCESS) return bad;
  here.calls.commands.flush();
  return waits ? here.waits.settle(thread, stream) : CUDA_SUCCESS;
}

void Between::take_source(Copy& copy, std::shared_ptr<std::vector<std::byte>>& taken) const {
  const CopyShape& shape = copy.shape;
  taken = std::make_shared<std::vector<std::byte>>(shape.bytes());
  std::byte* to = taken->data();
  for (std::uint64_t z = 0; z < shape.depth; ++z)
    for (std::uint64_t y = 0; y < shape.height; ++y, to += shape.width)
      std::memcpy(to, bytes_at(copy.source.row(y, z)), shape.width);
  copy.source = CopySide::packed_at(taken->data(), shape);
}

CUresult Between::finish(Thread& thread, Session& session) {
  return within(session, [&] {
    for (int device = 0; session.terms.facts.device(device); ++device) {
      Context& context = session.contexts.primary(device);
      if (!context.active) continue;
      if (const CUresult result = session.waits.synchronize(thread, context); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUresult Between::copy_now(Thread& thread, const Copy& copy, Sides sides) {
  if (copy.shape.empty()) return CUDA_SUCCESS;
  if (const CUresult bad = check(thread, copy, sides); bad != CUDA_SUCCESS) return bad;
  return perform(thread, copy, sides);
}

JobThread& Between::jobs(Session& session, Use use) {
  const std::lock_guard lock(mutex_);
  auto& thread = jobs_[{&session, use}];
  if (!thread)
    thread = std::make_unique<JobThread>(use == Use::reads ? "fargpu-relay" : "fargpu-between", JobThread::Lookout(),
                                         [&session](const char* why) { session.lose(words(why)); });
  return *thread;
}

CUresult Between::run(Thread& thread, Stream& stream, const CopyShape& shape, const CopySide& source,
                      const CopySide& target) {
  const Copy copy{.shape = shape, .target = target, .source = source};
  Session& session = *stream.context->session;
  return within(session, [&] { return Copier(session.copy_parts, thread, stream, copy).run(); });
}

CUresult Between::settle(Thread& thread, Stream& stream) {
  Session& session = *stream.context->session;
  return within(session, [&] { return session.waits.settle(thread, stream); });
}

CUresult Between::perform(Thread& thread, const Copy& copy, Sides sides) {
  Context* const from = sides.source ? context_of(*sides.source, copy.source, copy.source_context) : nullptr;
  Context* const to = sides.target ? context_of(*sides.target, copy.target, copy.target_context) : nullptr;
  if ((sides.source && !from) || (sides.target && !to)) return CUDA_ERROR_INVALID_CONTEXT;
  Stream* const source = from ? hidden(thread, *from, Use::copies) : nullptr;
  Stream* const target = to ? hidden(thread, *to, Use::copies) : nullptr;
  if ((from && !source) || (to && !target)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (source && target) {
    if (const auto link = link_for(copy, sides)) {
      const CUresult result = directly(thread, *target, copy, sides, *link);
      const CUresult settled = settle(thread, *target);
      return result == CUDA_SUCCESS ? settled : result;
    }
    if (sides.source != sides.target) bytes_relayed_ += copy.shape.bytes();
    return relay(thread, copy, *source, *target);
  }
  Stream& only = source ? *source : *target;
  // This thread is to find what the GPU of another session wrote to pinned memory of that.
  for (const CopySide* const side : {&copy.source, &copy.target}) {
    Session* const owner = side->in_array() ? nullptr : knowing_(side->begin());
    if (owner && owner != only.context->session) (void)within(*owner, [&] { owner->waits.after_work(thread); });
  }
  const CUresult result = CopyJob{thread, only, copy}.for_parts(Relay::piece_bytes, [&](const CopyPart& part) {
    return run(thread, only, part.shape, part.source, part.target);
  });
  const CUresult settled = settle(thread, only);
  return result == CUDA_SUCCESS ? settled : result;
}

// Rows of the source come here piece by piece on one thread, and go on to the target on this one.
CUresult Between::relay(Thread& thread, const Copy& copy, Stream& source, Stream& target) {
  Relay relay;
  const auto read = [&](Thread& reader) {
    return CopyJob{reader, source, copy}.for_parts(Relay::piece_bytes, [&](const CopyPart& part) {
      auto bytes = relay.room(part.shape.bytes());
      if (!bytes) return CUDA_SUCCESS;  // what the writing met counts
      const CopySide here = CopySide::packed_at(bytes->data(), part.shape);
      CUresult result = run(reader, source, part.shape, part.source, here);
      if (result == CUDA_SUCCESS) result = settle(reader, source);
      if (result == CUDA_SUCCESS) relay.put({part, std::move(*bytes)});
      return result;
    });
  };
  jobs(*source.context->session, Use::reads).run([&] {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    try {
      result = read(Thread::current());
    } catch (const std::exception& error) {
      log::info("a copy between hosts failed: {}", error.what());
    }
    relay.end(result);
  });
  CUresult written = CUDA_SUCCESS;
  while (written == CUDA_SUCCESS) {
    auto piece = relay.take();
    if (!piece) break;
    const CopyPart& part = piece->part;
    // Has taken the bytes when it returns.
    written = run(thread, target, part.shape, CopySide::packed_at(piece->bytes.data(), part.shape), part.target);
    relay.give_back(std::move(piece->bytes));
  }
  if (written != CUDA_SUCCESS) relay.give_up();
  const CUresult was_read = relay.finish();
  const CUresult settled = settle(thread, target);
  for (const CUresult result : {written, was_read})
    if (result != CUDA_SUCCESS) return result;
  return settled;
}

}  // namespace fargpu::client
