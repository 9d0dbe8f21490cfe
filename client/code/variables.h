#pragma once
// Variables of modules, as memory.

#include <functional>
#include <vector>

#include "client/memory/managed_memory.h"
#include "client/memory/memory_map.h"

namespace fargpu::client {

/// Threads: any.
class Variables {
 public:
  Variables(MemoryMap& map, ManagedMemory& managed) : map_(map), managed_(managed) {}

  /// Variables for which `which` holds are about to go with their module: they are unknown from here on, and have no
  /// pages here, for others may lie there when the answer comes. Returned for the case that the module stays.
  std::vector<Region> take(const std::function<bool(const Region&)>& which);
  void give_back(Thread& thread, const std::vector<Region>& variables);

 private:
  MemoryMap& map_;
  ManagedMemory& managed_;
};

}  // namespace fargpu::client
