#pragma once
// One call or operation on its way to the worker and back.

#include <cuda.h>

#include <span>
#include <vector>

#include "client/base/counted.h"
#include "client/objects/context.h"
#include "call_traits.h"
#include "protocol/invalid_handle.h"
#include "protocol/message.h"
#include "calls.h"
#include "receiver.h"
#include "client/objects/stream.h"
#include "client/objects/thread.h"

namespace fargpu::client {

/// What the spec says of a call or operation besides its messages.
struct CallKind {
  Opcode opcode;
  bool may_be_held;          ///< the worker may have to keep it, so that it takes credit
  bool sent_after_failures;  ///< an object may be gone after the call: the program does not ask again
};

/// The part that does not depend on the message's type. Used by one thread, for one call.
class RemoteCallBase {
 public:
  RemoteCallBase(const RemoteCallBase&) = delete;
  RemoteCallBase& operator=(const RemoteCallBase&) = delete;

  /// False if the call cannot be made at all; error() says why. What returns a result says so too, and tell() sends
  /// nothing then: ask where something else would come before.
  explicit operator bool() const { return error_ == CUDA_SUCCESS; }
  CUresult error() const { return error_; }

  /// Bytes that travel behind the message; read before the call returns.
  void bulk(std::span<const std::byte> bytes) { bulk_ = bytes; }
  /// Where data frames of the answer go.
  void target(std::span<std::byte> bytes) { pending_.target = bytes; }

  /// It is work on this stream too, besides the one that post and wait name.
  void also_on(Stream& stream) { further_streams_.push_back(&stream); }

  /// The host may see the results of this work without copying them back.
  void host_visible() { host_visible_ = true; }
  bool seen_by_host() const { return host_visible_; }

  /// Counts it while it is made.
  void count(Counted given) { given_ = std::move(given); }

  /// Neither it nor work on a stream that it makes may wait for what others are to do (call_never_held).
  void never_held() { flags_ |= call_never_held; }

  /// The program wants its threads to sleep while they wait.
  void sleeps() { manner_ = Receiver::Manner::sleep; }

  /// What the answer tells of, or what the call changes: the only object of which kept answers are forgotten after it.
  void about(Handle subject) { subject_ = subject.value(); }

  /// All that the work needs of this process goes with the call, or leaves by itself, and nobody but later work can
  /// tell when it is done.
  void taken() { taken_ = true; }

  /// What it would be answered instead of being sent. For calls that are answered from what is known.
  CUresult refusal() { return prepare(nullptr); }

  /// Whether the answer to it came ahead, with another one: then out() has it, nothing is sent, and an equal request
  /// will be. After refusal().
  bool take_ahead();
  /// An answer to a request of the same opcode and context that the program may come to make.
  void keep_ahead(std::span<const std::byte> request, std::span<const std::byte> reply);

  /// Number of the call in the session's order, once it is sent.
  std::uint64_t number() const { return number_; }
  /// After wait(): whether the worker has done what it was asked, also where wait() told of an earlier failure.
  bool done() const { return number_ != 0 && pending_.result == CUDA_SUCCESS; }
  std::size_t arrived_bytes() const { return pending_.arrived_bytes; }
  /// Whether some of them could not be written to the target.
  bool spoiled() const { return pending_.spoiled; }

 protected:
  RemoteCallBase(Thread& thread, CallKind kind, ContextNeed need);
  RemoteCallBase(Calls& calls, Thread& thread, CallKind kind, Context* context);

  template <class Request>
  typename Request::Builder request() {
    return message_.root<Request>();
  }
  template <class Reply>
  typename Reply::Reader reply() {
    if (!reader_) reader_.emplace(std::span<const std::byte>(pending_.message));
    return reader_->root<Reply>();
  }
  CUresult post(Stream* stream);
  std::optional<CUresult> post_if_room(Stream& stream);
  CUresult wait(Stream* stream);
  void tell();
  CUresult wait_with_room();
  CUresult recall();

