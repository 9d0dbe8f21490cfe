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

/// In chunks through the staging ring, as it has room. While chunks are missing the stream is held, so that later work
/// on it cannot change what is still to be copied.
class SentTarget : public std::enable_shared_from_this<SentTarget> {
 public:
  SentTarget(const CopyToHost& copy, const RowChunks& chunks) : copy_(copy), chunks_(chunks) {}
  virtual ~SentTarget() = default;
  Outcome start();

 protected:
  const CopyToHost copy_;

 private:
  /// Sends a chunk; `release` when it has left.
  virtual void send(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) = 0;
  /// No more chunks come.
  virtual void fail() {}

  bool issue();
  CUresult issue_next(bool& room);
  void arrived(std::uint64_t chunk, std::span<std::byte> bytes, const std::shared_ptr<Staging>& staging,
               CUresult result);
  void finish();

  const RowChunks chunks_;
  std::uint64_t next_ = 0;
  std::size_t open_ = 0;
  bool issued_ = false;
  std::uint64_t held_ = 0;
  CUresult failure_ = CUDA_SUCCESS;
};

/// Data frames before the reply.
class FrameTarget final : public SentTarget {
 public:
  explicit FrameTarget(const CopyToHost& copy);

 private:
  void send(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) override;
};

/// A transfer on the bulk lanes.
class LaneTarget final : public SentTarget {
 public:
  LaneTarget(const CopyToHost& copy, std::uint32_t transfer);

 private:
  void send(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) override;
  void fail() override;

  const std::uint32_t transfer_;
};

/// What the worker has of a host block; from there the bytes are delivered to the client, but for a block that is
/// shared.
struct BlockTarget {
  const CopyToHost& copy;

  Outcome start(StreamState& stream, std::uint64_t address);
};

}  // namespace fargpu::server
