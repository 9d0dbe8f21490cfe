#pragma once
// A client session whose worker is the test: it sees the frames that leave and sends what it likes.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "client/session.h"
#include "frames.h"

namespace fargpu::test {

class LoneSession {
 public:
  LoneSession();
  ~LoneSession();

  client::Session& session() { return *session_; }
  Channel& worker() { return *worker_; }
  /// The next call that the client sent; waits for it.
  struct Sent {
    FrameHeader header;
    Bytes message;
  };
  Sent next_call();
  /// Sends a control message as the worker; its effect may take a moment.
  void push(const std::function<void(wire::Control::Builder)>& fill);

 private:
  client::Session* session_;
  std::unique_ptr<Channel> worker_;
  std::uint32_t sent_ = 1;  // attachAnswer
};

}  // namespace fargpu::test
