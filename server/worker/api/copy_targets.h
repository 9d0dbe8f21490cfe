#pragma once
// Where the bytes of a copy from the device go, one class for each. docs/internals/path-of-a-copy.md has them in a
// table.

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <span>

#include "protocol/copy.h"
#include "protocol/row_chunks.h"
#include "server/worker/call/call.h"
#include "server/worker/memory/staging.h"

namespace fargpu::server {

class PeerLink;
class Session;
struct StreamState;

/// An admitted copy from the device, by the names that the client has: stream and array may be gone before all is
/// copied.
struct CopyToHost {
  Session& session;
  CallId call;
  std::uint64_t stream;
  CopyShape shape;
  CopySide source;
};

/// Memory of the device is read in chunks through staging memory, as there is room. While chunks are missing the stream
/// is held, so that later work on it cannot change what is still to be copied.
class ChunkedRead : public std::enable_shared_from_this<ChunkedRead> {
 public:
  ChunkedRead(const CopyToHost& copy, const RowChunks& chunks) : copy_(copy), chunks_(chunks) {}
  virtual ~ChunkedRead() = default;
  Outcome start();

 protected:
  /// Gives as much to the driver as there is room for. True when there is nothing left to give now.
  bool issue();
  /// All chunks were given.
  bool issued() const { return issued_; }

  const CopyToHost copy_;
  const RowChunks chunks_;
  std::uint64_t allowed_ = chunks_.count();  ///< chunks that may be given yet
  std::uint64_t held_ = 0;
  CUresult failure_ = CUDA_SUCCESS;

  /// Where chunks lie meanwhile, and what keeps that there. No space: there is no memory for it.
  struct Room {
    StagingSpace* space = nullptr;
    std::shared_ptr<void> keeper;
  };

  virtual Room room(StreamState& stream);

 private:
  /// A chunk has been read; `release` when its bytes are not needed any more.
  virtual void take_chunk(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) = 0;
  /// No more chunks come.
  virtual void fail() {}
  /// All chunks were taken, or none will be any more.
  virtual void finish();

  CUresult issue_next(bool& has_room);
  void arrived(std::uint64_t chunk, std::span<std::byte> bytes, const Room& room, CUresult result);

  std::uint64_t next_ = 0;
  std::size_t open_ = 0;
  bool issued_ = false;
};

/// Data frames before the reply.
class FrameTarget final : public ChunkedRead {
 public:
  explicit FrameTarget(const CopyToHost& copy);

 private:
  void take_chunk(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) override;
};

/// A transfer on the bulk lanes.
class LaneTarget final : public ChunkedRead {
 public:
  LaneTarget(const CopyToHost& copy, std::uint32_t transfer);

 private:
  Room room(StreamState& stream) override;
  void take_chunk(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) override;
  void fail() override;

  const std::uint32_t transfer_;
};

/// A transfer on a link to the worker of another host, which asks for the chunks when there is room for them there. If
/// this copy leads, the transfer begins when its stream gets here, and the stream waits until all has landed.
class PeerTarget final : public ChunkedRead {
 public:
  PeerTarget(const CopyToHost& copy, std::shared_ptr<PeerLink> link, std::uint32_t transfer, bool leads);
  Outcome start(StreamState& stream);

 private:
  Room room(StreamState& stream) override;
  void take_chunk(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) override;
  void finish() override;
  void begin(CUresult result);
  void wanted(std::uint64_t chunks);
  void landed();
  void end(CUresult result);

  std::shared_ptr<PeerTarget> self() { return std::static_pointer_cast<PeerTarget>(shared_from_this()); }

  const std::shared_ptr<PeerLink> link_;
  const std::uint32_t transfer_;
  const bool leads_;
  bool begun_ = !leads_;
  bool retrying_ = false;
  bool over_ = false;
};

/// What the worker has of a host block; from there the bytes are delivered to the client, but for a block that is
/// shared.
struct BlockTarget {
  const CopyToHost& copy;
  std::uint32_t delivery;  ///< the client's number of what is delivered; 0: none

  Outcome start(StreamState& stream, std::uint64_t address);
};

}  // namespace fargpu::server
