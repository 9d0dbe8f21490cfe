#include "copy_sources.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "copy_sides.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "server/worker/order/held_calls.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

namespace {

/// Copies a chunk that has come to where it belongs, unless an earlier one has failed. `give` runs when the slot is not
/// needed any more. Returns what went wrong, of this chunk or before.
CUresult copy_chunk_in(const CopyToDevice& copy, StreamState* stream, const RowChunks::Part& part,
                       std::span<std::byte> slot, CUresult failure, const std::function<void()>& give) {
  Session& session = copy.session;
  if (failure == CUDA_SUCCESS && (!stream || !session.contexts().make_current(*stream->context)))
    failure = CUDA_ERROR_INVALID_HANDLE;
  if (failure == CUDA_SUCCESS)
    failure = copy_rows_in(session, *stream, part.shape, copy.target.from(part.column, part.row, 0), slot.data());
  if (failure != CUDA_SUCCESS) {
    give();
    return failure;
  }
  session.ordering().submitted(*stream);
  session.completions().after(*stream, Completions::Kind::release, [give](CUresult) { give(); });
  return CUDA_SUCCESS;
}

}  // namespace

Outcome FrameSource::start(StreamState& stream, std::span<std::byte> bytes, bool staged) {
  if (bytes.size() != copy.shape.bytes()) throw ProtocolError("a copy with too few or too many bytes");
  Session& session = copy.session;
  const CUresult result = copy_rows_in(session, stream, copy.shape, copy.target, bytes.data());
  if (result != CUDA_SUCCESS) return result;
  session.ordering().submitted(stream);
  // From ordinary memory the driver has taken the bytes by now; from staging they go at their own time.
  if (staged) {
    session.completions().after(stream, Completions::Kind::release,
                                [staging = stream.context->staging, bytes](CUresult) { staging->in().give(bytes); });
  }
  if (copy.taken_for_done) session.ordering().take_for_done(stream);
  return CUDA_SUCCESS;
}

Outcome KeptSource::start(StreamState& stream) {
  if (kept_->bulk.size() != copy_.shape.bytes()) throw ProtocolError("a copy with too few or too many bytes");
  held_ = copy_.session.ordering().hold_for_copy(stream, copy_.taken_for_done);
  copy_.session.completions().after(stream, Completions::Kind::signal,
                                    [self = shared_from_this()](CUresult result) { self->finish(result); });
  return Outcome::later();
}

void KeptSource::finish(CUresult result) {
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  if (result == CUDA_SUCCESS && (!stream || !session.contexts().make_current(*stream->context)))
    result = CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS) result = copy_rows_in(session, *stream, copy_.shape, copy_.target, kept_->bulk.data());
  if (result == CUDA_SUCCESS) {
    session.ordering().submitted(*stream);
    if (copy_.taken_for_done) session.ordering().take_for_done(*stream);
  }
  session.finish(copy_.call, result);
  session.ordering().release(held_);
}

// --- changes --------------------------------------------------------------------------------------------------------

// One chunk: no frame has more bytes.
ChangesSource::ChangesSource(const CopyToDevice& copy, std::shared_ptr<const HeldCall> call)
    : ChunkedRead({copy.session, copy.call, copy.stream, copy.shape, copy.target},
                  RowChunks(copy.shape, limits::bulk_bytes_max)),
      kept_(std::move(call)),
      target_(copy.target),
      taken_for_done_(copy.taken_for_done) {
  const std::size_t both = kept_->bulk.size();
  if (both % 2 != 0 || both / 2 != copy.shape.bytes())
    throw ProtocolError("a copy of changes without what was there before");
  now_ = std::span(kept_->bulk).first(both / 2);
  known_ = std::span(kept_->bulk).last(both / 2);
}

Outcome ChangesSource::start(StreamState& stream) {
  copy_held_ = copy_.session.ordering().hold_for_copy(stream, taken_for_done_);
  return ChunkedRead::start();
}

void ChangesSource::take_chunk(std::uint64_t, std::span<const std::byte> there, std::function<void()> release) {
  if (const std::size_t word = changed_by_both(now_, there, known_); word < now_.size()) lost_ = target_.begin() + word;
  for_changed_runs(now_, known_, [&](std::size_t offset, std::size_t bytes) { runs_.push_back({offset, bytes}); });
  release();
}

