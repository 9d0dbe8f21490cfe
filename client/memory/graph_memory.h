#pragma once
// Memory that graphs allocate and free. CUDA Driver API, "Graph Management", cuGraphAddMemAllocNode.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "operations.capnp.h"
#include "protocol/handle.h"

namespace fargpu::client {

class DeviceMemory;
class Thread;
struct Context;
struct Stream;

/// The memory of an allocation node is there from when the node is made until no graph holds the node and nothing is
/// allocated at its address any more: an allocation keeps its address through all launches, and so it keeps its memory.
/// What changes is only whether the program may free it. Threads: any.
class GraphMemory {
 public:
  explicit GraphMemory(DeviceMemory& device_memory) : device_memory_(device_memory) {}

  /// Memory for a node that is about to be made; takes it back if it could not be made.
  CUresult allocate(Thread& thread, Context& context, int device, std::uint64_t bytes, std::uint64_t& address);
  void discard(Thread& thread, std::uint64_t address);
  /// The graph part by which the worker tells that no graph holds the node any more.
  void set_part(std::uint64_t address, std::uint64_t part);
  void released(Thread& thread, std::uint64_t address, std::uint64_t part);

  /// Whether an allocation node gave this address.
  bool knows(std::uint64_t address) const;
  /// cuMemFree and cuMemFreeAsync of memory that a launch has left allocated.
  CUresult free(Thread& thread, std::uint64_t address);

  /// What launches of an executable graph do.
  void set_executable(Handle exec, wire::GraphMemory::Reader memory, bool free_on_launch);
  void update_executable(Handle exec, wire::GraphMemory::Reader memory);
  bool used_by(Handle exec) const;
  /// INVALID_VALUE if a launch would allocate what is allocated, or free what is not.
  CUresult may_launch(Handle exec) const;
  void launched(Thread& thread, Handle exec);

  /// The context is gone, and its memory with it.
  void context_closed(const Context& context);
  /// The context goes, and its memory is another's.
  void inherit(const Context& from, const Context& to);

 private:
  struct Allocation {
    const Context* context = nullptr;
    std::uint64_t part = 0;
    bool held = true;        // a graph has the node
    bool allocated = false;  // a launch has left it so
  };
  struct Executable {
    Handle handle;
    std::vector<std::uint64_t> allocated, freed;
    bool free_on_launch = false;
  };
  const Executable* find(Handle exec) const;  // under mutex_
  void give_back(Thread& thread, const std::vector<std::uint64_t>& addresses);

  DeviceMemory& device_memory_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Allocation> allocations_;  // by address
  std::map<std::uint32_t, Executable> executables_;  // by the handle's index
};

}  // namespace fargpu::client
