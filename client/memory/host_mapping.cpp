// How blocks of pinned memory become what kernels use, and are named to work.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "client/base/log.h"
#include "client/base/pages.h"
#include "client/base/uncancelled.h"
#include "client/call/client_lanes.h"
#include "client/call/refusal.h"
#include "client/call/remote_call.h"
#include "client/objects/contexts.h"
#include "client/objects/graphs.h"
#include "client/stream/settler.h"
#include "host_memory.h"
#include "operations.capnp.h"
#include "protocol/channel.h"
#include "protocol/rdma/stable_memory.h"

namespace fargpu::client {
namespace {

// Comparing costs no fault, and no round trip when the program looks, but every launch and wait goes through all of
// what is compared: some 50 us a MiB. So larger blocks are paged, and whatever would make the sum larger than that.
constexpr std::uint64_t compared_bytes_max = 256u << 10, compared_sum_max = 512u << 10;

}  // namespace

bool HostMemory::goes_by_pages(const Block& block) const {
  return block.owned &&
         (compares_no_more_ || block.bytes > compared_bytes_max || compared_bytes_ + block.bytes > compared_sum_max);
}

// A block becomes what kernels use, or goes by pages from now on. Takes and leaves the lock, which it has at its end.
class HostMemory::Becoming {
 public:
  Becoming(Block& block, std::unique_lock<std::mutex>& lock) : block_(block), lock_(lock) {
    block_.becomes_mapped = true;
    lock_.unlock();
  }
  ~Becoming() {
    if (!lock_.owns_lock()) lock_.lock();
    block_.becomes_mapped = false;
  }
  Becoming(const Becoming&) = delete;
  Becoming& operator=(const Becoming&) = delete;