// What is there has been compared, or nothing will be.
void ChangesSource::finish() { go_on(failure_); }

// Some at a time: the driver blocks a thread that gives it too many at once.
void ChangesSource::go_on(CUresult result) {
  constexpr std::size_t runs_at_once = 256;
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  if (result == CUDA_SUCCESS && (!stream || !session.contexts().make_current(*stream->context)))
    result = CUDA_ERROR_INVALID_HANDLE;
  const std::size_t end = std::min(runs_.size(), next_run_ + runs_at_once);
  for (; result == CUDA_SUCCESS && next_run_ < end; ++next_run_) {
    const auto [offset, bytes] = runs_[next_run_];
    result = copy_rows_in(session, *stream, {.width = bytes}, target_.from(offset, 0, 0), &now_[offset]);
    if (result == CUDA_SUCCESS) session.ordering().submitted(*stream);
  }
  if (result == CUDA_SUCCESS && next_run_ < runs_.size())
    return session.completions().after(*stream, Completions::Kind::delivery,
                                       [self = self()](CUresult done) { self->go_on(done); });
  if (taken_for_done_ && next_run_ > 0 && stream)
    session.ordering().take_for_done(*stream);  // also what came before a failure
  if (result == CUDA_SUCCESS) tell_lost(session, copy_.call, lost_);
  session.finish(copy_.call, result);
  session.ordering().release(copy_held_);  // at last: the client waits for the stream to hear all this
}

// --- memory of the worker -------------------------------------------------------------------------------------------

Outcome BlockSource::start(StreamState& stream, std::uint64_t address) {
  Session& session = copy.session;
  const std::uint64_t bytes = copy.shape.bytes();
  const std::span<std::byte> memory = session.host_blocks().find(address, bytes);
  if (memory.size() != bytes) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = copy_rows_in(session, stream, copy.shape, copy.target, memory.data());
  if (result != CUDA_SUCCESS) return result;
  session.ordering().submitted(stream);
  if (copy.taken_for_done) session.ordering().take_for_done(stream);
  return CUDA_SUCCESS;
}

// --- lanes ----------------------------------------------------------------------------------------------------------

Outcome LaneSource::start(StreamState& stream, std::uint32_t transfer, std::uint32_t early, bool in_order) {
  Session& session = copy_.session;
  if (lane_class(transfer) != lane_class(copy_.shape))
    throw ProtocolError("a transfer on the lanes with a number of the other class");
  session.lanes().pin(session.driver(), session.contexts().home_of(*stream.context));
  held_ = session.ordering().hold_for_copy(stream, copy_.taken_for_done);
  transfer_ = transfer;
  if (!in_order) {
    receive(early, in_order);
    return Outcome::later();
  }
  if (early > 0) throw ProtocolError("chunks of the lanes come before their stream gets there");
  // What the stream was given before may write the memory that they are read from.
  session.completions().after(stream, Completions::Kind::signal, [self = shared_from_this()](CUresult result) {
    self->failure_ = result;
    self->receive(0, true);
  });
  return Outcome::later();
}

void LaneSource::receive(std::uint32_t early, bool in_order) {
  missing_ = chunks_.count();
  copy_.session.lanes().receive(
      transfer_, chunks_, early, in_order,
      [self = shared_from_this()](std::uint64_t chunk, std::span<std::byte> slot) { self->take(chunk, slot); });
}

void LaneSource::take(std::uint64_t chunk, std::span<std::byte> slot) {
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  failure_ = copy_chunk_in(copy_, stream, chunks_.part(chunk), slot, failure_,
                           [&session, transfer = transfer_, slot] { session.lanes().give(transfer, slot); });
  if (--missing_ > 0) return;
  if (failure_ == CUDA_SUCCESS && copy_.taken_for_done) session.ordering().take_for_done(*stream);
  session.ordering().release(held_);
  session.finish(copy_.call, failure_);
}

// --- links with other hosts -----------------------------------------------------------------------------------------

