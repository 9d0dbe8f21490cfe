#pragma once
// One copy of the program: what memory its sides are, and which way it goes.

#include <optional>
#include <type_traits>

#include "client/call/calls.h"
#include "client/call/client_lanes.h"
#include "client/memory/host_memory.h"
#include "client/memory/managed_memory.h"
#include "client/memory/memory_map.h"
#include "client/memory/program_memory.h"
#include "client/memory/shared_memory.h"
#include "client/memory/shared_staging.h"
#include "client/objects/capture.h"
#include "client/objects/contexts.h"
#include "client/objects/graph_parts.h"
#include "client/stream/fences.h"
#include "client/stream/pending_writers.h"
#include "client/stream/settler.h"
#include "client/stream/whole_system_work.h"
#include "copy_job.h"
#include "source_bytes.h"

namespace fargpu::client {

/// What copies use of a session.
struct CopyParts {
  Calls& calls;
  ClientLanes& lanes;
  Contexts& contexts;
  Captures& captures;
  Fences& fences;
  Settler& waits;
  PendingWriters writers;
  ProgramMemory program;
  HostMemory& host_memory;
  ManagedMemory& managed;
  WholeSystemWork& whole_system_work;
  const SharedMemory& shared_memory;
  SharedStaging& staging;
  GraphParts& graph_parts;
  const bool shares_memory;  ///< client and worker do
};

class Copier {
 public:
  Copier(const CopyParts& parts, Thread& thread, Stream& stream, const Copy& copy)
      : parts_(parts), job_{thread, stream, copy} {}

  /// Whether run() will find everything there.
  CUresult check();
  CUresult run();

 private:
  enum class Memory {
    unusable,  ///< none that the program may copy from or to
    device,    ///< or an array, or memory of the host that the worker has by its address
    pinned,
    pageable,
  };
  /// What the client knows of a side.
  struct Known {
    std::optional<Region> region;  ///< nothing of an array, and of memory that CUDA does not know
    bool at_worker = false;        ///< memory of the host whose pages the worker has

    bool seen_by_host() const;  ///< the host sees what work does there
  };

  Known look_up(const CopySide& side) const;
  Memory memory_of(const CopySide& side, const Known& known) const;
  bool read_from_own_pages(const CopySide& side, const Known& known) const;
  void send_changes_to(const CopySide& side, const Known& known);
  bool use_own_pages_of_source();

  CUresult capture(Memory source, Memory target);
  CUresult within_device();
  CUresult within_host();
  CUresult to_device(Memory source);
  CUresult send(const SourceBytes& source);
  CUresult send_by_runs(const SourceBytes& source, const CopyPart& part);
  CUresult send_run(const SourceBytes& source, ReadFrom from, const CopyPart& run);
  CUresult send_frame(const SourceBytes& source, const CopyPart& part);
  CUresult to_host(Memory target, bool awaited);
  bool goes_by_lanes(bool awaited, bool to_worker) const;
  bool unsure(const Known& host) const;
  template <class Step>
  std::invoke_result_t<Step, const CopyPart&> for_slices(Step&& step) const;
  std::optional<CUresult> send_by_lanes(const SourceBytes& source);
  std::optional<CUresult> fetch_by_lanes(bool awaited);
  bool goes_through_staging(const CopySide& host) const;

  const CopyParts& parts_;
  CopyJob job_;
  Known source_;
  Known target_;
  bool gathers_ = false;  // the source into a buffer first
};

}  // namespace fargpu::client
