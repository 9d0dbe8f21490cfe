#include "worker_lanes.h"

#include <algorithm>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

constexpr std::size_t slots = 64;
constexpr std::size_t slots_for_expected = limits::lanes_max;
static_assert(slots_for_expected < slots);
constexpr std::size_t refused_max = 1024;  // more than can be on their way: each thread of a client has one, and lanes hold so much

}  // namespace

WorkerLanes::~WorkerLanes() { close(); }

void WorkerLanes::add_lane(std::unique_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before) {
  {
    const std::lock_guard lock(mutex_);
    if (memory_.empty()) {
      memory_ = Pages(slots * limits::lane_chunk_bytes);
      if (memory_.empty()) throw SystemError("no memory for bulk lanes");
      for (std::size_t slot = 0; slot < slots; ++slot)
        free_.push_back(memory_.bytes().subspan(slot * limits::lane_chunk_bytes, limits::lane_chunk_bytes));
    }
  }
  lanes_.add(std::move(channel), sent_before, taken_before);
}

void WorkerLanes::pin(DriverTable& driver, const ContextState& context) {
  const std::lock_guard lock(mutex_);
  if (pinned_in_ || memory_.empty()) return;
  const std::span<std::byte> bytes = memory_.bytes();
  if (driver.cuMemHostRegister_v2(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS) pinned_in_ = &context;
}

void WorkerLanes::context_closes(DriverTable& driver, const ContextState& context) {
  if (pinned_in_ != &context) return;
  driver.cuMemHostUnregister(memory_.bytes().data());
  pinned_in_ = nullptr;
}

void WorkerLanes::receive(std::uint32_t transfer, std::uint64_t bytes, Taker taker) {
  const std::vector<Landed> early = expect(transfer);
  Receiving& receiving = receiving_[transfer];
  receiving.bytes = bytes;
  receiving.missing = chunks_of(bytes);
  receiving.arrived.resize(receiving.missing);
  receiving.taker = std::move(taker);
  for (const Landed& landed : early) arrived(landed);
}

void WorkerLanes::refuse(std::uint32_t transfer, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (refused_.size() == refused_max) throw ProtocolError("too many copies that were refused, and whose bytes do not come");
  const std::vector<Landed> early = expect(transfer);
  refused_[transfer] = chunks_of(bytes);
  for (const Landed& landed : early) arrived(landed);
}

std::vector<WorkerLanes::Landed> WorkerLanes::expect(std::uint32_t transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (!expected_.insert(transfer).second) throw ProtocolError("a transfer has the number of one that goes on");
  }
  changed_.notify_all();
  std::vector<Landed> mine;
  std::erase_if(early_, [&](const Landed& landed) {
    if (landed.chunk.transfer == transfer) mine.push_back(landed);
    return landed.chunk.transfer == transfer;
  });
  return mine;
}

void WorkerLanes::expect_no_more(std::uint32_t transfer) {
  const std::lock_guard lock(mutex_);
  expected_.erase(transfer);
}

void WorkerLanes::arrived(const Landed& landed) {
  const std::uint32_t transfer = landed.chunk.transfer;
  if (const auto wanted = receiving_.find(transfer); wanted != receiving_.end()) hand_over(wanted->second, landed);
  else if (const auto refused = refused_.find(transfer); refused != refused_.end()) drop(refused->second, landed);
  else early_.push_back(landed);
}

void WorkerLanes::hand_over(Receiving& transfer, const Landed& landed) {
  const std::uint64_t number = landed.chunk.number;
  const std::uint64_t begin = number * limits::lane_chunk_bytes;
  if (number >= transfer.arrived.size() || transfer.arrived[number] ||
      landed.slot.size() != std::min<std::uint64_t>(limits::lane_chunk_bytes, transfer.bytes - begin))
    throw ProtocolError("a chunk that is none of its transfer, or came twice");
  transfer.arrived[number] = true;
  const Taker taker = transfer.taker;
  if (--transfer.missing == 0) {
    receiving_.erase(landed.chunk.transfer);
    expect_no_more(landed.chunk.transfer);
  }
  taker(landed.chunk, landed.slot);
}

void WorkerLanes::drop(std::uint64_t& missing, const Landed& landed) {
  give(landed.slot);
  if (--missing > 0) return;
  refused_.erase(landed.chunk.transfer);
  expect_no_more(landed.chunk.transfer);
}

void WorkerLanes::give(std::span<std::byte> slot) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back({slot.data(), limits::lane_chunk_bytes});
  }
  changed_.notify_all();  // they wait for different things
}

void WorkerLanes::send(Chunk chunk, std::span<const std::byte> bytes, Release release) {
  lanes_.send(chunk, bytes, [this, release = std::move(release)](bool) {
    {
      const std::lock_guard lock(mutex_);
      left_.push_back(release);
    }
    waker_.signal();
  });
}

bool WorkerLanes::collect() {
  std::vector<Landed> landed;
  std::vector<Release> left;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_why_.empty()) throw ChannelClosed("a bulk lane is lost: " + lost_why_);
    landed.swap(landed_);
    left.swap(left_);
  }
  for (const Landed& one : landed) arrived(one);
  for (const Release& release : left) release();
  return !landed.empty() || !left.empty();
}

void WorkerLanes::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  lanes_.close();
}

std::span<std::byte> WorkerLanes::place(Chunk chunk, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || free_.size() > (expected_.contains(chunk.transfer) ? 0 : slots_for_expected); });
  if (closed_) return {};
  const std::span<std::byte> slot = free_.back();
  free_.pop_back();
  return slot.first(bytes);
}

void WorkerLanes::landed(Chunk chunk, std::span<std::byte> bytes) {
  {
    const std::lock_guard lock(mutex_);
    landed_.push_back({chunk, bytes});
  }
  waker_.signal();
}

void WorkerLanes::lost(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    lost_why_ = why;
  }
  waker_.signal();
}

}  // namespace fargpu::server
