// Copies between the connection and the GPU, and within the GPU's memory.

#include "copy_sides.h"
#include "copy_sources.h"
#include "copy_targets.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

// The context of a side: named, or any on the device that the memory lies on, or the stream's. Null if a named one is
// none.
ContextState* context_of(Session& session, std::uint64_t named, const CopySide& side, const StreamState& stream) {
  if (named != 0) return session.contexts().find(Handle(named));
  const int device = side.in_array() ? -1 : session.memory().device_of(side.begin());
  if (device < 0 || device == session.contexts().driver_ordinal(stream.context->device)) return stream.context;
  ContextState* const there = session.contexts().on_device(device);
  return there ? there : stream.context;
}

// The link of a copy, by the number in the upper half; which goes the right way, if it is one.
std::shared_ptr<PeerLink> link_of(Session& session, std::uint64_t place, PeerLink::End end) {
  auto link = session.peers().find(static_cast<std::uint32_t>(place >> 32));
  if (!link || link->end() != end) throw ProtocolError("a copy on a link that there is not");
  return link;
}

// The side of a copy is not carried out, and the other one waits for it.
void refuse_transfer(Session& session, std::uint64_t place) {
  if (const auto link = session.peers().find(static_cast<std::uint32_t>(place >> 32)))
    link->fail("the side of a copy was refused");
}

}  // namespace

