// Copies between the connection and the GPU, and within the GPU's memory.

#include <algorithm>
#include <cstring>
#include <optional>

#include "protocol/extent.h"
#include "server/worker/copy/copy_sides.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

// Packed rows at `host` to or from the device's side, in stream order.
CUresult copy_rows(Session& session, StreamState& stream, const Shape& shape, const Side& device, std::byte* host, bool in) {
  DriverTable& driver = session.driver();
  if (!device.array && shape.height == 1) {
    return in ? driver.cuMemcpyHtoDAsync_v2(device.address, host, shape.width, stream.cuda)
              : driver.cuMemcpyDtoHAsync_v2(host, device.address, shape.width, stream.cuda);
  }
  CUDA_MEMCPY3D copy = copy_of(shape);
  if (in) {
    put_packed_source(host, copy);
    put_target(device, copy);
  } else {
    put_source(device, copy);
    put_packed_target(host, copy);
  }
  return driver.cuMemcpy3DAsync_v2(&copy, stream.cuda);
}

/// A copy out whose bytes go to a waiting client: in chunks through the staging ring, as it has room. While chunks are missing the
/// stream is held, so that later work on it cannot change what is still to be copied.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  /// `transfer`: on the bulk lanes, in one row.
  Fetch(Session& session, const CallId& call, std::uint64_t stream, const Shape& shape, const Side& source,
        std::optional<std::uint32_t> transfer)
      : session_(session), call_(call), stream_(stream), shape_(shape), source_(source), transfer_(transfer) {}

  void start() {
    if (issue()) return;
    StreamState* const stream = session_.contexts().stream(stream_, call_.context);
    held_ = session_.ordering().hold(*stream);
    session_.retries().add([self = shared_from_this()] {
      if (!self->issue()) return false;
      self->session_.ordering().release(self->held_);
      return true;
    });
  }

 private:
  // Gives as much to the driver as there is room for. True when there is nothing left to give.
  bool issue() {
    const std::uint64_t bytes_at_once = transfer_ ? limits::lane_chunk_bytes : limits::bulk_bytes_max;
    const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, bytes_at_once / shape_.width);
    while (row_ < shape_.height && failure_ == CUDA_SUCCESS) {
      // Whole rows, or a part of one that is too long.
      const std::uint64_t rows = column_ > 0 ? 1 : std::min(rows_at_once, shape_.height - row_);
      const std::uint64_t width = std::min<std::uint64_t>(shape_.width - column_, bytes_at_once);
      StreamState* const stream = session_.contexts().stream(stream_, call_.context);
      if (!stream || !source_.alive(session_)) {
        failure_ = CUDA_ERROR_INVALID_HANDLE;
        break;
      }
      session_.contexts().make_current(*stream->context);  // a driver that refuses this refuses the copy
      const std::shared_ptr<Staging> staging = stream->context->staging;
      if (!staging->ready()) {
        failure_ = CUDA_ERROR_OUT_OF_MEMORY;
        break;
      }
      const auto part = staging->out().take(rows * width);
      if (!part) return false;
      const CUresult result = copy_rows(session_, *stream, {width, rows, 1}, source_.from(column_, row_), part->data(), false);
      if (result != CUDA_SUCCESS) {
        failure_ = result;
        staging->out().give(*part);
        break;
      }
      session_.ordering().submitted(*stream);
      ++open_;
      session_.completions().after(
          *stream, Completions::Kind::delivery,
          [self = shared_from_this(), staging, bytes = *part, at = column_](CUresult done) { self->arrived(at, bytes, staging, done); });
      column_ += width;
      if (column_ == shape_.width) {
        column_ = 0;
        row_ += rows;
      }
    }
    issued_ = true;
    if (open_ == 0) finish();
    return true;
  }

  void arrived(std::uint64_t column, std::span<std::byte> bytes, const std::shared_ptr<Staging>& staging, CUresult result) {
    const auto give = [staging, bytes] { staging->out().give(bytes); };
    if (result == CUDA_SUCCESS && failure_ == CUDA_SUCCESS) {
      if (transfer_) session_.lanes().send({*transfer_, static_cast<std::uint32_t>(column / limits::lane_chunk_bytes)}, bytes, give);
      else session_.output().data(call_, bytes, give);
    } else {
      if (failure_ == CUDA_SUCCESS) failure_ = result;
      give();
    }
    if (--open_ == 0 && issued_) finish();
  }

  void finish() {
    session_.deliveries().send_changes();
    session_.finish(call_, failure_);
  }

  Session& session_;
  const CallId call_;
  const std::uint64_t stream_;
  const Shape shape_;
  const Side source_;
  const std::optional<std::uint32_t> transfer_;
  std::uint64_t row_ = 0;
  std::uint64_t column_ = 0;
  std::size_t open_ = 0;
  bool issued_ = false;
  std::uint64_t held_ = 0;
  CUresult failure_ = CUDA_SUCCESS;
};

