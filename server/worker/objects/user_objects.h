#pragma once
// The owners of references of user objects: the program, and each of its graphs.
// NVIDIA's driver takes callers at their word, and releasing
// what one does not own is a use after free in it, so references are counted here. However many an owner has, it has
// one of the driver's.

#include <cuda.h>

#include <cstdint>
#include <map>

#include "driver_table.h"
#include "handles.h"

namespace fargpu::server {

/// Used by the executor only.
class UserObjects {
 public:
  UserObjects(DriverTable& driver, Handles& handles) : driver_(driver), handles_(handles) {}

  /// A new object, of which the program owns the driver's one reference. `part` is its destructor.
  void add(std::uint64_t part, Handle object, unsigned references);
  /// The driver's object behind the destructor has ended, if there is one: its handle, which means nothing from now on.
  /// Null for other parts.
  Handle ended(std::uint64_t part);

  // Of objects and graphs whose handles are live. INVALID_VALUE for references that are not there.
  CUresult retain(Handle object, unsigned count);
  CUresult release(Handle object, unsigned count);
  CUresult graph_retain(Handle graph, Handle object, unsigned count, unsigned flags);
  CUresult graph_release(Handle graph, Handle object, unsigned count);

  /// The driver has made a graph as a copy of another, with references of its own.
  void copied(Handle from, Handle to);

 private:
  struct Object {
    std::uint64_t program = 0;                      // references that the program owns
    std::map<std::uint64_t, std::uint64_t> graphs;  // and graphs, by handle; some may be gone
    std::size_t graphs_max = 64;                    // at which those that are gone are looked for
  };
  Object* find(Handle object);
  bool lives(const Object& object);
  void sweep(Object& object);

  DriverTable& driver_;
  Handles& handles_;
  std::map<std::uint64_t, Object> objects_;  // by handle
  std::map<std::uint64_t, Handle> by_part_;
};

}  // namespace fargpu::server
