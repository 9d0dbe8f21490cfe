#pragma once
// Variables of modules, as memory.

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "client/memory/managed_memory.h"
#include "client/memory/memory_map.h"
#include "protocol/handle.h"

namespace fargpu::client {

/// Threads: any.
class Variables {
 public:
  Variables(MemoryMap& map, ManagedMemory& managed) : map_(map), managed_(managed) {}

  /// Variables for which `which` holds are about to go with their module: they are unknown from here on, and have no
  /// pages here, for others may lie there when the answer comes. Returned for the case that the module stays.
  std::vector<Region> take(const std::function<bool(const Region&)>& which);
  void give_back(Thread& thread, const std::vector<Region>& variables);
  /// A context is about to be closed. Managed variables of libraries are one for all contexts and live as long as their
  /// library: those that were asked for in this context first are another one's from here on.
  void hand_on(Thread& thread, Context& from, Context& to);

  /// By which a program asks for a variable: CUDA's runtime does so at each copy to or from a symbol.
  struct Name {
    Handle owner;  ///< the module or library
    const Context* context = nullptr;
    std::string name;
    bool only_managed = false;
    auto order() const { return std::tuple(owner.value(), context, std::string_view(name), only_managed); }
    bool operator<(const Name& other) const { return order() < other.order(); }
  };
  /// The variable of that name as it was found before, if its module is still there.
  std::optional<Region> known(const Name& name, std::uint64_t owner) const;
  void found(Name name, std::uint64_t address);

 private:
  MemoryMap& map_;
  ManagedMemory& managed_;
  mutable std::mutex mutex_;
  std::map<Name, std::uint64_t> addresses_;
};

}  // namespace fargpu::client