/// A copy in whose bytes come on the bulk lanes, in whatever order. Its stream is held until all are there, and, if the program takes the
/// copy for done, whatever comes later in the context.
class Landing : public std::enable_shared_from_this<Landing> {
 public:
  Landing(Session& session, const CallId& call, std::uint64_t stream, std::uint64_t bytes, const Side& target, bool complete)
      : session_(session), call_(call), stream_(stream), bytes_(bytes), target_(target), complete_(complete) {}

  void start(std::uint32_t transfer) {
    StreamState& stream = *session_.contexts().stream(stream_, call_.context);
    session_.lanes().pin(session_.driver(), *stream.context);
    held_ = session_.ordering().hold_for_copy(stream, complete_);
    missing_ = chunks_of(bytes_);
    session_.lanes().receive(transfer, bytes_,
                             [self = shared_from_this()](Chunk chunk, std::span<std::byte> slot) { self->take(chunk, slot); });
  }

 private:
  void take(Chunk chunk, std::span<std::byte> slot) {
    StreamState* const stream = session_.contexts().stream(stream_, call_.context);
    CUresult result = failure_;
    if (result == CUDA_SUCCESS && (!stream || !target_.alive(session_) || !session_.contexts().make_current(*stream->context)))
      result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
      const Side part = target_.from(std::uint64_t{chunk.number} * limits::lane_chunk_bytes, 0);
      result = copy_rows(session_, *stream, {slot.size(), 1, 1}, part, slot.data(), true);
    }
    if (result == CUDA_SUCCESS) {
      session_.ordering().submitted(*stream);
      session_.completions().after(*stream, Completions::Kind::release,
                                   [&session = session_, slot](CUresult) { session.lanes().give(slot); });
    } else {
      failure_ = result;
      session_.lanes().give(slot);
    }
    if (--missing_ > 0) return;
    if (failure_ == CUDA_SUCCESS && complete_) session_.ordering().take_for_done(*stream);
    session_.ordering().release(held_);
    session_.finish(call_, failure_);
  }

  Session& session_;
  const CallId call_;
  const std::uint64_t stream_;
  const std::uint64_t bytes_;
  const Side target_;
  const bool complete_;
  std::uint64_t missing_ = 0;
  std::uint64_t held_ = 0;
  CUresult failure_ = CUDA_SUCCESS;
};

// Sends the bytes of a host block to the client, in parts; they stay where they are meanwhile.
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

// The context of a side: named, or any on the device that the memory lies on, or the stream's. Null if a named one is none.
ContextState* context_of(Session& session, std::uint64_t named, const Side& side, const StreamState& stream) {
  if (named != 0) return session.contexts().find(Handle(named).id());
  const int device = side.array ? -1 : session.memory().device_of(side.address);
  if (device < 0 || device == session.contexts().driver_ordinal(stream.context->device)) return stream.context;
  ContextState* const there = session.contexts().on_device(device);
  return there ? there : stream.context;
}

CUDA_MEMCPY3D_PEER between(const CUDA_MEMCPY3D& copy, const ContextState& target, const ContextState& source) {
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcXInBytes = copy.srcXInBytes;
  peer.srcY = copy.srcY;
  peer.srcZ = copy.srcZ;
  peer.srcMemoryType = copy.srcMemoryType;
  peer.srcDevice = copy.srcDevice;
  peer.srcArray = copy.srcArray;
  peer.srcContext = source.cuda;
  peer.srcPitch = copy.srcPitch;
  peer.srcHeight = copy.srcHeight;
  peer.dstXInBytes = copy.dstXInBytes;
  peer.dstY = copy.dstY;
  peer.dstZ = copy.dstZ;
  peer.dstMemoryType = copy.dstMemoryType;
  peer.dstDevice = copy.dstDevice;
  peer.dstArray = copy.dstArray;
  peer.dstContext = target.cuda;
  peer.dstPitch = copy.dstPitch;
  peer.dstHeight = copy.dstHeight;
  peer.WidthInBytes = copy.WidthInBytes;
  peer.Height = copy.Height;
  peer.Depth = copy.Depth;
  return peer;
}

}  // namespace

