#pragma once
// What the worker says by itself: late failures, passed fences, functions and memory of this process that its work
// needs.

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "client/base/handle_map.h"
#include "client/base/job_thread.h"
#include "client/call/client_lanes.h"
#include "client/call/calls.h"
#include "client/connect/windows.h"
#include "client/memory/graph_memory.h"
#include "client/memory/host_memory.h"
#include "client/memory/memory_map.h"
#include "client/objects/contexts.h"
#include "client/objects/graph_parts.h"
#include "client/objects/graphs.h"
#include "client/objects/stream.h"
#include "client/stream/callbacks.h"
#include "client/stream/fences.h"
#include "client/stream/stream_waits.h"
#include "control.capnp.h"

namespace fargpu::client {

class Waits;

/// Pushes arrive on the thread that reads the connection, one at a time; what may have to wait is answered on a thread
/// of its own.
class Pushes final : public PushHandler {
 public:
  struct Parts {
    Calls& calls;
    Contexts& contexts;
    HandleMap<Event>& events;
    std::atomic<bool>& asks_each_time;
    Fences& fences;
    StreamWaits& stream_waits;
    Callbacks& callbacks;
    JobThread& answers;  ///< where the worker's questions are answered
    Waits& waits;
    const MemoryMap& map;
    HostMemory& host_memory;
    ClientLanes& lanes;
    GraphParts& graph_parts;
    const Graphs& graphs;
    GraphMemory& graph_memory;
  };
  /// `host`: for messages; `host_window`: where pinned memory lies.
  Pushes(const Parts& parts, const std::string& host, const Window& host_window)
      : parts_(parts), host_(host), host_window_(host_window) {}

  /// A function is about to run, for which the work before it is complete.
  void function_due();
  /// A function that the worker has called under this number has run, or what it waited for here has come.
  void function_done(std::uint64_t number);

 private:
  void on_push(wire::Control::Reader push, std::span<std::byte> bulk) override;
  std::span<std::byte> place_delivery(wire::Deliver::Reader deliver, std::size_t bytes) override;
  void on_late_error(wire::LateError::Reader error);
  void on_event(wire::EventPassed::Reader passed);
  void on_callback(wire::Callback::Reader callback);
  void on_pull(wire::Pull::Reader pull);
  void on_deliver(wire::Deliver::Reader deliver, std::span<const std::byte> bytes);
  void on_printed(wire::Printed::Reader text);
  void on_returned(wire::Returned::Reader back);
  void answer_pull(std::uint64_t pull, std::uint64_t address, std::uint64_t bytes);
  void answer_part_pull(std::uint64_t pull, std::uint64_t part, std::uint64_t bytes);
  bool read_pinned(std::uint64_t buffer_id, std::uint64_t address, std::span<std::byte> into) const;
  void send_pulled(std::uint64_t pull, std::span<const std::byte> rest);
  void say_gone(std::uint64_t pull);
  bool still_there(const GraphParts::Memory& memory) const;
  bool pinned(const GraphParts::Memory& memory) const;
  void deliver_part(std::uint64_t part, std::uint64_t offset, std::span<const std::byte> bytes);
  void call_part(std::uint64_t callback, std::uint64_t part);
  void release_part(std::uint64_t part);
  void answer_aside(std::function<void()> answer);
  void count_job();
  template <class Fill>
  void tell_worker(Fill&& fill, std::span<const std::byte> bulk = {});

  const Parts parts_;
  const std::string& host_;
  const Window& host_window_;
  std::atomic<std::size_t> jobs_{0};  // of other threads, for the worker
  std::vector<std::byte> arriving_;   // what is being delivered, on its way to where it belongs; of the reading thread
};

}  // namespace fargpu::client
