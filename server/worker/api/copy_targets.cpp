#include "copy_targets.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "copy_sides.h"
#include "protocol/limits.h"
#include "protocol/errors.h"
#include "server/worker/peer/peer_link.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

// --- bytes that are read in chunks ----------------------------------------------------------------------------------

Outcome ChunkedRead::start() {
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

bool ChunkedRead::issue() {
  while (next_ < allowed_ && failure_ == CUDA_SUCCESS) {
    bool has_room = true;
    failure_ = issue_next(has_room);
    if (!has_room) return false;
  }
  issued_ = next_ == chunks_.count() || failure_ != CUDA_SUCCESS;
  if (issued_ && open_ == 0) finish();
  return true;
}

ChunkedRead::Room ChunkedRead::room(StreamState& stream) {
  const std::shared_ptr<Staging> staging = stream.context->staging;
  if (!staging->ready()) return {};
  return {&staging->out(), staging};
}

CUresult ChunkedRead::issue_next(bool& has_room) {
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  session.contexts().make_current(*stream->context);  // a driver that refuses this refuses the copy
  const Room place = room(*stream);
  if (!place.space) return CUDA_ERROR_OUT_OF_MEMORY;
  const RowChunks::Part part = chunks_.part(next_);
  const auto bytes = place.space->take(part.shape.bytes(), copy_.stream);
  has_room = bytes.has_value();
  if (!has_room) return CUDA_SUCCESS;
  const CUresult result =
      copy_rows_out(session, *stream, part.shape, copy_.source.from(part.column, part.row, 0), bytes->data());
  if (result != CUDA_SUCCESS) {
    place.space->give(*bytes);
    return result;
  }
  session.ordering().submitted(*stream);
  ++open_;
  session.completions().after(*stream, Completions::Kind::delivery,
                              [self = shared_from_this(), place, bytes = *bytes, chunk = next_](CUresult done) {
                                self->arrived(chunk, bytes, place, done);
                              });
  ++next_;
  return CUDA_SUCCESS;
}

void ChunkedRead::arrived(std::uint64_t chunk, std::span<std::byte> bytes, const Room& room, CUresult result) {
  const auto give = [room, bytes] { room.space->give(bytes); };
  if (result == CUDA_SUCCESS && failure_ == CUDA_SUCCESS) {
    take_chunk(chunk, bytes, give);
  } else {
    if (failure_ == CUDA_SUCCESS) failure_ = result;
    give();
  }
  if (--open_ == 0 && issued_) finish();
}

void ChunkedRead::finish() {
  if (failure_ != CUDA_SUCCESS) fail();
  copy_.session.finish_behind_deliveries(copy_.call, failure_);
}

FrameTarget::FrameTarget(const CopyToHost& copy) : ChunkedRead(copy, RowChunks(copy.shape, limits::bulk_bytes_max)) {}

void FrameTarget::take_chunk(std::uint64_t, std::span<const std::byte> bytes, std::function<void()> release) {
  copy_.session.output().data(copy_.call, bytes, std::move(release));
}

LaneTarget::LaneTarget(const CopyToHost& copy, std::uint32_t transfer)
    : ChunkedRead(copy, lane_chunks(copy.shape)), transfer_(transfer) {}

// From memory of the GPU, where the card sends from there.
ChunkedRead::Room LaneTarget::room(StreamState& stream) {
  const std::shared_ptr<GpuDirect>& direct = copy_.session.options().direct;
  if (StagingSpace* const space = direct ? direct->out() : nullptr) return {space, direct};
  return ChunkedRead::room(stream);
}

void LaneTarget::take_chunk(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) {
  copy_.session.lanes().send({transfer_, static_cast<std::uint32_t>(chunk)}, bytes, std::move(release));
}

void LaneTarget::fail() { copy_.session.client().end_transfer(transfer_); }

// --- links with other hosts -----------------------------------------------------------------------------------------

PeerTarget::PeerTarget(const CopyToHost& copy, std::shared_ptr<PeerLink> link, std::uint32_t transfer, bool leads)
    : ChunkedRead(copy, lane_chunks(copy.shape)), link_(std::move(link)), transfer_(transfer), leads_(leads) {
  allowed_ = 0;
}

// The side of a copy that leads tells the program of an error; the other one goes quietly.
Outcome PeerTarget::start(StreamState& stream) {
  Session& session = copy_.session;
  if (lane_class(transfer_) != lane_class(copy_.shape))
    throw ProtocolError("a transfer on a link with a number of the other class");
  if (!link_->failure().empty()) return leads_ ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
  if (leads_) {
    held_ = session.ordering().hold(stream);
    session.completions().after(stream, Completions::Kind::signal,
                                [self = self()](CUresult result) { self->begin(result); });
  }
  link_->send(transfer_,
              {.wanted = [self = self()](std::uint32_t chunks) { self->wanted(chunks); },
               .landed = [self = self()] { self->landed(); },
               .lost = [self = self()] { self->end(self->leads_ ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS); }});
  return Outcome::later();
}

ChunkedRead::Room PeerTarget::room(StreamState& stream) {
  link_->pin(copy_.session.driver(), copy_.session.contexts().home_of(*stream.context));
  if (!link_->failure().empty()) return {};
  return {&link_->out(), link_};
}

void PeerTarget::begin(CUresult result) {
  if (over_) return;
  begun_ = true;
  failure_ = result;
  if (failure_ != CUDA_SUCCESS) finish();
  else link_->say_begins(transfer_);
}

void PeerTarget::landed() {
  if (!leads_ || !issued()) throw ProtocolError("a transfer has landed that was not sent");
  end(CUDA_SUCCESS);
}

void PeerTarget::wanted(std::uint64_t chunks) {
  if (over_) return;
  if (!begun_ || chunks > chunks_.count()) throw ProtocolError("chunks of a transfer are wanted that it has not");
  allowed_ = std::max(allowed_, chunks);
  if (chunks == 0 || retrying_) return;
  if (issue()) return;
  retrying_ = true;
  copy_.session.retries().add([self = self()] {
    if (!self->over_ && !self->issue()) return false;
    self->retrying_ = false;
    return true;
  });
}

void PeerTarget::take_chunk(std::uint64_t chunk, std::span<const std::byte> bytes, std::function<void()> release) {
  link_->lanes().send({transfer_, static_cast<std::uint32_t>(chunk)}, bytes, std::move(release));
}

// What cannot be read fails the link: the other end waits for it.
void PeerTarget::finish() {
  if (over_) return;
  if (failure_ != CUDA_SUCCESS) {
    const CUresult failure = failure_;
    end(failure);
    link_->fail("a copy cannot be read at its source");
  } else if (!leads_) {
    end(CUDA_SUCCESS);
  }
}

void PeerTarget::end(CUresult result) {
  if (std::exchange(over_, true)) return;
  if (failure_ == CUDA_SUCCESS) failure_ = result == CUDA_SUCCESS && issued() ? result : CUDA_ERROR_DEVICE_UNAVAILABLE;
  link_->forget(transfer_);
  copy_.session.finish(copy_.call, result);  // before the program can hear that its stream is through
  if (held_) copy_.session.ordering().release(held_);
}

// --- host blocks ----------------------------------------------------------------------------------------------------

namespace {

// In parts; the block's bytes stay where they are meanwhile.
void deliver_block(Session& session, std::uint64_t address, std::uint64_t bytes, std::uint32_t delivery) {
  while (bytes > 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, limits::bulk_bytes_max);
    const std::span<std::byte> memory = session.host_blocks().find(address, part);
    if (memory.empty()) return;  // closed meanwhile
    auto copy = std::make_shared<std::vector<std::byte>>(memory.begin(), memory.end());
    session.client().deliver(
        address, *copy, [copy] {}, delivery);
    session.host_blocks().delivered(address, *copy);
    address += part;
    bytes -= part;
  }
}

// The context that is current stays.
CUresult have_block(Session& session, std::uint64_t address, std::uint64_t bytes) {
  Contexts& contexts = session.contexts();
  ContextState* const before = contexts.current();
  const CUresult result = session.host_blocks().have(address, bytes, [&](std::uint32_t context) {
    ContextState* const own = contexts.find(context);
    return own && contexts.make_current(*own);
  });
  if (before && contexts.current() != before) contexts.make_current(*before);
  return result;
}

}  // namespace

Outcome BlockTarget::start(StreamState& stream, std::uint64_t address) {
  Session& session = copy.session;
  const std::uint64_t bytes = copy.shape.bytes();
  if (const CUresult bad = have_block(session, address, bytes); bad != CUDA_SUCCESS) return bad;
  const std::span<std::byte> memory = session.host_blocks().find(address, bytes);
  const CUresult result = copy_rows_out(session, stream, copy.shape, copy.source, memory.data());
  if (result != CUDA_SUCCESS) return result;
  session.ordering().submitted(stream);
  if (session.host_blocks().shared(address, bytes)) return CUDA_SUCCESS;  // it is the client's own
  session.completions().after(stream, Completions::Kind::delivery,
                              [&session, address, bytes, number = delivery](CUresult done) {
                                if (done == CUDA_SUCCESS) deliver_block(session, address, bytes, number);
                                else session.client().end_delivery(number);
                              });
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server
