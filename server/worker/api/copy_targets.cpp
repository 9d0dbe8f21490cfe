#include "copy_targets.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "copy_sides.h"
#include "protocol/limits.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

// --- bytes that are sent --------------------------------------------------------------------------------------------

Outcome SentTarget::start() {
  Session& session = copy_.session;
  if (issue()) return Outcome::later();
  held_ = session.ordering().hold(*session.contexts().stream(copy_.stream, copy_.call.context));
  session.retries().add([&session, self = shared_from_this()] {
    if (!self->issue()) return false;
    session.ordering().release(self->held_);
    return true;
  });
  return Outcome::later();
}

// Gives as much to the driver as there is room for. True when there is nothing left to give.
bool SentTarget::issue() {
  while (next_ < chunks_.count() && failure_ == CUDA_SUCCESS) {
    bool room = true;
    failure_ = issue_next(room);
    if (!room) return false;
  }
  issued_ = true;
  if (open_ == 0) finish();
  return true;
}

CUresult SentTarget::issue_next(bool& room) {
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  session.contexts().make_current(*stream->context);  // a driver that refuses this refuses the copy
  const std::shared_ptr<Staging> staging = stream->context->staging;
  if (!staging->ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  const RowChunks::Part part = chunks_.part(next_);
  const auto bytes = staging->out().take(part.shape.bytes());
  room = bytes.has_value();
  if (!room) return CUDA_SUCCESS;
  const CUresult result =
      copy_rows_out(session, *stream, part.shape, copy_.source.from(part.column, part.row, 0), bytes->data());
  if (result != CUDA_SUCCESS) {
    staging->out().give(*bytes);
    return result;
  }
  session.ordering().submitted(*stream);
  ++open_;
  session.completions().after(*stream, Completions::Kind::delivery,
                              [self = shared_from_this(), staging, bytes = *bytes, chunk = next_](CUresult done) {
                                self->arrived(chunk, bytes, staging, done);
                              });
  ++next_;
  return CUDA_SUCCESS;
}

void SentTarget::arrived(std::uint64_t chunk, std::span<std::byte> bytes, const std::shared_ptr<Staging>& staging,
                         CUresult result) {
  const auto give = [staging, bytes] { staging->out().give(bytes); };
  if (result == CUDA_SUCCESS && failure_ == CUDA_SUCCESS) {
    send(chunk, bytes, give);
  } else {
    if (failure_ == CUDA_SUCCESS) failure_ = result;
    give();
  }
  if (--open_ == 0 && issued_) finish();
}

void SentTarget::finish() {
  if (failure_ != CUDA_SUCCESS) fail();
  copy_.session.deliveries().send_changes();
  copy_.session.finish(copy_.call, failure_);
}

FrameTarget::FrameTarget(const CopyToHost& copy) : SentTarget(copy, RowChunks(copy.shape, limits::bulk_bytes_max)) {}

void FrameTarget::send(std::uint64_t, std::span<const std::byte> bytes, std::function<void()> release) {
  copy_.session.output().data(copy_.call, bytes, std::move(release));
}

LaneTarget::LaneTarget(const CopyToHost& copy, std::uint32_t transfer)
    : SentTarget(copy, lane_chunks(copy.shape)), transfer_(transfer) {}

void LaneTarget::send(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) {
  copy_.session.lanes().send({transfer_, static_cast<std::uint32_t>(chunk)}, bytes, std::move(release));
}

void LaneTarget::fail() { copy_.session.client().end_transfer(transfer_); }

// --- host blocks ----------------------------------------------------------------------------------------------------

namespace {

// In parts; the block's bytes stay where they are meanwhile.
void deliver_block(Session& session, std::uint64_t address, std::uint64_t bytes) {
  while (bytes > 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, limits::bulk_bytes_max);
    const std::span<std::byte> memory = session.host_blocks().find(address, part);
    if (memory.empty()) return;  // closed meanwhile
    auto copy = std::make_shared<std::vector<std::byte>>(memory.begin(), memory.end());
    session.client().deliver(address, *copy, [copy] {});
    session.host_blocks().delivered(address, part);
    address += part;
    bytes -= part;
  }
}

}  // namespace

Outcome BlockTarget::start(StreamState& stream, std::uint64_t address) {
  Session& session = copy.session;
  const std::uint64_t bytes = copy.shape.bytes();
  const std::span<std::byte> memory = session.host_blocks().find(address, bytes);
  if (memory.size() != bytes) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = copy_rows_out(session, stream, copy.shape, copy.source, memory.data());
  if (result != CUDA_SUCCESS) return result;
  session.ordering().submitted(stream);
  if (session.host_blocks().shared(address, bytes)) return CUDA_SUCCESS;  // it is the client's own
  session.completions().after(stream, Completions::Kind::delivery, [&session, address, bytes](CUresult done) {
    if (done == CUDA_SUCCESS) deliver_block(session, address, bytes);
  });
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server
