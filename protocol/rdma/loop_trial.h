#pragma once
// What devices carry between two ends in this process, from memory of one kind to memory of the same kind: to find out
// whether they reach memory of a GPU at all, and how fast.

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "context.h"

namespace fargpu::rdma {

/// Bytes in a second from `source`, which is overwritten, and has no more than a ring, to a ring of
/// limits::rdma_ring_bytes: `ring`, if both are memory of a GPU; null: both are the host's. All that has arrived is
/// compared with what was sent. Throws RdmaError if it differs, and if nothing arrives in this time, which does not
/// count what UCX takes to register memory; and DeviceBytesError.
double try_loop(const std::shared_ptr<OpenedDevices>& devices, std::span<std::byte> source,
                const std::shared_ptr<std::byte>& ring, std::chrono::milliseconds time);

}  // namespace fargpu::rdma
