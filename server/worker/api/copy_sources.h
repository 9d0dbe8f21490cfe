#pragma once
// Where the bytes of a copy to the device come from, one class for each. docs/internals/path-of-a-copy.md has them in a
// table.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "copy_targets.h"
#include "protocol/copy.h"
#include "protocol/row_chunks.h"
#include "server/worker/call/call.h"
#include "server/worker/call/client_requests.h"

namespace fargpu::server {

class PeerLink;
class Session;
struct HeldCall;
struct StreamState;

/// An admitted copy to the device, by the names that the client has: stream and array may be gone when the bytes are
/// there.
struct CopyToDevice {
  Session& session;
  CallId call;
  std::uint64_t stream;
  CopyShape shape;
  CopySide target;
  bool taken_for_done;  ///< the program goes on as if it were done
};

/// In the frame of the call, or in staging memory of the context, where they were received.
struct FrameSource {
  const CopyToDevice& copy;

  Outcome start(StreamState& stream, std::span<std::byte> bytes, bool staged);
};

/// In the frame, where there is no room in staging memory: kept until the stream gets there, for which the stream is
/// held, because the driver might make all calls wait until then.
class KeptSource : public std::enable_shared_from_this<KeptSource> {
 public:
  KeptSource(const CopyToDevice& copy, std::shared_ptr<const HeldCall> call) : copy_(copy), kept_(std::move(call)) {}
  Outcome start(StreamState& stream);

 private:
  void finish(CUresult result);

  const CopyToDevice copy_;
  const std::shared_ptr<const HeldCall> kept_;
  std::uint64_t held_ = 0;
};

/// In the frame, with what the client knew to be there. What is there by now is copied out and compared, and changed
/// words are copied in, some at a time. Between the two the GPU may change a word once more, which nobody notices. The
/// stream is held until all have been given to it, and, if the program takes the copy for done, whatever comes later in
/// the context.
class ChangesSource final : public ChunkedRead {
 public:
  /// `call`: with the bytes, and behind them the known ones.
  ChangesSource(const CopyToDevice& copy, std::shared_ptr<const HeldCall> call);
  Outcome start(StreamState& stream);

 private:
  void take_chunk(std::uint64_t chunk, std::span<const std::byte> there, std::function<void()> release) override;
  void finish() override;
  void go_on(CUresult result);

  std::shared_ptr<ChangesSource> self() { return std::static_pointer_cast<ChangesSource>(shared_from_this()); }

  const std::shared_ptr<const HeldCall> kept_;
  std::span<const std::byte> now_, known_;  // of its bytes
  const CopySide target_;
  const bool taken_for_done_;
  std::uint64_t copy_held_ = 0;
  std::uint64_t lost_ = 0;  // the first word that the GPU had changed; 0 if there is none
  struct Run {
    std::size_t offset, bytes;
  };
  std::vector<Run> runs_;
  std::size_t next_run_ = 0;
};

/// In what the worker has of a host block.
struct BlockSource {
  const CopyToDevice& copy;

  Outcome start(StreamState& stream, std::uint64_t address);
};

/// On the bulk lanes, in whatever order. The stream is held until all are there, and, if the program takes the copy for
/// done, whatever comes later in the context.
class LaneSource : public std::enable_shared_from_this<LaneSource> {
 public:
  explicit LaneSource(const CopyToDevice& copy) : copy_(copy), chunks_(lane_chunks(copy.shape)) {}
  /// `early` chunks come unasked. `in_order`: the others are asked for when what the stream was given before is
  /// complete.
  Outcome start(StreamState& stream, std::uint32_t transfer, std::uint32_t early, bool in_order);

 private:
  void receive(std::uint32_t early, bool in_order);
  void take(std::uint64_t chunk, std::span<std::byte> slot);

  const CopyToDevice copy_;
  const RowChunks chunks_;
  std::uint32_t transfer_ = 0;
  std::uint64_t missing_ = 0;  // chunks
  std::uint64_t held_ = 0;
  CUresult failure_ = CUDA_SUCCESS;
};

/// At the worker of another host, which sends them by a link when it is asked. If this copy leads, that is when its
/// stream gets here, and the stream is held until all are there; if not, it is when the other side's stream has got to
/// its place.
class PeerSource : public std::enable_shared_from_this<PeerSource> {
 public:
  PeerSource(const CopyToDevice& copy, std::shared_ptr<PeerLink> link, std::uint32_t transfer, bool leads)
      : copy_(copy),
        link_(std::move(link)),
        transfer_(transfer),
        leads_(leads),
        chunks_(lane_chunks(copy.shape)),
        missing_(chunks_.count()) {}
  Outcome start(StreamState& stream);

 private:
  void receive();
  void take(std::uint64_t chunk, std::span<std::byte> slot);
  void end(CUresult result);

  const CopyToDevice copy_;
  const std::shared_ptr<PeerLink> link_;
  const std::uint32_t transfer_;
  const bool leads_;
  const RowChunks chunks_;
  std::uint64_t missing_;  // chunks
  std::uint64_t held_ = 0;
  CUresult failure_ = CUDA_SUCCESS;
  bool begun_ = false;
  bool over_ = false;
};

/// In memory of the client, which is asked for them when the stream gets there. The stream is held until they are
/// there.
class PulledSource : public std::enable_shared_from_this<PulledSource> {
 public:
  /// `source` is pinned memory, or a part, which is released in the end.
  PulledSource(const CopyToDevice& copy, const CopySide& source);
  Outcome start(StreamState& stream);

 private:
  void take(const std::vector<std::byte>& bytes);
  void finish(CUresult result);

  const CopyToDevice copy_;
  const ClientRequests::Wanted wanted_;
  std::uint64_t held_ = 0;
};

}  // namespace fargpu::server
