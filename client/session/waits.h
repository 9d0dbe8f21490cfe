#pragma once
// The two moments at which this process and the GPU's host exchange what each has written: before work, and where the
// program waits.

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "client/call/calls.h"
#include "client/call/client_lanes.h"
#include "client/memory/device_memory.h"
#include "client/memory/host_memory.h"
#include "client/memory/managed_memory.h"
#include "client/memory/shared_memory.h"
#include "client/objects/capture.h"
#include "client/objects/contexts.h"
#include "client/stream/pending_writers.h"
#include "client/stream/settler.h"
#include "client/stream/streams.h"

namespace fargpu::client {

/// Threads: any.
class Waits final : public Settler {
 public:
  struct Parts {
    Calls& calls;
    Contexts& contexts;
    Streams& streams;
    Captures& captures;
    PendingWriters writers;
    DeviceMemory& device_memory;
    HostMemory& host_memory;
    ManagedMemory& managed;
    SharedMemory& shared_memory;
    ClientLanes& lanes;
  };
  explicit Waits(const Parts& parts) : parts_(parts) {}
  /// Has it heed other sessions of the program too, before any call is made: whether work at their hosts is
  /// held_for_program().
  void heed(std::function<bool()> held_elsewhere) { held_elsewhere_ = std::move(held_elsewhere); }

  /// Waits for everything given to the context (cuCtxSynchronize); answered here if it is idle.
  CUresult synchronize(Thread& thread, Context& context);
  /// Waits for everything given to the stream (cuStreamSynchronize).
  CUresult synchronize(Thread& thread, Stream& stream);
  CUresult settle(Thread& thread, Context& context) override;
  CUresult settle(Thread& thread, Stream& stream) override;
  CUresult settle_all(Thread& thread) override;
  CUresult settle_before_work(Thread& thread, Stream& stream) override;
  void settle_taken(Thread& thread) override;
  void after_work(Thread& thread) override {
    parts_.managed.after_wait(thread);
    parts_.host_memory.after_wait(thread);
  }

  /// Work is about to be submitted that may use memory of the host: what the program changed there goes first.
  void before_work(Thread& thread) {
    parts_.host_memory.before_work(thread);
    parts_.managed.before_work(thread);
  }
  /// As before_work(), for work that the worker has, and holds back until this process has done something.
  void before_held_work(Thread& thread) {
    before_work(thread);
    parts_.managed.settle_changes(thread);
  }
  /// What the context's streams have been given comes before all that they are given from now on. Nobody waits.
  void put_before_all(Thread& thread, Context& context);
  /// The program has waited for work.
  void after_wait(Thread& thread) {
    parts_.device_memory.synchronized(thread);
    after_work(thread);
  }
  /// Whether the host may see what work does without copying it back.
  bool host_sees() const { return parts_.host_memory.any_mapped() || parts_.managed.exists(); }
  /// Whether work of this session waits for what the program may do, and then goes on by itself: for a function, a
  /// value, a graph with functions, or memory of the host that a kernel looks at.
  bool held_for_program() const;
  /// Work under way waits for this process, which may yet change what later work is to read: host functions, values
  /// waited for.
  bool for_host() const { return parts_.writers.functions(); }

 private:
  /// What a stream was given.
  struct Given {
    std::uint64_t call;  ///< the last one
    std::uint64_t items;
  };
  CUresult wait_for(Thread& thread, Context& context);
  CUresult wait_for(Thread& thread, Stream& stream);
  std::optional<Given> all_as_good_as_done(const Stream& stream) const;
  bool any_held() const;
  CUresult put_before_all(Thread& thread, Stream& stream, const Given& given);

  const Parts parts_;
  std::function<bool()> held_elsewhere_;
};

}  // namespace fargpu::client
