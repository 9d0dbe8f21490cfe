// Device memory, mappings, and host blocks.

#include <algorithm>

#include "protocol/errors.h"
#include "protocol/limits.h"
#include "copy_sides.h"
#include "server/worker/memory/scrub.h"
#include "server/worker/session/session.h"
#include "server_hand.h"
#include "struct_codecs.h"

namespace fargpu::server::hand {

namespace {

// Fills new memory with zeros, beside the executor, because the GPU may be at work for long.
std::function<CUresult()> scrubbing(Session& session, int device, CUmemGenericAllocationHandle handle,
                                    std::uint64_t bytes) {
  const ContextState* const context = session.contexts().on_device(device);
  return [&scrubber = session.scrubber(), cuda = context ? context->cuda : nullptr, device, handle, bytes,
          beside = session.asides().keep_open(context ? context->id : 0)] {
    return scrubber.fill(cuda, device, handle, bytes);
  };
}

CUresult not_scrubbed(Session& session, CUmemGenericAllocationHandle handle, CUresult result) {
  session.memory().release(handle);
  const char* name = "an unknown error";
  session.driver().cuGetErrorName(result, &name);
  session.prints().warn(std::string("device memory is refused, because it could not be filled with zeros first: "
                                    "the GPU host's driver answered ") +
                        name);
  return result;
}

// `answered` is tried until it has given the answer.
Outcome answer_later(Session& session, std::function<bool()> answered) {
  constexpr std::uint64_t about_itself = 512;
  auto charge = HostCharge::take(session.host_budget(), about_itself);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  session.retries().add([answered = std::move(answered), charge = std::make_shared<HostCharge>(std::move(*charge))] {
    return answered();
  });
  return Outcome::later();
}

// Whether there is far more than such a piece, for the session and on the device, which must be that of the call's
// context.
bool is_plenty(Session& session, Call& call, std::uint64_t bytes, int device) {
  constexpr std::uint64_t times = 64;
  const ContextState* const context = session.contexts().find(call.id().context);
  std::size_t free = 0, total = 0;
  return context && context->device == device && session.ledger().share(device).left / times >= bytes &&
         session.driver().cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && free / times >= bytes;
}

// Memory that nobody has asked for yet is had only where there is plenty. `take` has one more piece.
template <class Take>
std::uint32_t take_spares(Session& session, Call& call, std::uint64_t bytes, int device, std::uint32_t wanted,
                          Take&& take) {
  wanted = std::min(wanted, limits::spares_max);
  std::uint32_t spares = 0;
  while (spares < wanted && is_plenty(session, call, bytes, device) && take(spares) == CUDA_SUCCESS) ++spares;
  session.memory().take_shortage();  // nobody has asked for it
  return spares;
}

Outcome not_made(Session& session, Call& call, CUresult result) {
  const auto shortage = session.memory().take_shortage();
  return shortage ? session.wait_for_room(call, *shortage) : Outcome(result);
}

}  // namespace

Outcome backMemory(Session& session, Call& call, wire::BackMemory::Reader in) {
  const int device = session.contexts().driver_ordinal(in.getDevice());
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  const std::uint64_t address = in.getAddress(), bytes = in.getBytes();
  DeviceMemory& memory = session.memory();
  if (!session.options().scrub) {
    const CUresult result = memory.back(address, bytes, device);
    if (result != CUDA_SUCCESS) return not_made(session, call, result);
    call.out<wire::BackMemoryReply>().setSpares(
        take_spares(session, call, bytes, device, in.getSpares(),
                    [&](std::uint32_t i) { return memory.back(address + (i + 1ull) * bytes, bytes, device); }));
    return result;
  }
  CUmemGenericAllocationHandle handle{};
  if (const CUresult made = memory.make(address, bytes, device, handle); made != CUDA_SUCCESS)
    return not_made(session, call, made);
  return session.aside(call, scrubbing(session, device, handle, bytes),
                       [&session, address, bytes, device, handle](CUresult result) {
                         return result == CUDA_SUCCESS ? session.memory().place(address, bytes, device, handle)
                                                       : not_scrubbed(session, handle, result);
                       });
}

// What the session may have is all there is of the device, and what is left of that is free, as long as the device has
// it.
Outcome cuMemGetInfo_v2(Session& session, Call& call, wire::CuMemGetInfoV2::Reader) {
  std::size_t free = 0, total = 0;
  if (const CUresult result = session.driver().cuMemGetInfo_v2(&free, &total); result != CUDA_SUCCESS) return result;
  const int device = session.contexts().find(call.id().context)->device;
  const Ledger::Share share = session.ledger().share(device);
  // What is away is the session's all the same.
  free -= std::min<std::uint64_t>(free, session.residency().away_bytes(session.contexts().driver_ordinal(device)));
  auto out = call.out<wire::CuMemGetInfoV2Reply>();
  // Others make room for what the lease may hold.
  if (session.residency().may_wait() && share.limit < total) free = total;
  out.setFree(std::min<std::uint64_t>(free, share.left));
  out.setTotal(std::min<std::uint64_t>(total, share.limit));
  return CUDA_SUCCESS;
}

Outcome setPeerAccess(Session& session, Call&, wire::SetPeerAccess::Reader in) {
  const int from = session.contexts().driver_ordinal(in.getFrom()), to = session.contexts().driver_ordinal(in.getTo());
  if (from < 0 || to < 0) return CUDA_ERROR_INVALID_DEVICE;
  return session.memory().set_peer_access(from, to, in.getAllowed());
}

Outcome mapMemory(Session& session, Call& call, wire::MapMemory::Reader in, Known<HandleKind::allocation> handle) {
  int device = 0;
  const CUresult result = session.memory().map(in.getAddress(), in.getBytes(), in.getOffset(), handle.cuda(), device);
  if (result == CUDA_SUCCESS) call.out<wire::MapMemoryReply>().setDevice(device);
  return result;
}

Outcome unmapMemory(Session& session, Call&, wire::UnmapMemory::Reader in) {
  return session.memory().unmap(in.getAddress(), in.getBytes());
}

Outcome finishCopies(Session& session, Call& call, wire::FinishCopies::Reader) {
  if (!call.id().wants_reply) throw ProtocolError("the end of copies that nobody waits for");
  if (const auto later = session.ordering().behind_copies(call)) return *later;
  TakenCopies::Marks copies = TakenCopies::marks_in(session.contexts().all());
  if (!TakenCopies::any_open(copies)) return CUDA_SUCCESS;
  return answer_later(session, [&session, id = call.id(), copies]() mutable {
    if (TakenCopies::any_open(copies)) return false;
    session.finish(id, CUDA_SUCCESS);
    return true;
  });
}

Outcome retainAllocation(Session& session, Call& call, wire::RetainAllocation::Reader in) {
  session.objects().handles().require_room(HandleKind::allocation);
  CUmemGenericAllocationHandle handle{};
  const CUresult result = session.memory().retain(in.getAddress(), handle);
  if (result == CUDA_SUCCESS)
    call.out<wire::RetainAllocationReply>().setAllocation(
        session.objects().reveal(HandleKind::allocation, handle, call).value());
  return result;
}

Outcome makeMemory(Session& session, Call& call, wire::MakeMemory::Reader in) {
  session.objects().handles().require_room(HandleKind::allocation);
  CUmemAllocationProp prop{};
  prop.type = static_cast<CUmemAllocationType>(in.getType());
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(in.getRequestedHandleTypes());
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, session.contexts().driver_ordinal(in.getDevice())};
  prop.allocFlags.compressionType = in.getCompressionType();
  prop.allocFlags.gpuDirectRDMACapable = in.getGpuDirectRDMACapable();
  prop.allocFlags.usage = in.getUsage();
  CUmemGenericAllocationHandle handle{};
  const std::uint64_t bytes = in.getBytes();
  if (const CUresult made = session.memory().create(bytes, prop, handle); made != CUDA_SUCCESS)
    return not_made(session, call, made);
  const bool plenty = is_plenty(session, call, bytes, prop.location.id);
  const auto reveal = [&session, id = call.id()](CUmemGenericAllocationHandle made) {
    return session.objects().reveal_made(HandleKind::allocation, made, id, [&] { session.memory().release(made); });
  };
  const auto tell = [plenty](wire::MakeMemoryReply::Builder out, std::span<const Handle> made) {
    out.setPlenty(plenty);
    auto allocations = out.initAllocations(static_cast<unsigned>(made.size()));
    for (unsigned i = 0; i < allocations.size(); ++i) allocations.set(i, made[i].value());
  };
  if (session.options().scrub)
    return session.aside_reply(call, scrubbing(session, prop.location.id, handle, bytes),
                               [&session, handle, reveal, tell](CUresult result, MessageWriter& writer) {
                                 if (result != CUDA_SUCCESS) return not_scrubbed(session, handle, result);
                                 const Handle made = reveal(handle);
                                 tell(writer.root<wire::MakeMemoryReply>(), {&made, 1});
                                 return result;
                               });
  std::vector<Handle> made{reveal(handle)};
  if (plenty)
    take_spares(session, call, bytes, prop.location.id, in.getSpares(), [&](std::uint32_t) {
      if (!session.objects().handles().has_room(HandleKind::allocation)) return CUDA_ERROR_OUT_OF_MEMORY;
      const CUresult result = session.memory().create(bytes, prop, handle);
      if (result == CUDA_SUCCESS) made.push_back(reveal(handle));
      return result;
    });
  tell(call.out<wire::MakeMemoryReply>(), made);
  return CUDA_SUCCESS;
}

