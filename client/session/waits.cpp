#include "waits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "calls_context.capnp.h"
#include "calls_stream.capnp.h"
#include "client/call/remote_call.h"
#include "client/memory/conflicts.h"
#include "operations.capnp.h"

namespace fargpu::client {

CUresult Waits::synchronize(Thread& thread, Context& context) {
  if (const CUresult bad = parts_.captures.check_context(context); bad != CUDA_SUCCESS) return bad;
  const CUresult result = wait_for(thread, context);
  after_wait(thread);
  return tell_conflict("cuCtxSynchronize", result);
}

CUresult Waits::synchronize(Thread& thread, Stream& stream) {
  if (const CUresult bad = parts_.captures.check_query(thread, stream); bad != CUDA_SUCCESS) return bad;
  const std::optional<Given> given = all_as_good_as_done(stream);
  if (given) {  // which may have taken a while
    if (const CUresult bad = parts_.captures.check_query(thread, stream); bad != CUDA_SUCCESS) return bad;
  }
  const CUresult result = given ? put_before_all(thread, stream, *given) : wait_for(thread, stream);
  after_wait(thread);
  return tell_conflict("cuStreamSynchronize", result);
}

CUresult Waits::settle(Thread& thread, Context& context) {
  const CUresult result = wait_for(thread, context);
  after_work(thread);
  return result;
}

CUresult Waits::settle(Thread& thread, Stream& stream) {
  const CUresult result = wait_for(thread, stream);
  after_work(thread);
  return result;
}

CUresult Waits::settle_all(Thread& thread) {
  std::vector<Context*> all;
  parts_.contexts.for_active([&](Context& context) {
    if (!context.green) all.push_back(&context);
  });
  CUresult result = CUDA_SUCCESS;
  for (Context* const context : all)
    if (const CUresult bad = settle(thread, *context); bad != CUDA_SUCCESS) result = bad;
  return result;
}

CUresult Waits::wait_for(Thread& thread, Context& context) {
  RemoteCall<wire::CuCtxSynchronize> call(thread, &context);
  std::vector<Context*> all = parts_.contexts.greens(context);
  all.push_back(&context);
  const bool idle = std::all_of(all.begin(), all.end(), [](const Context* c) { return c->idle(); });
  if (idle && context.failure == CUDA_SUCCESS) return thread.take_late_error();
  std::vector<std::pair<Stream*, std::uint64_t>> items;
  const auto count = [&](Stream& stream) { items.emplace_back(&stream, stream.items.load()); };
  for (Context* const one : all) count(one->legacy);
  parts_.streams.for_each([&](Handle, Stream& stream) {
    if (std::find(all.begin(), all.end(), stream.context) != all.end()) count(stream);
  });
  parts_.host_memory.before_wait(thread);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) {
    for (Context* const one : all) raise(one->completed, call.number());
    for (const auto& [stream, n] : items) raise(stream->retired, n);
    if (const CUresult late = thread.take_late_error(); late != CUDA_SUCCESS) return late;
  }
  return result;
}

CUresult Waits::wait_for(Thread& thread, Stream& stream) {
  if (stream.idle() && stream.context->failure == CUDA_SUCCESS) return thread.take_late_error();
  RemoteCall<wire::CuStreamSynchronize> call(thread, stream.context);
  call.in().setHStream(stream.wire());
  const std::uint64_t items = stream.items.load();
  parts_.host_memory.before_wait(thread);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) {
    stream.complete(call.number(), items);
    if (const CUresult late = thread.take_late_error(); late != CUDA_SUCCESS) return late;
  }
  return result;
}

