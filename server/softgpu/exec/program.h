#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/routine.h"

namespace fargpu::softgpu {

/// A variable of module scope in global or constant memory.
struct GlobalVariable {
  /// The address of a variable or function, written into the initial contents.
  struct Pointer {
    uint64_t offset = 0;
    uint32_t target = 0;  // a global, or a routine
    bool is_function = false;
    int64_t addend = 0;
    uint8_t width = 8;
    uint8_t first_byte = 0;  // of the address, for mask operators
  };

  std::string name;
  uint64_t bytes = 0;
  uint64_t align = 1;
  bool is_constant = false;
  bool is_managed = false;
  bool is_visible = false;          // found by name through the driver API
  std::vector<std::byte> contents;  // shorter than `bytes` if the rest is zero
  std::vector<Pointer> pointers;
};

/// A variable of module scope, or of a function, in shared memory.
struct SharedVariable {
  std::string name;
  uint32_t bytes = 0;
  uint32_t align = 1;
  bool is_dynamic = false;  // .extern without size: takes what the launch adds
};

/// One PTX module, or several linked, in executable form. Knows nothing of devices; addresses are
/// filled in where it is loaded.
struct Program {
  std::vector<std::unique_ptr<Routine>> routines;
  std::vector<GlobalVariable> globals;
  std::vector<SharedVariable> shared;
  std::unordered_map<std::string, uint32_t> routine_index;
  std::unordered_map<std::string, uint32_t> global_index;

  const Routine* find_kernel(const std::string& name) const {
    auto found = routine_index.find(name);
    if (found == routine_index.end()) return nullptr;
    const Routine* routine = routines[found->second].get();
    return routine->is_kernel ? routine : nullptr;
  }
};

/// Device functions have addresses in a window of their own, 16 bytes apart, so that a pointer to
/// a function says which one it is.
inline constexpr uint64_t function_address_step = 16;

}  // namespace fargpu::softgpu