Outcome cuMemRelease(Session& session, Call&, wire::CuMemRelease::Reader, Known<HandleKind::allocation> handle) {
  const CUresult result = session.memory().release(handle.cuda());
  if (result == CUDA_SUCCESS && !session.memory().knows(handle.cuda())) session.objects().forget(handle);
  return result;
}

Outcome fence(Session& session, Call& call, wire::Fence::Reader in) {
  const auto passed = [&session, fence = in.getFence()](CUresult) {
    session.deliveries().send_changes();
    session.output().control([&](wire::Control::Builder control) { control.initPassed().setFence(fence); });
  };
  if (in.getStream() == 0) {
    session.waits().when_all_passed(passed);
  } else if (StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context)) {
    // What is freed on the legacy stream may be used again behind it: later work of other streams comes behind what it
    // waits for.
    if (stream == stream->context->legacy.get() && session.ordering().holding(*stream))
      session.ordering().defer(*stream, [] {});
    session.waits().when_free(*stream, passed);
  } else {
    session.waits().when_all_passed(passed);  // another thread has destroyed the stream, and its work may be under way
  }
  return CUDA_SUCCESS;
}

// --- host blocks ----------------------------------------------------------------------------------------------------

Outcome openHostBlock(Session& session, Call& call, wire::OpenHostBlock::Reader in) {
  HostBlocks& blocks = session.host_blocks();
  if (in.getShared()) {
    if (!call.id().wants_reply) throw ProtocolError("shared memory that nobody waits for");
    if (!session.channel().shares_memory()) return CUDA_ERROR_NOT_SUPPORTED;
    Descriptor descriptor;
    const CUresult result = blocks.open_shared(in.getAddress(), in.getBytes(), call.id().context, descriptor);
    if (result != CUDA_SUCCESS || session.channel().send_descriptor(descriptor.number())) return result;
    blocks.close(in.getAddress());
    return CUDA_ERROR_OUT_OF_MEMORY;  // of room for descriptors that the client does not take
  }
  if (!in.getMapped()) return blocks.open(in.getAddress(), in.getBytes(), call.id().context);
  if (in.getPaged() && blocks.compares(in.getAddress())) {
    session.deliveries().send_changes();
    return blocks.page(in.getAddress());
  }
  return blocks.open_mapped(in.getAddress(), in.getBytes(), in.getDevice(), in.getPaged(), call.id().context);
}

