#pragma once
// Contexts as the client knows them.

#include <cuda.h>

#include <array>
#include <atomic>
#include <vector>

#include "protocol/context_storage.h"
#include "protocol/handle.h"
#include "stream.h"

namespace fargpu::client {

class Calls;
class Session;

/// What cuCtxGetApiVersion says: of contexts for addresses of 64 bits, and of those for 32 (see narrow.h).
inline constexpr unsigned wide_api_version = 3020;
inline constexpr unsigned narrow_api_version = 3010;

/// A context. Primary contexts live as long as the process and keep their handle; `active` tells whether the worker has
/// one.
struct Context {
  Context() { legacy.context = this; }

  Session* session = nullptr;  ///< that it belongs to, with all that is made in it
  Calls* calls = nullptr;      ///< the way to its worker
  Handle handle;
  int device = 0;  ///< ordinal as the program sees it
  bool primary = false;
  /// A part of the device, for streams of the device's primary context, whose memory and code it shares.
  bool green = false;
  std::atomic<bool> active{false};
  std::atomic<unsigned> flags{0};
  /// Whether the program wants its threads to sleep while they wait for this context's work.
  bool sleeps() const { return (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC; }
  unsigned retained = 0;  ///< of primary contexts; under Contexts::mutex
  std::uint64_t number = 0;
  unsigned api_version = wide_api_version;
  int least_priority = 0;
  int greatest_priority = 0;
  /// Per TPC of the device: the GPC it belongs to, its number there (private table 1734dc26). Empty where the driver
  /// does not say.
  std::vector<std::uint8_t> processor_group;
  std::vector<std::uint8_t> processor_index;

  /// A failure that ends the contexts of a device (an illegal address, say): every later call in them returns this.
  std::atomic<CUresult> failure{CUDA_SUCCESS};

  Handle managed_stream;  ///< for the contents of managed memory; under ManagedMemory's lock
  /// The legacy default stream.
  Stream legacy;
  /// Number of the last call that gave work to the legacy stream or to one that synchronises with it.
  std::atomic<std::uint64_t> blocking_submitted{0};
  std::atomic<std::uint64_t> blocking_awaited{0};  ///< see Stream::awaited
  /// Number of the last call behind which all work of the context waits for an event.
  std::atomic<std::uint64_t> waits_for_event{0};
  /// Everything submitted up to this call is complete: on all streams; on the blocking ones.
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::uint64_t> blocking_completed{0};
  /// Number of the last call that gave any work to the GPU, and of the last whose results the host may see without a
  /// copy back.
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> host_visible{0};
  /// fargpu itself has given work, which `submitted` does not count, since it last waited for that.
  std::atomic<bool> own_work{false};
  /// Number of the last call that gave work to a stream that was destroyed before the work was known to be done.
  std::atomic<std::uint64_t> orphaned{0};

  ContextStorage storage;

  CUcontext cuda() const { return handle_cast<CUcontext>(handle); }
  std::uint32_t id() const { return handle.id(); }
  /// By what is known of the context as a whole; Contexts::idle looks at its streams, too.
  bool idle() const { return submitted.load() <= completed.load(); }
  void reset();
};

/// CUDA_SUCCESS for a context that is there and not destroyed; null is none.
inline CUresult check_active(const Context* context) {
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return context->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
/// As check_active; a failure that has ended the context is told too.
inline CUresult check_usable(const Context* context) {
  const CUresult bad = check_active(context);
  return bad == CUDA_SUCCESS ? context->failure.load() : bad;
}

/// Raises an atomic to at least `value`.
inline void raise(std::atomic<std::uint64_t>& atomic, std::uint64_t value) {
  std::uint64_t seen = atomic.load(std::memory_order_relaxed);
  while (seen < value && !atomic.compare_exchange_weak(seen, value)) {}
}

}  // namespace fargpu::client