Outcome copyIn(Session& session, Call& call, wire::CopyIn::Reader in) {
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const std::span<std::byte> frame = call.bulk();
  const ContextState* const named = session.contexts().find(call.id().context);
  const bool staged = named && named->staging->in().contains(frame.data());
  if (staged && named->staging != stream->context->staging) return CUDA_ERROR_INVALID_CONTEXT;
  const CopyToDevice copy{session,
                          call.id(),
                          in.getStream(),
                          shape_of(in.getCopy()),
                          decode(in.getCopy().getTarget()),
                          in.getTakenForDone()};
  if (copy.shape.depth != 1) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = admit_side(session, copy.shape, copy.target); bad != CUDA_SUCCESS) return bad;
  const CopySide source = decode(in.getCopy().getSource());
  if (source.kind != CopySide::Kind::frame && source.kind != CopySide::Kind::changes && !frame.empty())
    throw ProtocolError("a copy with bytes that it does not take");
  switch (source.kind) {
    case CopySide::Kind::frame: {
      if (staged || !stream->context->staging->ready()) return FrameSource{copy}.start(*stream, frame, staged);
      if (const auto part = stream->context->staging->in().take(frame.size())) {  // a call that was held back
        std::memcpy(part->data(), frame.data(), frame.size());
        Outcome outcome = FrameSource{copy}.start(*stream, *part, /*staged=*/true);
        if (!outcome.is_later() && outcome.result() != CUDA_SUCCESS) stream->context->staging->in().give(*part);
        return outcome;
      }
      const auto kept = session.ordering().copy(call);
      return kept ? std::make_shared<KeptSource>(copy, kept)->start(*stream)
                  : FrameSource{copy}.start(*stream, frame, /*staged=*/false);
    }
    case CopySide::Kind::changes: {
      if (copy.target.in_array() || copy.shape.height != 1) return CUDA_ERROR_INVALID_VALUE;
      const auto kept = session.ordering().copy(call);
      if (!kept) return CUDA_ERROR_OUT_OF_MEMORY;
      session.give_bulk(call);
      return std::make_shared<ChangesSource>(copy, kept)->start(*stream);
    }
    case CopySide::Kind::block: return BlockSource{copy}.start(*stream, source.place);
    case CopySide::Kind::lanes:
      return std::make_shared<LaneSource>(copy)->start(*stream, static_cast<std::uint32_t>(source.place), in.getEarly(),
                                                       in.getInOrder());
    case CopySide::Kind::peer:
      return std::make_shared<PeerSource>(copy, link_of(session, source.place, PeerLink::End::target),
                                          static_cast<std::uint32_t>(source.place), in.getLeads())
          ->start(*stream);
    case CopySide::Kind::part:
    case CopySide::Kind::pull: return std::make_shared<PulledSource>(copy, source)->start(*stream);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

std::vector<DeviceRange> memory_of_copyIn(Call& call) {
  const auto copy = call.in<wire::CopyIn>().getCopy();
  return memory_of_sides(shape_of(copy), {decode(copy.getTarget())});
}

void drop_copyIn(Session& session, Call& call) {
  const auto in = call.in<wire::CopyIn>();
  const auto source = in.getCopy().getSource().getPlace();
  if (source.isPart()) session.client().release_part(source.getPart());
  if (source.isLanes()) session.lanes().refuse(source.getLanes(), in.getEarly());
  if (source.isPeer()) refuse_transfer(session, source.getPeer());
}

Outcome copyOut(Session& session, Call& call, wire::CopyOut::Reader in) {
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const CopyToHost copy{session, call.id(), in.getStream(), shape_of(in.getCopy()), decode(in.getCopy().getSource())};
  if (copy.shape.depth != 1) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = admit_side(session, copy.shape, copy.source); bad != CUDA_SUCCESS) return bad;
  const CopySide target = decode(in.getCopy().getTarget());
  if (target.kind == CopySide::Kind::frame && !call.id().wants_reply)
    throw ProtocolError("a copy whose bytes nobody waits for");
  switch (target.kind) {
    case CopySide::Kind::frame: return std::make_shared<FrameTarget>(copy)->start();
    case CopySide::Kind::block: return BlockTarget{copy, in.getDelivery()}.start(*stream, target.place);
    case CopySide::Kind::lanes:
      return std::make_shared<LaneTarget>(copy, static_cast<std::uint32_t>(target.place))->start();
    case CopySide::Kind::peer:
      return std::make_shared<PeerTarget>(copy, link_of(session, target.place, PeerLink::End::source),
                                          static_cast<std::uint32_t>(target.place), in.getLeads())
          ->start(*stream);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

std::vector<DeviceRange> memory_of_copyOut(Call& call) {
  const auto copy = call.in<wire::CopyOut>().getCopy();
  return memory_of_sides(shape_of(copy), {decode(copy.getSource())});
}

void drop_copyOut(Session& session, Call& call) {
  const auto target = call.in<wire::CopyOut>().getCopy().getTarget().getPlace();
  if (target.isLanes()) session.client().end_transfer(target.getLanes());
  if (target.isPeer()) refuse_transfer(session, target.getPeer());
  session.client().end_delivery(call.in<wire::CopyOut>().getDelivery());
}

std::vector<DeviceRange> memory_of_copyDevice(Call& call) {
  const auto copy = call.in<wire::CopyDevice>().getCopy();
  return memory_of_sides(shape_of(copy), {decode(copy.getTarget()), decode(copy.getSource())});
}

Outcome copyDevice(Session& session, Call& call, wire::CopyDevice::Reader in) {
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const CopyShape shape = shape_of(in.getCopy());
  const CopySide named_target = decode(in.getCopy().getTarget()), named_source = decode(in.getCopy().getSource());
  if (const CUresult bad = admit_side(session, shape, named_target); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = admit_side(session, shape, named_source); bad != CUDA_SUCCESS) return bad;
  const ContextState* const to = context_of(session, in.getTargetContext(), named_target, *stream);
  const ContextState* const from = context_of(session, in.getSourceContext(), named_source, *stream);
  if (!to || !from) return CUDA_ERROR_INVALID_CONTEXT;
  const auto target = driver_side(session, shape, named_target), source = driver_side(session, shape, named_source);
  if (!target || !source) return CUDA_ERROR_INVALID_HANDLE;
  // The driver finds out the device of an array or of an address only within one device; across two, both contexts are
  // named.
  const bool across = to->device != from->device;
  DriverTable& driver = session.driver();
  CUresult result;
  if (!target->in_array() && !source->in_array() && shape.height == 1 && shape.depth == 1) {
    HostBlocks& blocks = session.host_blocks();
    const bool from_host = blocks.shared(source->place, shape.width),
               to_host = blocks.shared(target->place, shape.width);
    if (from_host && !to_host) {
      result = driver.cuMemcpyHtoDAsync_v2(target->place, reinterpret_cast<const void*>(source->place), shape.width,
                                           stream->cuda);
    } else if (to_host && !from_host) {
      result =
          driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(target->place), source->place, shape.width, stream->cuda);
    } else {
      result = across ? driver.cuMemcpyPeerAsync(target->place, to->cuda, source->place, from->cuda, shape.width,
                                                 stream->cuda)
                      : driver.cuMemcpyDtoDAsync_v2(target->place, source->place, shape.width, stream->cuda);
    }
  } else if (across) {
    auto copy = cuda_copy<CUDA_MEMCPY3D_PEER>(shape, *source, *target);
    copy.srcContext = from->cuda;
    copy.dstContext = to->cuda;
    result = driver.cuMemcpy3DPeerAsync(&copy, stream->cuda);
  } else {
    const auto copy = cuda_copy<CUDA_MEMCPY3D>(shape, *source, *target);
    result = driver.cuMemcpy3DAsync_v2(&copy, stream->cuda);
  }
  if (result == CUDA_SUCCESS) session.ordering().submitted(*stream);
  return result;
}

}  // namespace fargpu::server::hand