Outcome mapGraphPart(Session& session, Call&, wire::MapGraphPart::Reader in) {
  GraphParts& parts = session.graph_parts();
  const CopySide side = decode(in.getPlace());
  if (side.kind != CopySide::Kind::device) return CUDA_ERROR_INVALID_VALUE;
  const CopyShape shape = parts.shape(in.getPart());
  if (side.place == 0) parts.map(in.getPart(), std::nullopt);
  else if (shape.bytes() > 0 && !holds_side(session, shape, side)) return CUDA_ERROR_INVALID_VALUE;
  else parts.map(in.getPart(), side);
  return CUDA_SUCCESS;
}

Outcome closeHostBlock(Session& session, Call&, wire::CloseHostBlock::Reader in) {
  return session.host_blocks().close(in.getAddress());
}

Outcome writeHostBlock(Session& session, Call& call, wire::WriteHostBlock::Reader in) {
  std::uint64_t lost = 0;
  const std::uint64_t heard = in.getHeard();
  if (!session.host_blocks().write(in.getAddress(), call.bulk(), heard > 0 ? std::optional(heard - 1) : std::nullopt,
                                   lost))
    return CUDA_ERROR_INVALID_VALUE;
  tell_lost(session, call.id(), lost);
  return CUDA_SUCCESS;
}

