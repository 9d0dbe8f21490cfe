#pragma once
// The arguments of a kernel.

#include <cuda.h>

#include <cstddef>
#include <span>

#include "functions.h"

namespace fargpu::client {

class Calls;
class HostMemory;
class ManagedMemory;
class Thread;
class WholeSystemWork;

/// Gathers a kernel's arguments into one block, laid out as its metadata says. `params` points to the arguments
/// (kernelParams) or `extra` to a block that is laid out already; exactly one of them may be given unless the kernel
/// has no parameters. The block is valid until the thread gathers again. Returns CUDA_ERROR_INVALID_VALUE for
/// contradictory arguments.
CUresult gather_arguments(const Function& function, void** params, void** extra, std::span<const std::byte>& block);

struct MemoryParts {
  Calls& calls;
  HostMemory& host;
  const ManagedMemory& managed;
  WholeSystemWork& whole_system;
};

/// What a kernel's memory needs before it is launched. Pinned memory whose address the arguments have becomes reachable
/// for kernels, where that is evidence of its use. Where a parameter of 8 bytes has that of registered memory,
/// `arguments` then have the address by which kernels know it. Where the kernel may use memory of which this process
/// has a copy, the worker is asked, once, to look for code that expects one memory, and pinned memory is paged from
/// then on (WholeSystemWork).
CUresult prepare_memory(const MemoryParts& parts, Thread& thread, Function& function,
                        std::span<const std::byte>& arguments);

}  // namespace fargpu::client