Outcome copyIn(Session& session, Call& call, wire::CopyIn::Reader in) {
  const Shape shape(in.getShape());
  Side target;
  const std::span<std::byte> bulk = call.bulk();
  const auto refuse = [&](CUresult result) {
    session.drop_call(call);
    return result;
  };
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return refuse(CUDA_ERROR_INVALID_HANDLE);
  const ContextState* const named = session.contexts().find(call.id().context);
  const bool staged = named && named->staging->in().contains(bulk.data());
  if (staged && named->staging != stream->context->staging) return refuse(CUDA_ERROR_INVALID_CONTEXT);
  if (shape.depth != 1) return refuse(CUDA_ERROR_INVALID_VALUE);
  if (const CUresult bad = read_side(session, in.getTarget(), shape, target); bad != CUDA_SUCCESS) return refuse(bad);
  const auto source = in.getSource();
  if (!source.isBulk() && !bulk.empty()) throw ProtocolError("a copy with bytes that it does not take");
  if (source.isBulk()) {
    if (bulk.size() != extent_of_rows(shape.width, 1, shape.height, shape.width))
      throw ProtocolError("a copy with too few or too many bytes");
    const CUresult result = copy_rows(session, *stream, shape, target, bulk.data(), true);
    if (result != CUDA_SUCCESS) return refuse(result);
    session.ordering().submitted(*stream);
    // From ordinary memory the driver has taken the bytes by now; from staging they go at their own time.
    if (staged) {
      session.completions().after(*stream, Completions::Kind::release,
                                  [staging = stream->context->staging, bulk](CUresult) { staging->in().give(bulk); });
    }
  } else if (shape.height != 1 && (source.isPull() || source.isLanes())) {
    return refuse(CUDA_ERROR_INVALID_VALUE);
  } else if (source.isLanes()) {
    if (shape.width == 0) return refuse(CUDA_ERROR_INVALID_VALUE);
    std::make_shared<Landing>(session, call.id(), in.getStream(), shape.width, target, in.getComplete())->start(source.getLanes());
    return Outcome::later();
  } else if (source.isBlock()) {
    const std::uint64_t bytes = extent_of_rows(shape.width, 1, shape.height, shape.width);
    const std::span<std::byte> memory = session.host_blocks().find(source.getBlock(), bytes);
    if (memory.size() != bytes) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = copy_rows(session, *stream, shape, target, memory.data(), true);
    if (result != CUDA_SUCCESS) return result;
    session.ordering().submitted(*stream);
  } else {
    const std::uint64_t part = source.isPart() ? source.getPart() : 0;
    const ClientRequests::Wanted wanted{.address = source.isPull() ? source.getPull() : 0,
                                        .part = part,
                                        .bytes = extent_of_rows(shape.width, 1, shape.height, shape.width)};
    const std::uint64_t held = session.ordering().hold(*stream);
    const auto done = [&session, id = call.id(), held, part](CUresult result) {
      session.ordering().release(held);
      session.client().release_part(part);
      if (result != CUDA_SUCCESS || id.wants_reply) session.finish(id, result);
    };
    const auto arrived = [&session, id = call.id(), handle = in.getStream(), shape, target, wanted, done](std::vector<std::byte> bytes) {
      StreamState* const there = session.contexts().stream(handle, id.context);
      CUresult result = CUDA_ERROR_INVALID_HANDLE;
      if (bytes.size() != wanted.bytes) {
        result = CUDA_ERROR_INVALID_VALUE;  // the program has freed the memory
      } else if (there && target.alive(session) && session.contexts().make_current(*there->context)) {
        // The stream has nothing before it any more, so that this takes no longer than the copy.
        result = copy_rows(session, *there, shape, target, bytes.data(), true);
        if (result == CUDA_SUCCESS) session.ordering().submitted(*there);
      }
      done(result);
    };
    // What the stream was given before may write the memory too.
    session.completions().after(*stream, Completions::Kind::signal, [&session, arrived, done, wanted](CUresult result) {
      if (result != CUDA_SUCCESS) done(result);
      else if (!session.client().fetch(wanted, arrived)) done(CUDA_ERROR_OUT_OF_MEMORY);
    });
    return Outcome::later();
  }
  if (in.getComplete()) session.ordering().take_for_done(*stream);
  return CUDA_SUCCESS;
}

