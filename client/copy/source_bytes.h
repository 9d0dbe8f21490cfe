#pragma once
// Pending work and threads that may still write the memory that a copy to the device reads.

#include <cstdint>
#include <optional>

#include "client/memory/host_memory.h"
#include "client/stream/pending_writers.h"
#include "program_copy.h"

namespace fargpu::client {

/// Where the bytes are that a copy is to read, which counts when its stream gets there, unless the copy says otherwise.
enum class ReadFrom {
  here,       ///< in this process, now: nothing has newer ones, and nothing that work waits for may write some
  at_worker,  ///< in what the worker has of the host block
  when_due,  ///< in this process when the stream gets there: host functions, graphs or copies may write them until then
};

/// Pinned memory may differ from row to row, and within a row.
class SourceBytes {
 public:
  /// `settled`: the work that the copy comes behind is over.
  SourceBytes(const HostMemory& memory, const PendingWriters& writers, const Copy& copy, bool pinned, bool settled)
      : memory_(memory), writers_(writers), copy_(copy), pinned_(pinned), settled_(settled) {}

  bool pinned() const { return pinned_; }
  /// Where all of them are, if one answer holds.
  std::optional<ReadFrom> all(const CopySide& rows, const CopyShape& shape) const;
  bool all_here(const CopySide& rows, const CopyShape& shape) const { return all(rows, shape) == ReadFrom::here; }
  /// The first bytes of a row for which one answer holds.
  struct Run {
    std::uint64_t bytes;
    ReadFrom from;
  };
  Run first_run(std::uint64_t address, std::uint64_t bytes) const;

 private:
  bool may_be_written() const { return writers_.any() || writers_.kernels(); }

  const HostMemory& memory_;
  const PendingWriters& writers_;
  const Copy& copy_;
  const bool pinned_;
  const bool settled_;
};

}  // namespace fargpu::client
