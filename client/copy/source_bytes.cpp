#include "source_bytes.h"

namespace fargpu::client {

std::optional<Newest> SourceBytes::all(const CopySide& rows, const CopyShape& shape) const {
  if (!pinned_) return copy_.reads_pageable_in_order() && writers_.any() ? Newest::later : Newest::here;
  const std::uint64_t extent = rows.extent(shape);
  const Run run = first_run(rows.begin(), extent);
  return run.bytes == extent ? std::optional(run.newest) : std::nullopt;
}

SourceBytes::Run SourceBytes::first_run(std::uint64_t address, std::uint64_t bytes) const {
  if (memory_.mapped(address)) return {bytes, Newest::at_worker};
  if (settled_) return {bytes, Newest::here};
  if (copy_.reads_pinned_in_order() && (writers_.any() || writers_.kernels()))
    return {bytes, Newest::later};  // behind copies that have written there, too
  const HostMemory::Part part = memory_.newest(address, bytes);
  switch (part.newest) {
    case HostMemory::Newest::at_worker: return {part.bytes, Newest::at_worker};
    case HostMemory::Newest::coming: return {part.bytes, Newest::later};
    case HostMemory::Newest::here: break;
  }
  return {part.bytes, Newest::here};
}

}  // namespace fargpu::client
