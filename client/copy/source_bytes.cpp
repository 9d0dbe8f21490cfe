#include "source_bytes.h"

namespace fargpu::client {

std::optional<ReadFrom> SourceBytes::all(const CopySide& rows, const CopyShape& shape) const {
  if (!pinned_) return copy_.reads_pageable_in_order() && may_be_written() ? ReadFrom::when_due : ReadFrom::here;
  const std::uint64_t extent = rows.extent(shape);
  const Run run = first_run(rows.begin(), extent);
  return run.bytes == extent ? std::optional(run.from) : std::nullopt;
}

SourceBytes::Run SourceBytes::first_run(std::uint64_t address, std::uint64_t bytes) const {
  if (memory_.mapped(address)) return {bytes, ReadFrom::at_worker};
  if (settled_) return {bytes, ReadFrom::here};
  if (copy_.reads_pinned_in_order() && may_be_written())
    return {bytes, ReadFrom::when_due};  // behind copies that have written there, too
  const ExpectedBytes::Part part = memory_.newest(address, bytes);
  switch (part.newest) {
    case ExpectedBytes::Newest::at_worker: return {part.bytes, ReadFrom::at_worker};
    case ExpectedBytes::Newest::coming: return {part.bytes, ReadFrom::when_due};
    case ExpectedBytes::Newest::here: break;
  }
  return {part.bytes, ReadFrom::here};
}

}  // namespace fargpu::client
