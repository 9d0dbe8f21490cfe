#pragma once
// The way to one worker: the calls that leave, the answers that come, and what is known of both.

#include <cuda.h>

#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "call_credit.h"
#include "client/objects/capture.h"
#include "client/objects/contexts.h"
#include "client/objects/thread.h"
#include "command_stream.h"
#include "control.capnp.h"
#include "opcodes.h"
#include "protocol/compression.h"
#include "protocol/frame.h"
#include "protocol/message.h"
#include "receiver.h"
#include "reply_cache.h"

namespace fargpu::client {

/// What calls need now and then of the parts above them.
class CallEvents {
 public:
  virtual ~CallEvents() = default;
  /// Once the GPU has passed what the stream was given so far, these pieces of work are to be counted as retired.
  virtual void fence_wanted(Thread& thread, Stream& stream, std::uint64_t items) = 0;
  /// Asks for memory of the context's device; where there is none, what is kept for reuse there is given back, and
  /// asked once more.
  virtual CUresult with_room(Thread& thread, Context& context, const std::function<CUresult()>& ask) = 0;
  /// The session cannot go on. Any thread.
  virtual void lose(const std::string& why) noexcept = 0;
};

/// Loses it from threads of ours, where nothing may be thrown: a reason for which there is no memory is replaced by one
/// that needs none.
void lose_for(CallEvents& events, const char* why, const char* detail = "") noexcept;

/// The parts are thread-safe by themselves; locks are taken in this order: the command stream's, the receiver's.
class Calls {
 public:
  /// `spin`: as Receiver's; `wake`: as CommandStream's.
  Calls(Channel& channel, PushHandler& pushes, std::chrono::nanoseconds spin, std::function<void()> wake,
        Compression compression, const std::bitset<opcode_max + 1>& served, std::uint64_t credit_bytes,
        Contexts& contexts, Captures& captures, CallEvents& events);

  /// The way for calls of this context; without one, for those of programs that have named none yet.
  static Calls& of(const Context* context) {
    if (context) [[likely]]
      return *context->calls;
    Calls* const calls = default_.load(std::memory_order_relaxed);
    return calls ? *calls : first_.load()();
  }
  /// The way for calls of the thread.
  static Calls& of(const Thread& thread) {
    Context* const context = thread.context();
    return context || !thread.calls ? of(context) : *thread.calls;
  }
  /// Set by Process: the way to the first session, and what begins that where none has begun.
  static void set_default(Calls* calls) { default_.store(calls, std::memory_order_relaxed); }
  static void set_first(Calls& (*begin)()) { first_.store(begin); }

  /// Whether the worker serves it.
  bool serves(Opcode opcode) const { return served_.test(static_cast<unsigned>(opcode)); }

  /// A call has given work to a stream. Under the command stream's lock.
  void note_submission(std::uint64_t number) { submitted_.store(number, std::memory_order_release); }
  /// Number of the last call that did.
  std::uint64_t submitted() const { return submitted_.load(std::memory_order_relaxed); }

  /// Waits while too much is pending on the stream.
  void take_credit(Thread& thread, Stream& stream);
  /// Waits until the worker has room for a call of so many bytes, however long it has to keep it. Under no lock that a
  /// function of the program, or what the worker says, might need.
  void take_credit(std::uint64_t bytes, CreditShare share) {
    if (!credit.take(bytes, share)) [[unlikely]]
      wait_for_credit(bytes, share);
  }
  /// Takes credit as well, but waits no longer than for a moment while the worker makes no room at all. Returns whether
  /// there was some.
  bool take_credit_soon(std::uint64_t bytes, CreditShare share) {
    return credit.take(bytes, share) || wait_for_credit(bytes, share, /*for_a_moment=*/true);
  }
  /// Sends a control message, which `fill` writes, behind the calls so far and without delay.
  template <class Fill>
  void say(Fill&& fill, std::span<const std::byte> bulk = {}) {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    FrameHeader header;
    header.kind = FrameKind::control;
    commands.append(header, writer.finish(), bulk, CommandStream::Urgency::now);
  }
  /// A call was answered after this time: the shortest is about a round trip.
  void note_wait(std::chrono::nanoseconds took);

  Receiver receiver;
  CommandStream commands;
  CallCredit credit;
  ReplyCache replies;
  RepliesAhead replies_ahead;
  Contexts& contexts;
  Captures& captures;
  CallEvents& events;
  /// Waits of streams for values in memory of the host that are not over: the value may be the calling thread's to
  /// write.
  std::atomic<unsigned> host_waits{0};

 private:
  std::uint64_t stream_credit() const;
  bool wait_for_credit(std::uint64_t bytes, CreditShare share, bool for_a_moment = false);

  static std::atomic<Calls*> default_;
  static std::atomic<Calls& (*)()> first_;

  const std::bitset<opcode_max + 1> served_;
  std::atomic<std::uint64_t> submitted_{0};
  static constexpr std::uint32_t unknown_wait = ~0u;
  std::atomic<std::uint32_t> shortest_wait_us_{unknown_wait};
};

}  // namespace fargpu::client
