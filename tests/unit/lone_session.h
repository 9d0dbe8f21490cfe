#pragma once
// A client session whose worker is the test: it sees the frames that leave and sends what it likes.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "client/session/session.h"
#include "frames.h"

namespace fargpu::test {

class LoneSession {
 public:
  explicit LoneSession(Window host_window = {}, std::chrono::milliseconds silence = limits::silence_timeout);
  ~LoneSession();

  client::Session& session() { return *session_; }
  Channel& worker() { return *worker_; }
  /// The next call that the client sent; waits for it.
  struct Sent {
    FrameHeader header;
    Bytes message;
  };
  Sent next_call();
  /// Answers it with success and nothing more.
  void reply(const Sent& call);
  /// Sends a control message as the worker, with bulk bytes behind it; its effect may take a moment.
  void push(const std::function<void(wire::Control::Builder)>& fill, const Bytes& bulk = {});

 private:
  client::Session* session_;
  std::unique_ptr<Channel> worker_;
  std::uint32_t sent_ = 1;  // attachAnswer
};

}  // namespace fargpu::test
