#pragma once
// The thread that sends and reads when no thread of the program does, and the watch over the host's life.

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "client/call/calls.h"
#include "client/call/liveness.h"
#include "protocol/channel.h"

namespace fargpu::client {

class Service {
 public:
  /// `host`: for messages; `silence`: after which its worker is taken for dead. The session is lost through `calls`.
  Service(Channel& channel, Calls& calls, std::string host, std::chrono::milliseconds silence);

  /// Starts its threads, which use it for as long as they run: from here on it may not be deleted, even if this throws.
  void start();
  /// Nothing more is read or sent.
  void end();
  /// There is something to send.
  void wake();

  /// For one other thread, which waits for what the worker says by itself: reads in place of the service thread until
  /// `ready` holds. False if there is nothing to wait for any more: `expected` has not held for a while, or the session
  /// is lost.
  bool attend(const std::function<bool()>& ready, const std::function<bool()>& expected);
  /// What another thread has done may make `ready` hold.
  void wake_attending() { attending_waker_.signal(); }
  /// What this process itself may have done to lose the session, as the end of a sentence; mostly nothing.
  std::string excuse() const;

 private:
  void serve();
  bool beat();
  bool lose_silent();

  Channel& channel_;
  Calls& calls_;
  const std::string host_;
  const std::chrono::milliseconds silence_;
  Waker waker_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> attended_{false};  // another thread reads
  Waker attending_waker_;
  std::atomic<bool> ended_{false};
  Liveness liveness_;
};

}  // namespace fargpu::client