CUresult Waits::settle_before_work(Thread& thread, Stream& stream) {
  Stream& legacy = stream.context->legacy;
  if (&legacy != &stream && stream.blocking() && !legacy.finished()) {
    // While another such stream is captured nobody may ask about the legacy one.
    const CUresult bad = settle(thread, legacy);
    if (bad != CUDA_SUCCESS && bad != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return bad;
  }
  return settle(thread, stream);
}

// A stream with other work may be waiting for this thread: of what it was given, only copies are waited for.
void Waits::settle_taken(Thread& thread) {
  std::vector<Stream*> unsettled;
  bool others = false;
  const auto look = [&](Stream& stream) {
    if (!stream.context->active || stream.finished()) return;
    if (stream.idle() || stream.as_good_as_idle()) unsettled.push_back(&stream);
    else others = true;
  };
  parts_.contexts.for_active([&](Context& context) { look(context.legacy); });
  parts_.streams.for_each([&](Handle, Stream& stream) { look(stream); });
  const Thread::AnswersOnly answers_only(thread);
  for (Stream* const stream : unsettled) {
    RemoteCall<wire::CuStreamSynchronize> call(thread, stream->context);
    call.in().setHStream(stream->wire());
    const std::uint64_t items = stream->items.load();
    if (call.wait() == CUDA_SUCCESS) stream->complete(call.number(), items);
  }
  if (!others) return;
  RemoteCall<wire::FinishCopies> copies(parts_.calls, thread);
  copies.wait();
}

// Copies of pinned memory are waited for until they have been read: those that are under way now, of all streams that
// the stream comes behind. While this looks no other thread gives the stream work: what is found done is what is called
// done. A copy that another thread has begun meanwhile makes it a wait for the GPU, and so does work that is held for
// the program, which may be what a copy waits for.
std::optional<Waits::Given> Waits::all_as_good_as_done(const Stream& stream) const {
  const auto done = [&] { return !stream.idle() && stream.as_good_as_idle(); };
  if (!done() || parts_.shared_memory.any() || parts_.contexts.several() || any_held()) return std::nullopt;
  if (parts_.device_memory.freed_on(stream)) return std::nullopt;  // pools give that back, or say that they have it
  const auto before = [&](const CopyStream& one) {
    return one.stream == &stream || (one.blocking && one.context == stream.context && stream.behind_legacy());
  };
  if (parts_.lanes.reads_any(before)) {
    parts_.calls.commands.flush();
    parts_.lanes.wait_all_read(before);
  }
  std::optional<Given> given;
  parts_.calls.commands.in_order([&] {
    if (!done() || parts_.lanes.reads_any(before)) return;
    given = {stream.legacy() ? stream.context->blocking_submitted.load() : stream.submitted.load(),
             stream.items.load()};
  });
  return given;
}

bool Waits::held_for_program() const { return parts_.writers.any() || parts_.writers.kernels(); }

bool Waits::any_held() const { return held_for_program() || (held_elsewhere_ && held_elsewhere_()); }

// In place of a wait that nobody can notice. Programs wait for each copy of pageable memory, and where they copy from
// pinned memory to use that again. What is left of a copy concerns nobody but later work on the device, which the
// worker keeps behind it, on all streams of the context. Work that the worker has already, and holds back for what the
// program may do when this wait is over, is not kept behind it.
CUresult Waits::put_before_all(Thread& thread, Stream& stream, const Given& given) {
  RemoteCall<wire::CuStreamSynchronize> call(thread, stream.context);
  call.in().setHStream(stream.wire());
  if (const CUresult bad = call.post(); bad != CUDA_SUCCESS) return bad;
  // Asked now, so that nothing comes between.
  if (any_held()) return wait_for(thread, stream);
  stream.pass(given.call, given.items);
  return CUDA_SUCCESS;
}

void Waits::put_before_all(Thread& thread, Context& context) {
  const std::vector<Context*> greens = parts_.contexts.greens(context);
  std::vector<Stream*> streams;
  const auto look = [&](Stream& stream) {
    if (!stream.finished() && stream.ordered.load() < stream.submitted.load()) streams.push_back(&stream);
  };
  look(context.legacy);
  for (Context* const green : greens) look(green->legacy);
  parts_.streams.for_each([&](Handle, Stream& stream) {
    if (stream.context == &context || std::find(greens.begin(), greens.end(), stream.context) != greens.end())
      look(stream);
  });
  for (Stream* const stream : streams) {
    const std::uint64_t given = stream->submitted.load();
    RemoteCall<wire::CuStreamSynchronize> call(thread, stream->context);
    call.in().setHStream(stream->wire());
    call.tell();
    raise(stream->ordered, given);
  }
}

}  // namespace fargpu::client
