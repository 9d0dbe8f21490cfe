#include "stream.h"

#include "context.h"
#include "client/session/session.h"
#include "thread.h"

namespace fargpu::client {

// The legacy stream waits for all blocking ones, and they for it: an awaited call on any of them is one on all.
bool Stream::idle() const { return reached(legacy() ? context->blocking_submitted.load() : submitted.load()); }
bool Stream::as_good_as_idle() const { return reached(blocking() ? context->blocking_awaited.load() : awaited.load()); }

bool Stream::reached(std::uint64_t call) const {
  std::uint64_t done = std::max(completed.load(), context->completed.load());
  if (blocking()) done = std::max(done, context->blocking_completed.load());
  return call <= done;
}

void Stream::complete(std::uint64_t number, std::uint64_t items_then) {
  raise(completed, number);
  raise(retired, items_then);
  // The legacy stream waits for all blocking ones.
  if (legacy()) raise(context->blocking_completed, number);
}

void Stream::abandon() {
  raise(retired, items.load());
  functions = 0;
  capture = nullptr;
}

void Stream::reset() {
  handle = Handle();
  flags = 0;
  priority = 0;
  id = 0;
  submitted = awaited = completed = items = retired = fenced = 0;
  functions = 0;
  capture = nullptr;
}

bool Event::complete() const {
  if (recorded_by_work.load(std::memory_order_relaxed) || shared()) return false;
  const std::uint64_t record = recorded.load();
  if (record == 0 || completed.load() >= record) return true;
  const Stream* const where = recorded_on();
  if (!where) return false;
  std::uint64_t done = std::max(where->completed.load(), where->context->completed.load());
  if (where->blocking()) done = std::max(done, where->context->blocking_completed.load());
  return done >= record;
}

Stream* Event::recorded_on() const {
  Stream* const where = stream.load();
  return where && where->handle.value() == stream_handle.load() ? where : nullptr;
}

void Event::reset() {
  handle = Handle();
  flags = 0;
  recorded = completed = 0;
  stream = nullptr;
  stream_handle = 0;
  recorded_by_work = false;
  capture = 0;
}

StreamUse::StreamUse(Thread& thread, CUstream stream, Context* context) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    if (!context) context = thread.context();
    if (!context) {
      error_ = CUDA_ERROR_INVALID_CONTEXT;
    } else if (!context->active) {
      error_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (stream == CU_STREAM_PER_THREAD) {
      stream_ = thread.session().thread_default_stream(thread, *context);
      error_ = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      stream_ = &context->legacy;
    }
    return;
  }
  stream_ = thread.session().streams().find(handle_of(stream));
}

}  // namespace fargpu::client
