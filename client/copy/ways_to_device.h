#pragma once
// The ways of a copy from the host to the device, one class each. Copier chooses among them;
// docs/internals/path-of-a-copy.md has them in a table.

#include <optional>

#include "client/call/client_lanes.h"
#include "client/call/command_stream.h"
#include "client/objects/graph_parts.h"
#include "client/memory/host_memory.h"
#include "client/memory/shared_staging.h"
#include "client/stream/fences.h"
#include "copy_job.h"

namespace fargpu::client {

/// In the frame of the call, as they are now.
struct FrameBytes {
  const CopyJob& job;
  bool gathers;  ///< into a buffer first, because other threads may take the memory's pages away while it is sent

  CUresult send(const CopyPart& part);
  /// Sends nothing, and returns nothing, where the worker makes no room for them.
  std::optional<CUresult> send_if_room(const CopyPart& part);

 private:
  std::optional<CUresult> send(const CopyPart& part, bool if_room);
};

/// By way of pinned memory that both sides share, as they are now. No lock is held while they are read. The rows must
/// be packed.
struct StagedBytes {
  const CopyJob& job;
  SharedStaging& staging;
  Fences& fences;
  Context& home;

  /// Nothing if there is no room there.
  std::optional<CUresult> send(const CopyPart& part);
};

/// On the bulk lanes. Memory of which the program may do what it likes after its call has been read when this returns;
/// pinned memory is read while it travels, and a wait for its stream is one until it has been read (Waits).
struct LaneBytes {
  const CopyJob& job;
  ClientLanes& lanes;
  CommandStream& commands;
  bool awaited;             ///< they have been read when this returns
  bool in_order;            ///< they are read when the stream gets there
  bool unsure, of_no_file;  ///< as LaneRows

  /// Nothing for memory that cannot be read; nothing that counts has been copied then.
  std::optional<CUresult> send(const CopyPart& part);
};

/// What the worker has of a host block. Packed.
struct BlockBytes {
  const CopyJob& job;
  HostMemory& memory;

  CUresult send(const CopyPart& part);
};

/// Pinned memory that the worker asks for when the stream gets there. One row.
struct PulledBytes {
  const CopyJob& job;

  CUresult send(const CopyPart& part);
};

/// Other memory that the worker asks for when the stream gets there: it can do so by the number of a part only.
struct PulledPart {
  const CopyJob& job;
  GraphParts& graph_parts;

  CUresult send(const CopyPart& part);
};

}  // namespace fargpu::client
