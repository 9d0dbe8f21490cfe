#include "remote_call.h"

#include "cuda_facts.h"
#include "client/base/log.h"
#include "protocol/limits.h"
#include "refusal.h"
#include "stats.h"
#include "trace.h"

namespace fargpu::client {
namespace {

bool breaks_capture(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

}  // namespace

RemoteCallBase::RemoteCallBase(Calls& calls, Thread& thread, CallKind kind, Context* context)
    : thread_(thread), calls_(calls), kind_(kind), context_(context) {
  if (!calls_.serves(kind.opcode)) [[unlikely]] {
    refuse_use(std::string(opcode_name(static_cast<std::uint16_t>(kind.opcode))).c_str());
    error_ = CUDA_ERROR_NOT_SUPPORTED;
  }
}

RemoteCallBase::RemoteCallBase(Thread& thread, CallKind kind, ContextNeed need)
    : RemoteCallBase(Calls::of(thread), thread, kind, need == ContextNeed::none ? nullptr : thread.context()) {
  // What needs no context does without one that is gone, and whatever has become of one that is there.
  needs_context_ = need == ContextNeed::current;
  if (need == ContextNeed::optional && context_ && !context_->active.load(std::memory_order_relaxed))
    context_ = nullptr;
  if (!context_ && need == ContextNeed::current) error_ = CUDA_ERROR_INVALID_CONTEXT;
  else if (context_ && !context_->active.load(std::memory_order_relaxed)) error_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

FrameHeader RemoteCallBase::header(std::uint32_t flags) const {
  FrameHeader h;
  h.kind = FrameKind::call;
  h.opcode = static_cast<std::uint16_t>(kind_.opcode);
  h.thread = thread_.id();
  h.subject = context_ ? context_->id() : 0;
  h.detail = flags | flags_;
  return h;
}

// What must hold before the call may leave: no failure to be told first, a capture that is whole, credit on the stream.
CUresult RemoteCallBase::prepare(Stream* stream) {
  if (error_ != CUDA_SUCCESS) return error_;
  if (const CUresult late = thread_.take_late_error(); late != CUDA_SUCCESS) {
    if (!kind_.sent_after_failures) return late;
    late_ = late;
  }
  if (context_ && needs_context_) {
    if (const CUresult failure = context_->failure.load(std::memory_order_relaxed); failure != CUDA_SUCCESS)
      return failure;
  }
  if (!stream) return CUDA_SUCCESS;
  if (const CUresult bad = calls_.captures.check_submission(*stream); bad != CUDA_SUCCESS) return bad;
  calls_.take_credit(thread_, *stream);
  return CUDA_SUCCESS;
}

// Only work that the program gives to a stream waits for it, as it waits where the stream is full. Other calls are
// small, may be made where nothing may wait, and mostly find credit that is left for them; where they do not, the
// worker finds room for them, or refuses them.
std::uint32_t RemoteCallBase::take_credit(bool may_wait, std::size_t message_bytes) {
  if (!kind_.may_be_held) return 0;
  const std::uint64_t bytes = credit_of(message_bytes, bulk_.size());
  if (may_wait) calls_.take_credit(bytes, share());
  else if (!calls_.credit.take(bytes, CreditShare::all)) return 0;
  return call_takes_credit;
}

// Under the command stream's lock, so that nobody sees the call's effects out of order, and numbers only grow.
void RemoteCallBase::note(Stream* stream, std::uint64_t number) {
  const auto reached = [number](std::atomic<std::uint64_t>& call) { call.store(number, std::memory_order_release); };
  for (Stream* const further : std::exchange(further_streams_, {})) note(further, number);
  if (!stream || stream->capture.load(std::memory_order_relaxed)) return;  // captured work is not submitted
  Context& context = *stream->context;
  stream->items.store(stream->items.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  reached(stream->submitted);
  reached(context.submitted);
  if (stream->blocking()) reached(context.blocking_submitted);
  if (host_visible_) reached(context.host_visible);
  if (!taken_ || host_visible_) {
    reached(stream->awaited);
    if (stream->blocking()) reached(context.blocking_awaited);
  }
  calls_.note_submission(number);
}

CUresult RemoteCallBase::too_long(std::size_t message_bytes) const {
  log::warn("{} has arguments of {} bytes; fargpu carries up to {} of one call: divide it",
            opcode_name(static_cast<std::uint16_t>(kind_.opcode)), message_bytes, limits::message_bytes_max);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult RemoteCallBase::post(Stream* stream) {
  if (const CUresult bad = prepare(stream); bad != CUDA_SUCCESS) return bad;
  const auto message = message_.finish();
  if (message.size() > limits::message_bytes_max) [[unlikely]]
    return too_long(message.size());
  return post(stream, message, take_credit(stream != nullptr, message.size()));
}

std::optional<CUresult> RemoteCallBase::post_if_room(Stream& stream) {
  if (const CUresult bad = prepare(&stream); bad != CUDA_SUCCESS) return bad;
  const auto message = message_.finish();
  if (!calls_.take_credit_soon(credit_of(message.size(), bulk_.size()), share())) return std::nullopt;
  return post(&stream, message, call_takes_credit);
}

CUresult RemoteCallBase::post(Stream* stream, std::span<const std::byte> message, std::uint32_t flags) {
  const std::uint64_t bytes = frame_bytes(message);
  number_ =
      calls_.commands.append(header(flags), message, bulk_, CommandStream::Urgency::later, [&](std::uint64_t number) {
        note(stream, number);
        stats::of(kind_.opcode).leaves(bytes);
      });
  trace::sent(thread_, stream, kind_.opcode, message, bytes);
  return late_;
}

void RemoteCallBase::tell() {
  if (error_ != CUDA_SUCCESS) return;
  const auto message = message_.finish();
  const std::uint64_t bytes = frame_bytes(message);
  const std::uint32_t flags = take_credit(/*may_wait=*/false, message.size());
  number_ = calls_.commands.append(header(flags), message, bulk_, CommandStream::Urgency::later,
                                   [&](std::uint64_t) { stats::of(kind_.opcode).leaves(bytes); });
}

CUresult RemoteCallBase::wait(Stream* stream) {
  if (const CUresult bad = prepare(stream); bad != CUDA_SUCCESS) return bad;
  const auto message = message_.finish();
  if (message.size() > limits::message_bytes_max) [[unlikely]]
    return too_long(message.size());
  // The value may be this thread's to write, after the call.
  const auto never_held = [&] { return calls_.host_waits.load() > 0; };
  const std::uint32_t credit = take_credit(stream && !never_held(), message.size());
  const auto begin = std::chrono::steady_clock::now();
  const std::uint32_t flags = call_wants_reply | (never_held() ? call_never_held : 0u) | credit;
  const std::uint64_t bytes = frame_bytes(message);
  std::uint64_t expected = 0;
  try {
    number_ =
        calls_.commands.append(header(flags), message, bulk_, CommandStream::Urgency::now, [&](std::uint64_t number) {
          note(stream, number);
          stats::of(kind_.opcode).leaves(bytes);
          calls_.receiver.expect(number, pending_);
          expected = number;
        });
  } catch (...) {
    if (expected) calls_.receiver.forget(expected);
    throw;
  }
  calls_.receiver.wait(number_, pending_, context_ && context_->sleeps() ? Receiver::Manner::sleep : manner_);
  auto& counts = stats::of(kind_.opcode);
  counts.waited.fetch_add(1, std::memory_order_relaxed);
  trace::sent(thread_, stream, kind_.opcode, message, bytes);
  trace::answered(thread_, kind_.opcode, pending_.result, pending_.message.size() + pending_.arrived_bytes, begin);
  const auto took = std::chrono::steady_clock::now() - begin;
  counts.nanoseconds.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
  calls_.note_wait(took);
  if (pending_.result == CUDA_SUCCESS)
    for (const Opcode stale : forgotten_after(kind_.opcode)) calls_.replies.forget(stale, subject_);
  else
    log::debug("{} answered {}", opcode_name(static_cast<std::uint16_t>(kind_.opcode)), result_name(pending_.result));
  if (context_ && ends_context(pending_.result)) calls_.contexts.fail(context_->device, pending_.result);
  if (stream && breaks_capture(pending_.result)) calls_.captures.invalidate(*stream);  // as the driver's is
  return late_ != CUDA_SUCCESS ? late_ : pending_.result;
}

CUresult RemoteCallBase::wait_with_room() {
  if (!context_) return wait(nullptr);
  return calls_.events.with_room(thread_, *context_, [&] {
    pending_.done.store(false, std::memory_order_relaxed);
    return wait(nullptr);
  });
}

CUresult RemoteCallBase::recall() {
  if (const CUresult bad = prepare(nullptr); bad != CUDA_SUCCESS) return bad;
  const auto message = message_.finish();
  const ReplyCache::Key key = ReplyCache::key(kind_.opcode, context_ ? context_->id() : 0, message, subject_);
  if (calls_.replies.find(key, pending_.message)) {
    stats::of(kind_.opcode).recalled.fetch_add(1, std::memory_order_relaxed);
    return CUDA_SUCCESS;
  }
  const std::uint64_t changes = calls_.replies.changes();
  const CUresult result = wait(nullptr);
  if (result == CUDA_SUCCESS) calls_.replies.keep(key, pending_.message, changes);
  return result;
}

bool RemoteCallBase::take_ahead() {
  const bool found = calls_.replies_ahead.take(
      ReplyCache::key(kind_.opcode, context_ ? context_->id() : 0, message_.finish()), pending_.message);
  if (found) stats::of(kind_.opcode).recalled.fetch_add(1, std::memory_order_relaxed);
  return found;
}

void RemoteCallBase::keep_ahead(std::span<const std::byte> request, std::span<const std::byte> reply) {
  if (request.size() <= limits::ahead_request_bytes_max)
    calls_.replies_ahead.keep(ReplyCache::key(kind_.opcode, context_ ? context_->id() : 0, request), reply);
}

bool ends_context(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
  }
}

}  // namespace fargpu::client