 private:
  Block& block_;
  std::unique_lock<std::mutex>& lock_;
};

// Kernels come to use the block. The worker is asked without `lock`, which deliveries need.
CUresult HostMemory::begin_mapped(Thread& thread, const Region& region, Block& block,
                                  std::unique_lock<std::mutex>& lock) {
  const Uncancelled uncancelled;
  for (const auto& [number, memory] : parts_.graph_parts.within(block.base, block.bytes))
    if (memory.begin() < block.base || memory.begin() + memory.extent() > block.base + block.bytes)
      return refuse_use("kernel access to host memory of which a graph copies a part together with other memory");
  if (!block.owned && !take_alias(region, block)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t seen_at = block.owned ? block.base : block.alias;
  // The worker's memory is of the context that the program's is of.
  RemoteCall<wire::OpenHostBlock> call(thread, region.context);
  auto in = call.in();
  in.setAddress(block.base);
  const bool paged = goes_by_pages(block);
  in.setBytes(paged ? round_up(block.bytes) : block.bytes);
  in.setMapped(true);
  in.setDevice(seen_at);
  in.setPaged(paged);
  std::vector<std::byte> shadow;
  if (!paged) shadow.resize(block.bytes);  // zero, as the worker's memory begins
  const Becoming becoming(block, lock);
  if (paged) rdma::StableMemory::of_process().remove(bytes_at(block.base));  // its pages may not always be read
  CUresult result = call.wait();
  bool opened = block.opened || result == CUDA_SUCCESS;
  if (result == CUDA_SUCCESS && paged &&
      !pages_.adopt(parts_.contexts.home(*region.context), block.base, round_up(block.bytes))) {
    close(thread, block.base);
    opened = false;
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  lock.lock();
  block.opened = opened;
  if (result != CUDA_SUCCESS) return result;
  block.device_address = seen_at;
  block.paged = paged;
  block.shadow = std::move(shadow);
  mapped_.fetch_add(1);
  if (!block.owned) registered_mapped_.fetch_add(1);
  if (!paged) compared_.fetch_add(1);
  if (!paged && block.owned) compared_bytes_ += block.bytes;
  parts_.map.update(block.base, [&](Region& r) { r.device_address = seen_at; });
  return CUDA_SUCCESS;
}

CUresult HostMemory::map(Thread& thread, std::uint64_t address, std::uint64_t& device_address,
                         std::string_view kernel) {
  std::unique_lock order(order_, std::defer_lock);
  std::unique_lock lock(mutex_, std::defer_lock);
  std::optional<Region> region;
  if (const CUresult bad = lock_to_map(thread, address, order, lock, region); bad != CUDA_SUCCESS) return bad;
  Block* const block = find(address, 1);
  const bool now_mapped = block->device_address == 0;
  if (now_mapped) {
    if (const CUresult bad = begin_mapped(thread, *region, *block, lock); bad != CUDA_SUCCESS) return bad;
  }
  device_address = block->device_address + (address - block->base);
  if (!now_mapped) return is_to_be_paged(*block) ? page(thread, *region, *block, lock) : CUDA_SUCCESS;
  lock.unlock();
  log::debug(
      "kernels use the host's memory at {:#x} ({} bytes) from now on: {}", block->base, block->bytes,
      kernel.empty() ? "its device address is wanted" : fmt::format("an argument of {} has its address", kernel));
  name_parts(thread, *block);
  return CUDA_SUCCESS;
}

bool HostMemory::waits_to_map(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = find(address, 1);
  if (!block || block->device_address != 0) return false;
  const std::uint64_t end = block->base + block->bytes;
  return expected_.any(block->base, end) || expected_.used_by_threads(block->base, end) ||
         parts_.lanes.uses(block->base, end) ||
         (parts_.graphs.any_launched() && !parts_.graph_parts.within(block->base, block->bytes).empty());
}

bool HostMemory::take_alias(const Region& region, Block& block) {
  if (block.alias != 0) return true;
  const auto taken = window_.take(round_up(block.bytes), page_bytes);
  if (!taken) return false;
  block.alias = *taken;
  exists_ = true;
  parts_.map.add({.kind = Region::Kind::alias,
                  .base = block.alias,
                  .bytes = block.bytes,
                  .device = region.device,
                  .context = region.context,
                  .buffer_id = region.buffer_id,
                  .owner = block.base});
  return true;
}

CUresult HostMemory::promise(std::uint64_t address, std::uint64_t& device_address) {
  const auto region = parts_.map.find(address);
  const std::lock_guard order(order_);
  const std::lock_guard lock(mutex_);
  Block* const block = region && region->on_host() ? find(address, 1) : nullptr;
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  if (!block->owned && !take_alias(*region, *block)) return CUDA_ERROR_OUT_OF_MEMORY;
  device_address = (block->owned ? block->base : block->alias) + (address - block->base);
  return CUDA_SUCCESS;
}

CUresult HostMemory::keep_promise(Thread& thread, const Region& region, std::string_view kernel) {
  if (region.kind != Region::Kind::alias || mapped(region.owner)) return CUDA_SUCCESS;
  std::uint64_t known;
  return map(thread, region.owner, known, kernel);
}

CUresult HostMemory::map_if_registered(Thread& thread, std::string_view kernel, std::uint64_t& value) {
  if (value < registered_begin_ || value >= registered_end_) return CUDA_SUCCESS;
  const auto region = parts_.map.find(value);
  return region && region->kind == Region::Kind::registered ? map(thread, value, value, kernel) : CUDA_SUCCESS;
}

CUresult HostMemory::map_named_in(Thread& thread, std::string_view kernel, std::span<const std::byte> arguments,
                                  bool& copied) {
  for (std::size_t at = 0; at + 8 <= arguments.size(); at += 8) {
    std::uint64_t value;
    std::memcpy(&value, arguments.data() + at, sizeof(value));
    if (!bounds_.contains(value)) continue;
    const auto region = parts_.map.find(value);
    if (!region) continue;
    if (const CUresult result = keep_promise(thread, *region, kernel); result != CUDA_SUCCESS) return result;
    if (region->kind != Region::Kind::host) continue;
    std::uint64_t ignored;
    if (const CUresult result = map(thread, value, ignored, kernel); result != CUDA_SUCCESS) return result;
    copied = copied || !parts_.channel.shares_memory();
  }
  return CUDA_SUCCESS;
}

// Under order_. Kernels may be using the block, and the program too. What each has changed is found as with a page that
// the program wrote while the GPU was busy: what both knew last is the twin.
CUresult HostMemory::page(Thread& thread, const Region& region, Block& block, std::unique_lock<std::mutex>& lock) {
  const Uncancelled uncancelled;
  const Becoming becoming(block, lock);
  RemoteCall<wire::OpenHostBlock> call(parts_.calls, thread);
  auto in = call.in();
  in.setAddress(block.base);
  in.setBytes(round_up(block.bytes));
  in.setMapped(true);
  in.setDevice(block.base);
  in.setPaged(true);
  if (call.wait() != CUDA_SUCCESS) return CUDA_SUCCESS;  // an older host: the block stays as it is
  rdma::StableMemory::of_process().remove(bytes_at(block.base));
  lock.lock();
  const std::vector<std::byte> known = std::exchange(block.shadow, {});
  block.paged = true;  // before its pages are protected: the receiving thread must not touch them
  compared_.fetch_sub(1);
  compared_bytes_ -= block.bytes;
  lock.unlock();
  if (pages_.adopt(parts_.contexts.home(*region.context), block.base, round_up(block.bytes), known))
    return CUDA_SUCCESS;
  parts_.calls.events.lose("no room for the pages of pinned memory");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// A graph's copies from and to the program's memory are told as they were made. Once kernels use that memory they have
// to go where these see it: what one of them writes, another reads.
void HostMemory::name_parts(Thread& thread, const Block& block) {
  for (const auto& [number, memory] : parts_.graph_parts.within(block.base, block.bytes)) {
    RemoteCall<wire::MapGraphPart> call(parts_.calls, thread);
    auto in = call.in();
    in.setPart(number);
    CopySide seen = memory.side;
    seen.kind = CopySide::Kind::device;
    seen.place = block.device_address != 0 ? seen.place - block.base + block.device_address : 0;
    encode(seen, in.initPlace());
    call.tell();
  }
}

void HostMemory::graph_has(Thread& thread, const NewParts& parts) {
  const std::lock_guard order(order_);
  std::set<const Block*> blocks;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t number : parts.numbers()) {
      const auto memory = parts_.graph_parts.memory(number);
      const Block* const block = memory ? find(memory->begin(), 1) : nullptr;
      if (block && block->device_address != 0) blocks.insert(block);
    }
  }
  for (const Block* const block : blocks) name_parts(thread, *block);
}

// Takes both locks for a block that is to be mapped, when no copy is under way any more that reads it here or writes to
// the worker's copy of it. Other threads may make more of them while this one waits.
CUresult HostMemory::lock_to_map(Thread& thread, std::uint64_t address, std::unique_lock<std::mutex>& order,
                                 std::unique_lock<std::mutex>& lock, std::optional<Region>& region) {
  constexpr unsigned patience = 2, tries_max = 100;
  const auto awaited_until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // Set while other threads are to give way, and by this one alone.
  struct Wanting {
    std::atomic<std::uint64_t>& wanted;
    bool here = false;
    ~Wanting() {
      if (here) wanted = 0;
    }
  } wanting{wanted_};
  for (unsigned tries = 0;;) {
    order.lock();
    lock.lock();
    region = parts_.map.find(address);
    const Block* const block = find(address, 1);
    const bool there = region && region->on_host() && block;
    if (!there) return CUDA_ERROR_INVALID_VALUE;
    if (block->device_address != 0 && !is_to_be_paged(*block)) return CUDA_SUCCESS;
    const std::uint64_t end = block->base + block->bytes;
    const bool awaited = expected_.used_by_threads(block->base, end);
    if (tries > 0 && !awaited && !expected_.any(block->base, end) && !parts_.lanes.uses(block->base, end))
      return CUDA_SUCCESS;
    if (tries == tries_max || (awaited && std::chrono::steady_clock::now() >= awaited_until))
      return refuse_use("kernel access to host memory to which copies of other threads never end");
    if (awaited || tries >= patience) {
      wanting.here = true;
      wanted_ = block->base;
    }
    lock.unlock();
    order.unlock();
    if (awaited) {
      rest();
      continue;
    }
    if (const CUresult bad = settle_to_map(thread, *region); bad != CUDA_SUCCESS) return bad;
    ++tries;
  }
}

// A thread that waits to map the block goes first. This one gives way only briefly, because the other one may wait for
// something that is this one's to do.
void HostMemory::give_way(std::uint64_t address) const {
  constexpr auto patience = std::chrono::milliseconds(100);
  if (wanted_.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  const auto wanted = [&] {
    const std::lock_guard lock(mutex_);
    const Block* const block = find(address, 1);
    return block && block->base == wanted_;
  };
  for (const auto end = std::chrono::steady_clock::now() + patience;
       wanted() && std::chrono::steady_clock::now() < end;)
    rest();
}

// What copies have written to the worker's copy of a block comes here before that is replaced by what kernels see; and
// no lane may be reading pages that are taken away then. For which context a lane reads, and in which one a graph is
// launched that copies there, is not known.
CUresult HostMemory::settle_to_map(Thread& thread, const Region& region) {
  std::vector<Context*> users = delivering_to(region);
  bool read, copied;
  {
    const std::lock_guard lock(mutex_);
    read = parts_.lanes.uses(region.base, region.base + region.bytes);
    copied = parts_.graphs.any_launched() && !parts_.graph_parts.within(region.base, region.bytes).empty();
  }
  if (read || copied) {
    users.clear();
    parts_.contexts.for_active([&](Context& context) { users.push_back(&context); });
  }
  for (Context* const context : users)
    if (const CUresult bad = parts_.waits.settle(thread, *context); bad != CUDA_SUCCESS) return bad;
  return CUDA_SUCCESS;
}

// Until this thread looks again whether another one is done with a block.
void HostMemory::rest() {
  const Uncancelled uncancelled;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace fargpu::client
