#include "ways_to_host.h"

#include <cstring>
#include <vector>

#include "client/base/log.h"
#include "client/base/pages.h"
#include "client/call/trace.h"
#include "program_bytes.h"
#include "protocol/errors.h"

namespace fargpu::client {

CUresult FrameReply::fetch(const CopyPart& part) {
  CopyOutCall call(job, part.shape, part.source, {});
  const bool in_place = part.target.packed(part.shape);
  const std::uint64_t bytes = part.shape.bytes();
  std::vector<std::byte> packed;
  if (in_place) touch_for_writing(part.target.place, bytes);
  else packed.resize(bytes);
  call.target({in_place ? bytes_at(part.target.place) : packed.data(), bytes});
  const std::uint64_t items = job.stream.items.load();
  const CUresult result = call.wait(job.stream);
  if (result != CUDA_SUCCESS) return result;
  if (call.arrived_bytes() != bytes) throw ProtocolError("the worker sent too few bytes of a copy");
  job.stream.complete(call.number(), items + 1);
  if (call.spoiled()) {
    touch_for_writing(part.target.place, bytes);  // the fault is met here, as in the driver's own copy
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::uint64_t y = 0; !in_place && y < part.shape.height; ++y)
    std::memcpy(bytes_at(part.target.row(y, 0)), packed.data() + y * part.shape.width, part.shape.width);
  return result;
}

CUresult StagedReply::fetch() {
  const CUresult result = job_.for_parts(SharedStaging::part_bytes(job_.copy.shape.bytes()),
                                         [&](const CopyPart& part) { return ask_for(part); });
  while (filled_ && !filling_.empty()) empty_oldest();
  return result;
}

CUresult StagedReply::ask_for(const CopyPart& part) {
  auto slot = staging_.take(job_.thread, home_, job_.stream, filling_.empty());
  while (!slot && !filling_.empty()) {  // others have the rest: so that nobody waits for another in a circle, ours are
                                        // given back first
    empty_oldest();
    slot = staging_.take(job_.thread, home_, job_.stream, filling_.empty());
  }
  if (!slot) return FrameReply{job_}.fetch(part);
  CopyOutCall call(job_, part.shape, part.source, {.kind = CopySide::Kind::block, .place = slot->address()});
  call.host_visible();
  const CUresult posted = call.post(job_.stream);
  fences_.after(job_.thread, job_.stream, [slot] { slot->passed.store(true, std::memory_order_release); });
  filling_.push_back({std::move(slot), part.target.place, part.shape.bytes()});
  filled_ = posted == CUDA_SUCCESS;
  return posted;
}

void StagedReply::empty_oldest() {
  const Filling oldest = std::move(filling_.front());
  filling_.pop_front();
  commands_.flush();
  receiver_.wait_until([&] { return oldest.slot->passed.load(std::memory_order_acquire); });
  staging_.copy(bytes_at(oldest.target), oldest.slot->data(), oldest.bytes);
}

namespace {

// Nothing is written to the memory any more when the call is over, however it ends.
class Arrival {
 public:
  Arrival(ClientLanes& lanes, const LaneRows& rows)
      : lanes_(lanes), incoming_(lanes.expect(rows, nullptr, transfer_)) {}
  ~Arrival() {
    if (incoming_) lanes_.cancel(transfer_);
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  explicit operator bool() const { return incoming_ != nullptr; }
  std::uint32_t transfer() const { return transfer_; }
  bool wait() { return lanes_.wait_arrived(*incoming_); }

 private:
  ClientLanes& lanes_;
  std::uint32_t transfer_ = 0;
  const std::shared_ptr<ClientLanes::Incoming> incoming_;
};

}  // namespace

std::optional<CUresult> LaneReply::fetch(const CopyPart& part) {
  // Pages that are not there yet come as the bytes do, on several threads.
  for (std::uint64_t y = 0; y < part.shape.height; ++y) {
    touch_for_writing(part.target.row(y, 0), 1);
    touch_for_writing(part.target.row(y, 0) + part.shape.width - 1, 1);
  }
  Arrival arrival(lanes, {part.target, part.shape, /*unsure=*/false});
  if (!arrival) return std::nullopt;
  CopyOutCall call(job, part.shape, part.source, {.kind = CopySide::Kind::lanes, .place = arrival.transfer()});
  const std::uint64_t items = job.stream.items.load();
  CUresult result = call.wait(job.stream);
  if (result != CUDA_SUCCESS) return result;
  {
    const trace::Transfer traced(job.thread, trace::Direction::in, part.shape.bytes());
    if (!arrival.wait()) {
      // The fault is met here, as in the driver's own copy.
      for (std::uint64_t y = 0; y < part.shape.height; ++y) touch_for_writing(part.target.row(y, 0), part.shape.width);
      result = CUDA_ERROR_INVALID_VALUE;
    }
  }
  job.stream.complete(call.number(), items + 1);
  return result;
}

std::optional<CUresult> LaneDelivery::ask_for(const CopyPart& part) {
  const LaneRows rows(part.target, part.shape, unsure);
  const std::uint64_t begin = rows.begin(), end = rows.end();
  if (!memory.expect_by_lanes(*job.stream.context, begin, end)) return std::nullopt;
  const auto done = [&memory = memory, begin, end, thread = job.thread.id()](bool written) {
    memory.arrived_by_lanes(begin, end);
    if (written) return;
    log::warn("an asynchronous copy was to write memory that cannot be written any more");
    Thread::deliver_error(thread, CUDA_ERROR_INVALID_VALUE, "an asynchronous copy");
  };
  std::uint32_t transfer = 0;
  const auto take_back = [&] {
    if (transfer != 0) lanes.cancel(transfer);
    memory.arrived_by_lanes(begin, end);
  };
  CUresult result;
  try {
    if (!lanes.expect(rows, done, transfer)) {
      take_back();
      return std::nullopt;
    }
    CopyOutCall call(job, part.shape, part.source, {.kind = CopySide::Kind::lanes, .place = transfer});
    call.host_visible();
    result = call.post(job.stream);
  } catch (...) {
    take_back();
    throw;
  }
  if (result != CUDA_SUCCESS) take_back();
  return result;
}

CUresult Delivery::ask_for(const CopyPart& part) {
  const std::uint64_t bytes = part.shape.bytes();
  const std::uint32_t delivery = memory.expect_delivery(job.thread, *job.stream.context, part.target.place, bytes);
  CopyOutCall call(job, part.shape, part.source, {.kind = CopySide::Kind::block, .place = part.target.place});
  call.in().setDelivery(delivery);
  call.host_visible();
  const CUresult result = call.post(job.stream);
  if (result != CUDA_SUCCESS) memory.cancel_delivery(delivery);
  return result;
}

}  // namespace fargpu::client