 private:
  CUresult prepare(Stream* stream);
  CUresult post(Stream* stream, std::span<const std::byte> message, std::uint32_t flags);
  CreditShare share() const { return bulk_.empty() ? CreditShare::work : CreditShare::bytes; }
  std::uint32_t take_credit(bool may_wait, std::size_t message_bytes);
  FrameHeader header(std::uint32_t flags) const;
  /// No frame carries it: what the program has given is too much for one call.
  CUresult too_long(std::size_t message_bytes) const;
  std::uint64_t frame_bytes(std::span<const std::byte> message) const {
    return message.size() + bulk_.size() + sizeof(FrameHeader);
  }
  void note(Stream* stream, std::uint64_t number);

  Thread& thread_;
  Calls& calls_;
  const CallKind kind_;
  Context* context_ = nullptr;
  CUresult error_ = CUDA_SUCCESS;
  MessageWriter message_;
  std::span<const std::byte> bulk_;
  PendingReply pending_;
  std::optional<MessageReader> reader_;
  std::uint64_t number_ = 0;
  std::uint32_t flags_ = 0;  // besides those that follow from how it is made
  bool needs_context_ = true;
  CUresult late_ = CUDA_SUCCESS;  // an earlier failure that the call tells of when it has been sent
  bool host_visible_ = false;
  bool taken_ = false;
  std::uint64_t subject_ = 0;
  Receiver::Manner manner_ = Receiver::Manner::spin;
  std::vector<Stream*> further_streams_;
  Counted given_;
};

/// A call or operation, named by its request; the spec says its opcode, its reply, what it needs of the current context
/// and whether its answer may be awaited.
template <class Request>
class RemoteCall : public RemoteCallBase {
  using Traits = CallTraits<Request>;
  static constexpr CallKind kind{Traits::opcode, Traits::may_be_held, Traits::sent_after_failures};
  static constexpr bool deferrable = may_defer(Traits::mode), awaitable = may_wait(Traits::mode);

 public:
  using Reply = typename Traits::Reply;

  explicit RemoteCall(Thread& thread, ContextNeed need = Traits::context) : RemoteCallBase(thread, kind, need) {}
  /// In another context than the current one; null for none.
  RemoteCall(Thread& thread, Context* context)
      : RemoteCallBase(context ? Calls::of(context) : Calls::of(thread), thread, kind, context) {}
  /// By parts that know their worker; `context` may be null.
  RemoteCall(Calls& calls, Thread& thread, Context* context = nullptr) : RemoteCallBase(calls, thread, kind, context) {}

  typename Request::Builder in() { return request<Request>(); }
  auto out() { return reply<Reply>(); }

  /// Sends it without waiting. A failure that the worker meets comes back later. Work on a stream names it.
  CUresult post() requires deferrable { return RemoteCallBase::post(nullptr); }
  CUresult post(Stream& stream) requires deferrable { return RemoteCallBase::post(&stream); }
  /// As post, but sends nothing, and returns nothing, where the worker makes no room for it: work before it stands
  /// still.
  std::optional<CUresult> post_if_room(Stream& stream) requires(deferrable&& kind.may_be_held &&
                                                                !kind.sent_after_failures) {
    return RemoteCallBase::post_if_room(stream);
  }
  /// Sends it without looking at earlier failures: for housekeeping that no program asked for.
  void tell() requires deferrable { RemoteCallBase::tell(); }

  /// Sends it and waits for the answer.
  CUresult wait() requires awaitable { return RemoteCallBase::wait(nullptr); }
  CUresult wait(Stream& stream) requires awaitable { return RemoteCallBase::wait(&stream); }
  /// As wait, for calls without data that take memory of the context's device. Where there is no room, what is kept for
  /// reuse there is given back, and the call made again.
  CUresult wait_with_room() requires awaitable { return RemoteCallBase::wait_with_room(); }
  /// As wait, but an equal request that was answered before is not sent again.
  CUresult recall() requires(Traits::mode == CallMode::cached) { return RemoteCallBase::recall(); }
};

/// Number of list elements that an argument asks for; larger ones than the protocol carries are cut, and fail at the
/// worker.
template <class Number>
unsigned element_count(Number number) {
  if (static_cast<std::make_signed_t<Number>>(number) < 0) return 0;
  return static_cast<unsigned>(std::min<std::uint64_t>(number, limits::array_elements_max));
}

/// A failure that ends the contexts of its device: every later call there returns it too.
bool ends_context(CUresult result);

}  // namespace fargpu::client