Outcome changeHostBlock(Session& session, Call& call, wire::ChangeHostBlock::Reader in) {
  const std::span<const std::byte> both = call.bulk();
  if (both.empty() || both.size() % 2 != 0) throw ProtocolError("changed memory without what was there before");
  std::uint64_t lost = 0;
  if (!session.host_blocks().change(in.getAddress(), both.first(both.size() / 2), both.last(both.size() / 2), lost))
    return CUDA_ERROR_INVALID_VALUE;
  tell_lost(session, call.id(), lost);
  return CUDA_SUCCESS;
}

namespace {

void send_block(Session& session, const CallId& id, std::span<const std::byte> memory) {
  for (std::size_t offset = 0; offset < memory.size(); offset += limits::bulk_bytes_max) {
    const auto part = memory.subspan(offset, std::min<std::size_t>(limits::bulk_bytes_max, memory.size() - offset));
    // The block may go before they have left.
    auto copy = std::make_shared<std::vector<std::byte>>(part.begin(), part.end());
    session.output().data(id, *copy, [copy] {});
  }
}

// Several calls are served before anybody looks whether the client takes their answers, and each of these may be large.
bool has_room(Session& session, std::uint64_t bytes) {
  const std::size_t waiting = session.output().waiting_bytes();
  return waiting == 0 ||
         (waiting < session.options().output_bytes_max && bytes <= session.options().output_bytes_max - waiting);
}

}  // namespace

Outcome readHostBlock(Session& session, Call& call, wire::ReadHostBlock::Reader in) {
  if (!call.id().wants_reply) throw ProtocolError("bytes of a host block that nobody waits for");
  const std::uint64_t bytes = in.getBytes();
  if (bytes > limits::host_read_bytes_max) return CUDA_ERROR_INVALID_VALUE;
  const std::span<const std::byte> memory = session.host_blocks().find(in.getAddress(), bytes);
  if (memory.size() != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (has_room(session, bytes)) {
    send_block(session, call.id(), memory);
    return CUDA_SUCCESS;
  }
  // The thread that asks waits, so that its answer may be of a later moment.
  return answer_later(session, [&session, id = call.id(), address = in.getAddress(), bytes] {
    if (!has_room(session, bytes)) return false;
    const std::span<const std::byte> now = session.host_blocks().find(address, bytes);
    const bool there = now.size() == bytes;
    if (there) send_block(session, id, now);
    session.finish(id, there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    return true;
  });
}

}  // namespace fargpu::server::hand
