#pragma once
// Kernel arguments and launch attributes on their way to the wire.

#include <cuda.h>

#include <optional>
#include <span>
#include <vector>

#include "functions.h"
#include "operations.capnp.h"

namespace fargpu::client {

class Thread;

/// Gathers a kernel's arguments into one block, laid out as its metadata says. `params` points to the arguments (kernelParams) or
/// `extra` to a block that is laid out already; exactly one of them may be given unless the kernel has no parameters.
/// The block is valid until the thread gathers again. Returns CUDA_ERROR_INVALID_VALUE for contradictory arguments.
CUresult gather_arguments(const Function& function, void** params, void** extra, std::span<const std::byte>& block);

/// Addresses of pinned memory among the arguments show that the kernel means to use it: makes it reachable.
CUresult map_argument_blocks(Thread& thread, std::span<const std::byte> arguments);

/// One launch attribute, of a kind that can travel (cuda_facts.h), there and back.
CUresult write_attribute(Thread& thread, const CUlaunchAttribute& attribute, wire::LaunchAttribute::Builder out);
void read_attribute(wire::LaunchAttribute::Reader in, CUlaunchAttributeValue& value);
/// Writes launch attributes; CUDA_ERROR_NOT_SUPPORTED, said once, for one that cannot travel.
CUresult write_attributes(Thread& thread, const CUlaunchAttribute* attributes, unsigned count,
                          capnp::List<wire::LaunchAttribute>::Builder list);

/// Fingerprint of what decides, besides the function, whether a launch is accepted.
class LaunchClass {
 public:
  void add(std::uint64_t value) {
    hash_ ^= value + 0x9E3779B97F4A7C15 + (hash_ << 6) + (hash_ >> 2);
    hash_ *= 0xFF51AFD7ED558CCD;
  }
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const { return hash_ ? hash_ : 1; }

 private:
  std::uint64_t hash_ = 0x243F6A8885A308D3;
};

/// Fingerprint of a block with its shared memory and cluster, of which the driver has said that the device has room for some.
std::uint64_t fit_of(const Context& context, const unsigned (&block)[3], unsigned shared_bytes, const unsigned (&cluster)[3]);

}  // namespace fargpu::client
