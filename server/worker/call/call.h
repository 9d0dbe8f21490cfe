#pragma once
// One call while the worker serves it, and what its service may answer.

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "call_credit.h"
#include "protocol/frame.h"
#include "protocol/message.h"

namespace fargpu::server {

class Session;

/// Which call an answer belongs to.
struct CallId {
  std::uint32_t sequence = 0;
  std::uint32_t thread = 0;
  std::uint32_t context = 0;
  std::uint16_t opcode = 0;
  bool wants_reply = false;
  bool never_held = false;
  bool answered = false;  ///< before it is executed: what comes of it nobody hears
};

/// The answer of a service: a CUresult now, or the promise that Session::finish will be called for the call's id.
class Outcome {
 public:
  Outcome(CUresult result) : result_(result) {}
  static Outcome later() { return Outcome(); }
  bool is_later() const { return !result_; }
  CUresult result() const { return *result_; }

 private:
  Outcome() = default;
  std::optional<CUresult> result_;
};

/// A call being served. Message and bulk bytes are valid until the service returns.
class Call {
 public:
  Call(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk)
      : id_{header.sequence,
            header.thread,
            header.subject,
            header.opcode,
            (header.detail & call_wants_reply) != 0,
            (header.detail & call_never_held) != 0},
        message_(message),
        bulk_(bulk),
        reader_(message) {}

  const CallId& id() const { return id_; }
  void set_answered() { id_.answered = true; }
  /// Room that is kept for it, until it is settled.
  void set_credit(TakenCredit credit) { credit_ = std::move(credit); }
  TakenCredit take_credit() { return std::move(credit_); }
  /// The driver's ordinal of the device that the call takes memory of, where that is not its context's.
  void set_device(int device) { device_ = device; }
  std::optional<int> device() const { return device_; }
  std::span<std::byte> bulk() const { return bulk_; }
  std::span<const std::byte> message() const { return message_; }

  template <class Request>
  typename Request::Reader in() {
    return reader_.root<Request>();
  }
  /// The reply, begun. Only what is written before the service returns is sent.
  template <class Reply>
  typename Reply::Builder out() {
    if (!reply_) reply_.emplace();
    return reply_->root<Reply>();
  }
  /// The finished reply, or nothing.
  std::span<const std::byte> reply() { return reply_ ? reply_->finish() : std::span<const std::byte>{}; }

 private:
  CallId id_;
  std::span<const std::byte> message_;
  std::span<std::byte> bulk_;
  MessageReader reader_;
  TakenCredit credit_;
  std::optional<int> device_;
  std::optional<MessageWriter> reply_;
};

}  // namespace fargpu::server
