#include "source_bytes.h"

namespace fargpu::client {

bool SourceBytes::all_here(const CopySide& rows, const CopyShape& shape) const {
  if (!pinned_) return !copy_.reads_pageable_in_order() || !writers_.any();
  if (copy_.reads_pinned_in_order() && writers_.functions()) return false;
  const std::uint64_t extent = rows.extent(shape);
  const HostMemory::Part part = memory_.newest(rows.place, extent);
  return !memory_.mapped(rows.place) && !part.worker_newer && part.bytes == extent;
}

SourceBytes::Run SourceBytes::first_run(std::uint64_t address, std::uint64_t bytes) const {
  if (memory_.mapped(address)) return {bytes, Newest::at_worker};
  if (copy_.reads_pinned_in_order() && writers_.graphs()) return {bytes, Newest::later};  // they may write there yet
  const HostMemory::Part part = memory_.newest(address, bytes);
  if (part.worker_newer) return {part.bytes, Newest::at_worker};
  return {part.bytes, copy_.reads_pinned_in_order() && writers_.functions() ? Newest::later : Newest::here};
}

}  // namespace fargpu::client
