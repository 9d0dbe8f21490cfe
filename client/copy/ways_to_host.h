#pragma once
// The ways of a copy from the device to the host, one class each. Copier chooses among them;
// docs/internals/path-of-a-copy.md has them in a table.

#include <deque>
#include <memory>
#include <optional>

#include "client/call/client_lanes.h"
#include "client/call/command_stream.h"
#include "client/call/receiver.h"
#include "client/memory/host_memory.h"
#include "client/memory/shared_staging.h"
#include "client/stream/fences.h"
#include "copy_job.h"

namespace fargpu::client {

/// In data frames before the reply: the bytes are there when this returns, as the program may assume of pageable
/// memory.
struct FrameReply {
  const CopyJob& job;

  CUresult fetch(const CopyPart& part);
};

/// By way of pinned memory that both sides share: the GPU fills some parts of it while this thread empties those
/// before. The rows must be packed.
class StagedReply {
 public:
  StagedReply(const CopyJob& job, SharedStaging& staging, Fences& fences, CommandStream& commands, Receiver& receiver,
              Context& home)
      : job_(job), staging_(staging), fences_(fences), commands_(commands), receiver_(receiver), home_(home) {}
  /// The whole copy.
  CUresult fetch();

 private:
  struct Filling {
    std::shared_ptr<SharedStaging::Slot> slot;
    std::uint64_t target, bytes;
  };
  CUresult ask_for(const CopyPart& part);
  void empty_oldest();

  const CopyJob& job_;
  SharedStaging& staging_;
  Fences& fences_;
  CommandStream& commands_;
  Receiver& receiver_;
  Context& home_;
  std::deque<Filling> filling_;
  bool filled_ = true;
};

/// On the bulk lanes, all there when this returns.
struct LaneReply {
  const CopyJob& job;
  ClientLanes& lanes;

  /// Nothing if other bytes are on their way to the same memory: nothing was asked for.
  std::optional<CUresult> fetch(const CopyPart& part);
};

/// On the bulk lanes, to pinned memory.
struct LaneDelivery {
  const CopyJob& job;
  ClientLanes& lanes;
  HostMemory& memory;
  bool unsure;  ///< as LaneRows

  /// As LaneReply's.
  std::optional<CUresult> ask_for(const CopyPart& part);
};

/// To pinned memory, when the stream has got there and this process reads. The rows must be packed.
struct Delivery {
  const CopyJob& job;
  HostMemory& memory;

  CUresult ask_for(const CopyPart& part);
};

}  // namespace fargpu::client
