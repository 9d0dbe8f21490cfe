#pragma once
// Pending work and threads that may still write the memory that a copy to the device reads.

#include <cstdint>
#include <optional>

#include "client/memory/host_memory.h"
#include "client/objects/graphs.h"
#include "client/stream/callbacks.h"
#include "client/stream/stream_waits.h"
#include "client/stream/whole_system_work.h"
#include "program_copy.h"

namespace fargpu::client {

/// What of this process may still write its memory: host functions, values that the GPU waits for, graphs that are
/// launched; and the program itself, for which a kernel with operations of the whole system may be waiting.
class PendingWriters {
 public:
  PendingWriters(const Callbacks& callbacks, const StreamWaits& waits, const Graphs& graphs,
                 const WholeSystemWork& kernels)
      : callbacks_(callbacks), waits_(waits), graphs_(graphs), kernels_(kernels) {}
  bool functions() const { return callbacks_.any_waiting() || waits_.any(); }
  bool graphs() const { return graphs_.any_launched(); }
  bool kernels() const { return kernels_.under_way(); }
  bool any() const { return functions() || graphs(); }

 private:
  const Callbacks& callbacks_;
  const StreamWaits& waits_;
  const Graphs& graphs_;
  const WholeSystemWork& kernels_;
};

/// Where the bytes are that a copy is to read, which counts when its stream gets there, unless the copy says otherwise.
enum class Newest {
  here,       ///< in this process, now: nothing has newer ones, and nothing that work waits for may write some
  at_worker,  ///< in what the worker has of the host block
  later,  ///< in this process when the stream gets there: host functions, graphs or copies may write them until then
};

/// Pinned memory may differ from row to row, and within a row.
class SourceBytes {
 public:
  /// `settled`: the work that the copy comes behind is over.
  SourceBytes(const HostMemory& memory, const PendingWriters& writers, const Copy& copy, bool pinned, bool settled)
      : memory_(memory), writers_(writers), copy_(copy), pinned_(pinned), settled_(settled) {}

  bool pinned() const { return pinned_; }
  /// Where all of them are, if one answer holds.
  std::optional<Newest> all(const CopySide& rows, const CopyShape& shape) const;
  bool all_here(const CopySide& rows, const CopyShape& shape) const { return all(rows, shape) == Newest::here; }
  /// The first bytes of a row for which one answer holds.
  struct Run {
    std::uint64_t bytes;
    Newest newest;
  };
  Run first_run(std::uint64_t address, std::uint64_t bytes) const;

 private:
  const HostMemory& memory_;
  const PendingWriters& writers_;
  const Copy& copy_;
  const bool pinned_;
  const bool settled_;
};

}  // namespace fargpu::client