// The side of a copy that leads tells the program that a link is lost; the other one goes quietly.
Outcome PeerSource::start(StreamState& stream) {
  Session& session = copy_.session;
  if (lane_class(transfer_) != lane_class(copy_.shape))
    throw ProtocolError("a transfer on a link with a number of the other class");
  if (!link_->failure().empty()) return leads_ ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
  link_->pin(session.driver(), session.contexts().home_of(*stream.context));
  if (leads_) held_ = session.ordering().hold(stream);
  link_->receive(transfer_, {.begins =
                                 [self = shared_from_this()] {
                                   if (self->leads_)
                                     throw ProtocolError("a transfer begins at the side that does not lead");
                                   self->receive();
                                 },
                             .lost =
                                 [self = shared_from_this()] {
                                   self->end(self->leads_ ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS);
                                 }});
  // The program may have had the source written by what its stream waited for.
  if (leads_)
    session.completions().after(stream, Completions::Kind::signal, [self = shared_from_this()](CUresult result) {
      self->failure_ = result;
      self->receive();
    });
  return Outcome::later();
}

void PeerSource::receive() {
  if (over_) return;
  if (std::exchange(begun_, true)) throw ProtocolError("a transfer on a link begins twice");
  link_->lanes().receive(
      transfer_, chunks_, /*early=*/0, /*in_order=*/false,
      [self = shared_from_this()](std::uint64_t chunk, std::span<std::byte> slot) { self->take(chunk, slot); });
}

void PeerSource::take(std::uint64_t chunk, std::span<std::byte> slot) {
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  failure_ = copy_chunk_in(copy_, stream, chunks_.part(chunk), slot, failure_,
                           [link = link_, transfer = transfer_, slot] { link->lanes().give(transfer, slot); });
  if (--missing_ > 0) return;
  if (leads_ || failure_ != CUDA_SUCCESS) {
    if (!leads_) link_->say_landed(transfer_);
    return end(failure_);
  }
  session.completions().after(*stream, Completions::Kind::signal, [self = shared_from_this()](CUresult done) {
    if (self->over_) return;
    self->link_->say_landed(self->transfer_);
    self->end(done);
  });
}

void PeerSource::end(CUresult result) {
  if (std::exchange(over_, true)) return;
  link_->forget(transfer_);
  copy_.session.finish(copy_.call, result);  // before the program can hear that its stream is through
  if (held_) copy_.session.ordering().release(held_);
}

// --- memory of the client -------------------------------------------------------------------------------------------

PulledSource::PulledSource(const CopyToDevice& copy, const CopySide& source)
    : copy_(copy),
      wanted_{.address = source.kind == CopySide::Kind::pull ? source.place : 0,
              .part = source.kind == CopySide::Kind::part ? source.place : 0,
              .bytes = copy.shape.bytes()} {}

Outcome PulledSource::start(StreamState& stream) {
  if (wanted_.part == 0 && copy_.shape.height != 1) return CUDA_ERROR_INVALID_VALUE;
  Session& session = copy_.session;
  held_ = session.ordering().hold(stream);
  // What the stream was given before may write the memory too.
  session.completions().after(
      stream, Completions::Kind::signal, [&session, self = shared_from_this()](CUresult result) {
        if (result != CUDA_SUCCESS) return self->finish(result);
        session.client().fetch(self->wanted_, [self](CUresult room, const std::vector<std::byte>& bytes) {
          if (room == CUDA_SUCCESS) self->take(bytes);
          else self->finish(room);
        });
      });
  return Outcome::later();
}

void PulledSource::take(const std::vector<std::byte>& bytes) {
  if (bytes.size() != wanted_.bytes) return finish(CUDA_ERROR_INVALID_VALUE);  // the program has freed the memory
  Session& session = copy_.session;
  StreamState* const stream = session.contexts().stream(copy_.stream, copy_.call.context);
  if (!stream || !session.contexts().make_current(*stream->context)) return finish(CUDA_ERROR_INVALID_HANDLE);
  // The stream has nothing before it any more, so that this takes no longer than the copy.
  const CUresult result = copy_rows_in(session, *stream, copy_.shape, copy_.target, bytes.data());
  if (result == CUDA_SUCCESS) session.ordering().submitted(*stream);
  finish(result);
}

void PulledSource::finish(CUresult result) {
  copy_.session.ordering().release(held_);
  copy_.session.client().release_part(wanted_.part);
  if (result != CUDA_SUCCESS || copy_.call.wants_reply) copy_.session.finish(copy_.call, result);
}

}  // namespace fargpu::server
