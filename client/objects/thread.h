#pragma once
// What belongs to one thread of the program.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/handle.h"

namespace fargpu::client {

class Calls;
struct Context;
class Session;
namespace trace {
struct Details;
}

/// FARGPU_TRACE, and FARGPU_LOG=trace: what one thread's call has cost so far.
struct TraceCosts {
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t round_trips = 0;
  std::chrono::steady_clock::duration waited{0};  ///< for the network and the worker
  long thread_id = 0;                             ///< the system's; 0 until the thread was named in the file
  std::shared_ptr<trace::Details> details;        ///< what it asks for; null for nothing
};

class Thread {
 public:
  /// The calling thread's own; made at its first call. Cheap.
  static Thread& current() {
    if (Thread* const known = current_) [[likely]]
      return *known;
    return make_current();
  }
  /// Set by Process: what is done for a thread that ends, before it goes.
  static void at_end(void (*action)(Thread& thread) noexcept);
  /// Keeps the failure of a call that did not wait, for the thread's next one. If the thread ends untold, or has ended,
  /// and the failure `concerns_others`, the next call of any thread of the program's returns it. `call` outlives all.
  static void deliver_error(std::uint32_t id, CUresult error, std::string_view call, bool concerns_others = true);

  std::uint32_t id() const { return id_; }

  /// The current context, or null.
  Context* context() const { return contexts_.empty() ? nullptr : contexts_.back(); }
  std::vector<Context*>& contexts() { return contexts_; }

  /// A failure of a call this thread made and did not wait for, or one that has ended; taken by its next call that may
  /// report.
  CUresult take_late_error() {
    if (late_error_.load(std::memory_order_relaxed) == CUDA_SUCCESS &&
        orphaned_error_.load(std::memory_order_relaxed) == CUDA_SUCCESS) [[likely]]
      return CUDA_SUCCESS;
    if (answers_only_) return CUDA_SUCCESS;
    const CUresult own = late_error_.exchange(CUDA_SUCCESS);
    return own != CUDA_SUCCESS || !of_program_ ? own : orphaned_error_.exchange(CUDA_SUCCESS);
  }
  CUresult take_own_late_error() { return late_error_.exchange(CUDA_SUCCESS); }
  /// While it lives, what the thread's calls return is the worker's answer to them: failures of earlier calls are left
  /// for the next one.
  class AnswersOnly {
   public:
    explicit AnswersOnly(Thread& thread) : thread_(thread), before_(std::exchange(thread.answers_only_, true)) {}
    AnswersOnly(const AnswersOnly&) = delete;
    AnswersOnly& operator=(const AnswersOnly&) = delete;
    ~AnswersOnly() { thread_.answers_only_ = before_; }

   private:
    Thread& thread_;
    const bool before_;
  };

  /// cuThreadExchangeStreamCaptureMode.
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  /// Where its calls go while no context is current; null: to the process's first session.
  Session* session = nullptr;
  Calls* calls = nullptr;  ///< of that session
  /// It is running a host function of the program, where CUDA calls are not permitted.
  bool in_callback = false;
  /// This thread's default stream in each context (CU_STREAM_PER_THREAD), made when first used.
  std::map<Context*, Handle> default_streams;
  /// Where the arguments of a launch are gathered; has its size from the first one on.
  std::vector<std::byte> launch_arguments;
  /// FARGPU_TRACE: of the call that it makes.
  TraceCosts traced;

 private:
  explicit Thread(std::uint32_t id);
  static Thread& make_current();
  static void end(void* thread);
  static void orphan(CUresult error, std::string_view call);

  // Initial-exec: one pointer of static TLS, read without a call.
  static constinit thread_local Thread* current_ __attribute__((tls_model("initial-exec")));

  static constinit std::atomic<CUresult> orphaned_error_;  // of threads that have ended

  const std::uint32_t id_;
  std::vector<Context*> contexts_;
  std::atomic<CUresult> late_error_{CUDA_SUCCESS};
  std::string_view failed_call_;  // with that error; as what follows, under the lock of the registry
  bool concerns_others_ = false;
  const bool of_program_;
  bool answers_only_ = false;
};

}  // namespace fargpu::client
