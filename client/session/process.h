#pragma once
// The one root of the client library in a process: it changes the life of the library, and has the session.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "client/base/life.h"
#include "symbols.h"

namespace fargpu::client {

class Session;
class Thread;

class Process {
 public:
  Session* session() const { return session_.load(std::memory_order_acquire); }

  /// cuInit: connects, once. The result of a failure is given again to every later attempt.
  CUresult initialise();

  /// Takes a session that was made otherwise, and gives it up again: tests, which have client and worker in one
  /// process, and `fargpu doctor`.
  void adopt(Session* session);
  void give_up();

 private:
  friend union ProcessRoot;
  constexpr Process() = default;
  void take(Session* session);
  void lost(Session& session, const std::string& why) noexcept;
  void at_exit() noexcept;
  void in_forked_child() noexcept;

  std::mutex mutex_;
  std::chrono::steady_clock::time_point began_{};  // the first cuInit
  bool tried_ = false;
  CUresult outcome_ = CUDA_ERROR_NOT_INITIALIZED;
  std::atomic<Session*> session_{nullptr};  // never deleted: late calls and other threads may still look
  std::vector<Session*> adopted_;           // nor are these; their threads go on
};

/// Lives in static storage and is never destroyed: destructors of other libraries call us after ours would have run.
union ProcessRoot {
  constexpr ProcessRoot() : process() {}
  ~ProcessRoot() {}
  Process process;
};
extern ProcessRoot process_root;
inline Process& process() { return process_root.process; }

/// The session that a call of this thread is for: its current context's, or the one of programs that have named none. A
/// process has one session, which nothing outside this folder assumes.
inline Session& session_of(const Thread&) { return *process().session(); }

/// Turns the exception in flight into a CUresult; those that mean the end of the connection end the session.
CUresult result_of_exception(Symbol symbol) noexcept;

}  // namespace fargpu::client
