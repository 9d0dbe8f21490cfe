#include "ways_to_device.h"

#include <cstring>
#include <vector>

#include "client/base/log.h"
#include "client/base/pages.h"
#include "client/call/trace.h"
#include "program_bytes.h"

namespace fargpu::client {

CUresult FrameBytes::send(const CopyPart& part) { return *send(part, /*if_room=*/false); }

std::optional<CUresult> FrameBytes::send_if_room(const CopyPart& part) { return send(part, /*if_room=*/true); }

std::optional<CUresult> FrameBytes::send(const CopyPart& part, bool if_room) {
  const std::uint64_t bytes = part.shape.bytes();
  if (!gathers && part.source.packed(part.shape)) {
    touch_for_reading(part.source.place, bytes);
    return copy_frame_in(job, part.shape, part.target, {bytes_at(part.source.place), bytes}, if_room);
  }
  std::vector<std::byte> packed(bytes);
  for (std::uint64_t y = 0; y < part.shape.height; ++y)
    std::memcpy(packed.data() + y * part.shape.width, bytes_at(part.source.row(y, 0)), part.shape.width);
  return copy_frame_in(job, part.shape, part.target, packed, if_room);
}

std::optional<CUresult> StagedBytes::send(const CopyPart& part) {
  const auto slot = staging.take(job.thread, home, job.stream, true);
  if (!slot) return std::nullopt;
  staging.copy(slot->data(), bytes_at(part.source.place), part.shape.bytes());
  const CUresult result = copy_in(job, part.shape, part.target,
                                  {.kind = CopySide::Kind::block, .place = slot->address()}, Sending::with_call);
  fences.after(job.thread, job.stream, [slot] {});
  return result;
}

std::optional<CUresult> LaneBytes::send(const CopyPart& part) {
  const auto call = [&](std::uint32_t transfer, std::uint32_t early) {
    RemoteCall<wire::CopyIn> copy(job.thread, job.stream.context);
    auto in = copy.in();
    in.setStream(job.stream.wire());
    encode(part.shape, {.kind = CopySide::Kind::lanes, .place = transfer}, part.target, in.initCopy());
    in.setTakenForDone(job.copy.done_on_return);
    in.setEarly(early);
    in.setInOrder(in_order);
    if (job.host_sees_target) copy.host_visible();
    if (!in_order) copy.taken();
    const CUresult posted = copy.post(job.stream);
    // All bytes of small copies in a row go unasked; the calls gather.
    if (posted == CUDA_SUCCESS && (awaited || lane_class(part.shape) == LaneClass::large)) commands.flush();
    return posted;
  };
  std::function<void()> unreadable;
  if (!awaited) {
    unreadable = [thread = job.thread.id()] {
      log::warn("an asynchronous copy has read memory that was unmapped before it was done");
      Thread::deliver_error(thread, CUDA_ERROR_INVALID_VALUE, "an asynchronous copy");
    };
  }
  const LaneRows rows(part.source, part.shape, unsure, of_no_file);
  CopyStream on;
  if (!awaited && !in_order) on = {&job.stream, job.stream.context, job.stream.blocking()};
  CUresult result = CUDA_SUCCESS;
  const auto outgoing = lanes.offer(rows, in_order, std::move(unreadable), on, call, result);
  if (!outgoing || !awaited) return result;
  const trace::Transfer traced(job.thread, trace::Direction::out, part.shape.bytes());
  return lanes.wait_read(*outgoing) ? std::optional(result) : std::nullopt;
}

CUresult BlockBytes::send(const CopyPart& part) {
  if (memory.mapped(part.source.place)) memory.send_changes(job.thread);
  return copy_in(job, part.shape, part.target, {.kind = CopySide::Kind::block, .place = part.source.place},
                 Sending::apart);
}

CUresult PulledBytes::send(const CopyPart& part) {
  return copy_in(job, part.shape, part.target, {.kind = CopySide::Kind::pull, .place = part.source.place},
                 Sending::apart);
}

CUresult PulledPart::send(const CopyPart& part) {
  NewParts parts(graph_parts);
  GraphParts::Memory memory{part.source, part.shape, /*source=*/true};
  memory.side.kind = CopySide::Kind::host;
  if (memory.side.pitch == 0) memory.side.pitch = part.shape.width;
  const std::uint64_t number = parts.add(memory);
  const CUresult result =
      copy_in(job, part.shape, part.target, {.kind = CopySide::Kind::part, .place = number}, Sending::apart);
  if (result == CUDA_SUCCESS) parts.keep();
  return result;
}

}  // namespace fargpu::client
