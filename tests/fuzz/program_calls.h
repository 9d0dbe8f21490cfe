#pragma once
// A program's calls of the driver, by numbers: what an input has a client do before a host that
// says anything.

#include <cuda.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "guarded.h"

namespace fargpu::fuzz {

/// What the calls of one input have made so far. All of them may be made in any order: what is not
/// there is null.
struct Program {
  explicit Program(Guarded& memory) : lent(memory) {}
  Guarded& lent;
  CUcontext context = nullptr, other_context = nullptr;
  CUgreenCtx green = nullptr;
  CUdeviceptr small = 0, large = 0, managed = 0, pooled = 0, window = 0, opened = 0, variable = 0;
  std::array<CUstream, 2> streams{};
  std::array<CUevent, 2> events{};
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUlibrary loaded = nullptr;
  CUkernel kernel = nullptr;
  CUlinkState link = nullptr;
  CUgraph graph = nullptr, captured = nullptr;
  CUgraphNode node = nullptr, kernel_node = nullptr, copy_node = nullptr, host_node = nullptr;
  CUgraphExec exec = nullptr;
  CUuserObject object = nullptr;
  CUmemoryPool pool = nullptr;
  CUmemGenericAllocationHandle allocation = 0;
  CUarray array = nullptr;
  CUmipmappedArray mipmap = nullptr;
  CUtexObject texture = 0;
  CUsurfObject surface = 0;
  CUdevResource resource{};
  void *pinned = nullptr, *large_pinned = nullptr;
  std::byte* registered = nullptr;
  static constexpr std::size_t small_bytes = 4096, large_bytes = 4u << 20, pinned_bytes = 8192,
                               large_pinned_bytes = 2u << 20, registered_bytes = 6000, managed_bytes = 200'000,
                               window_bytes = 2u << 20;
};

/// How many there are.
std::size_t call_count();
/// Makes the calls of this number, modulo how many there are.
void make_calls(Program& program, std::uint8_t number);
/// The numbers of calls by their names.
std::vector<std::uint8_t> calls_named(std::initializer_list<const char*> names);
/// All names, for seeds of one kind of call each.
std::vector<const char*> call_names();

/// Makes the primary context of device 0 current.
void begin_calls(Program& program);

}  // namespace fargpu::fuzz