void drop_copyIn(Session& session, Call& call) {
  const auto in = call.in<wire::CopyIn>();
  const auto source = in.getSource();
  if (source.isPart()) session.client().release_part(source.getPart());
  if (source.isLanes()) session.lanes().refuse(source.getLanes(), in.getShape().getWidth());
}

Outcome copyOut(Session& session, Call& call, wire::CopyOut::Reader in) {
  const Shape shape(in.getShape());
  Side source;
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (shape.depth != 1) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = read_side(session, in.getSource(), shape, source); bad != CUDA_SUCCESS) return bad;
  const auto target = in.getTarget();
  if (target.isReply() || target.isLanes()) {
    if (!call.id().wants_reply) throw ProtocolError("a copy whose bytes nobody waits for");
    if (target.isLanes() && shape.height != 1) return CUDA_ERROR_INVALID_VALUE;
    const auto transfer = target.isLanes() ? std::optional(target.getLanes()) : std::nullopt;
    std::make_shared<Fetch>(session, call.id(), in.getStream(), shape, source, transfer)->start();
    return Outcome::later();
  }
  const std::uint64_t address = target.getBlock();
  const std::uint64_t bytes = extent_of_rows(shape.width, 1, shape.height, shape.width);
  const std::span<std::byte> memory = session.host_blocks().find(address, bytes);
  if (memory.size() != bytes) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = copy_rows(session, *stream, shape, source, memory.data(), false);
  if (result != CUDA_SUCCESS) return result;
  session.ordering().submitted(*stream);
  if (session.host_blocks().shared(address, bytes)) return CUDA_SUCCESS;  // it is the client's own
  session.completions().after(*stream, Completions::Kind::delivery, [&session, address, bytes](CUresult done) {
    if (done == CUDA_SUCCESS) deliver_block(session, address, bytes);
  });
  return CUDA_SUCCESS;
}

Outcome copyDevice(Session& session, Call& call, wire::CopyDevice::Reader in) {
  const Shape shape(in.getShape());
  Side target, source;
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = read_side(session, in.getTarget(), shape, target); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = read_side(session, in.getSource(), shape, source); bad != CUDA_SUCCESS) return bad;
  const ContextState* const to = context_of(session, in.getTargetContext(), target, *stream);
  const ContextState* const from = context_of(session, in.getSourceContext(), source, *stream);
  if (!to || !from) return CUDA_ERROR_INVALID_CONTEXT;
  // The driver finds the device of such memory by its address within a device only.
  const bool across = to->device != from->device;
  DriverTable& driver = session.driver();
  CUresult result;
  if (!target.array && !source.array && shape.height == 1 && shape.depth == 1) {
    HostBlocks& blocks = session.host_blocks();
    const bool from_host = blocks.shared(source.address, shape.width), to_host = blocks.shared(target.address, shape.width);
    if (from_host && !to_host) {
      result = driver.cuMemcpyHtoDAsync_v2(target.address, reinterpret_cast<const void*>(source.address), shape.width, stream->cuda);
    } else if (to_host && !from_host) {
      result = driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(target.address), source.address, shape.width, stream->cuda);
    } else {
      result = across ? driver.cuMemcpyPeerAsync(target.address, to->cuda, source.address, from->cuda, shape.width, stream->cuda)
                      : driver.cuMemcpyDtoDAsync_v2(target.address, source.address, shape.width, stream->cuda);
    }
  } else {
    CUDA_MEMCPY3D copy = copy_of(shape);
    put_source(source, copy);
    put_target(target, copy);
    if (across) {
      const CUDA_MEMCPY3D_PEER peer = between(copy, *to, *from);
      result = driver.cuMemcpy3DPeerAsync(&peer, stream->cuda);
    } else {
      result = driver.cuMemcpy3DAsync_v2(&copy, stream->cuda);
    }
  }
  if (result == CUDA_SUCCESS) session.ordering().submitted(*stream);
  return result;
}

}  // namespace fargpu::server::hand
