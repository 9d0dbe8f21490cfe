#pragma once
// The one root of the client library in a process: it changes the life of the library, and has the sessions.

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/base/life.h"
#include "client/objects/context.h"
#include "client/objects/thread.h"
#include "protocol/handle.h"
#include "symbols.h"

namespace fargpu::client {

struct Facts;
class PagedMemory;
class Pool;
class Session;

class Process {
 public:
  /// The first session that began; null before.
  Session* session() const { return session_.load(std::memory_order_acquire); }
  /// The hosts of a program that has devices of several; null for all others, which have one session.
  Pool* pool() const { return pool_.load(std::memory_order_acquire); }
  /// What the program knows of its devices. After cuInit.
  const Facts& facts() const;
  /// For calls of a thread without a context. Of a pool, begins the first session if there is none yet: throws
  /// DialError.
  Session& session_without_context(const Thread& thread);
  /// The session of a device that the program has. Throws as above.
  Session& session_of_device(CUdevice device);
  /// The context of a live handle, of whichever session; or null.
  Context* find_context(CUcontext context) const;
  /// The context that is to become current, which is a use of its device: the session begins. Throws as
  /// session_of_device().
  Context* find_context_to_use(CUcontext context);

  /// cuInit: connects, once. The result of a failure is given again to every later attempt.
  CUresult initialise();

  /// Takes a session that was made otherwise, and gives it up again: tests, which have client and worker in one
  /// process, and `fargpu doctor`.
  void adopt(Session* session);
  /// Takes a pool that was made otherwise; its sessions begin as the program uses their devices.
  void adopt(std::unique_ptr<Pool> pool);
  void give_up();

 private:
  friend union ProcessRoot;
  constexpr Process() = default;
  void take(Session* session);
  void take(std::unique_ptr<Pool> pool);
  void set_usual(Session* session);
  CUresult begin_alone();
  CUresult begin_pool(std::unique_ptr<Pool> pool);
  void watch_forks();
  void trace_sessions(Session* session);
  void lost(Session& session, const std::string& why) noexcept;
  void at_exit() noexcept;
  void print_stats() noexcept;
  void before_fork();
  void in_forked_child() noexcept;
  template <class Action>
  void for_each_session(Action&& action) const;

  std::mutex mutex_;
  std::chrono::steady_clock::time_point began_{};  // the first cuInit
  bool tried_ = false;
  CUresult outcome_ = CUDA_ERROR_NOT_INITIALIZED;
  std::atomic<Session*> session_{nullptr};  // never deleted: late calls and other threads may still look
  std::atomic<Pool*> pool_{nullptr};        // nor is this
  std::mutex fork_;  // from before a thread forks until it has: another may fork at the same time
  std::array<PagedMemory*, 2 * (Handle::origin_max + 1)> locked_for_fork_{};  // two of each session that there can be
  std::vector<Session*> adopted_;                                             // nor are these; their threads go on
};

/// Lives in static storage and is never destroyed: destructors of other libraries call us after ours would have run.
union ProcessRoot {
  constexpr ProcessRoot() : process() {}
  ~ProcessRoot() {}
  Process process;
};
extern ProcessRoot process_root;
inline Process& process() { return process_root.process; }

/// The session that a call of this thread is for: its current context's, or the one of programs that have named none.
inline Session& session_of(const Thread& thread) {
  if (const Context* const context = thread.context()) [[likely]]
    return *context->session;
  return process().session_without_context(thread);
}

/// Turns the exception in flight into a CUresult; those that mean the end of the connection end the session.
CUresult result_of_exception(Symbol symbol) noexcept;

}  // namespace fargpu::client
