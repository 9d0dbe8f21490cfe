#pragma once
// The one root of the client library in a process: its life from before cuInit to after exit.

#include <cuda.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace fargpu::client {

class Session;
class Thread;

enum class Life : int {
  unborn,  ///< before cuInit: NOT_INITIALIZED
  ready,   ///< calls are served
  lost,    ///< the session is gone: DEVICE_UNAVAILABLE, for good
  forked,  ///< this is a child of a process that had called cuInit: NOT_INITIALIZED
  ended,   ///< the process is exiting: DEINITIALIZED
};

class Process {
 public:
  Life life() const { return life_.load(std::memory_order_acquire); }
  Session* session() const { return session_.load(std::memory_order_acquire); }

  /// cuInit: connects, once. The result of a failure is given again to every later attempt.
  CUresult initialise();

  /// Takes a session that was made otherwise, and gives it up again: tests, which have client and worker in one process.
  void adopt(Session* session);
  void give_up();

  /// The session has ended for good: one line says why. Any thread.
  void lose_session(Session& session, const std::string& why) noexcept;

  /// What a call returns in a life other than ready.
  CUresult unavailable() const;

 private:
  friend union ProcessRoot;
  constexpr Process() = default;
  void at_exit() noexcept;
  void in_forked_child() noexcept;

  std::atomic<Life> life_{Life::unborn};
  std::mutex mutex_;
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

/// Gives back the default streams of a thread that ends.
void release_default_streams(Thread& thread) noexcept;

}  // namespace fargpu::client
