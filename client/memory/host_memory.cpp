#include "host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "operations.capnp.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/rdma/stable_memory.h"
#include "protocol/sealed_memory.h"
#include "client/call/client_lanes.h"
#include "client/call/remote_call.h"
#include "client/call/refusal.h"
#include "client/objects/contexts.h"
#include "client/objects/graphs.h"
#include "client/stream/fences.h"
#include "client/stream/settler.h"
#include "client/stream/stream_waits.h"
#include "conflicts.h"
#include "managed_memory.h"
#include "protocol/channel.h"
#include "client/base/log.h"
#include "client/base/pages.h"
#include "client/base/uncancelled.h"
#include "client/base/untorn_copy.h"

namespace fargpu::client {
namespace {

// For blocks up to here the flag of their allocation says that kernels use them.
constexpr std::uint64_t mapped_by_flag_max = 1u << 20;
// Comparing costs no fault, and no round trip when the program looks, but every launch and wait goes through all of
// what is compared: some 50 us a MiB. So larger blocks are paged, and whatever would make the sum larger than that.
constexpr std::uint64_t compared_bytes_max = 256u << 10, compared_sum_max = 512u << 10;

// Whether the program has unmapped some of its memory, which it must not before it has unregistered it. A driver keeps
// the pages, and the program goes on.
bool is_unmapped(std::uint64_t address, std::uint64_t bytes) {
  std::array<unsigned char, 16384> resident;  // which nobody asks for
  const std::uint64_t end = round_up(address + bytes);
  for (std::uint64_t begin = address / page_bytes * page_bytes; begin < end; begin += resident.size() * page_bytes) {
    if (::mincore(bytes_at(begin), std::min<std::uint64_t>(end - begin, resident.size() * page_bytes),
                  resident.data()) == 0 ||
        errno != ENOMEM)
      continue;
    static std::atomic<bool> told{false};
    if (!told.exchange(true))
      log::warn(
          "registered memory at {:#x} was unmapped before cuMemHostUnregister: kernels and the program no longer "
          "see each other's changes there",
          address);
    return true;
  }
  return false;
}

// Blocks of so many bytes begin at a multiple of it, so that the kernel can give them large pages: these are copied
// faster.
constexpr std::uint64_t huge_page_bytes = 2u << 20;

// How long a thread sleeps that looks whether another one is done with a block.
void rest() {
  const Uncancelled uncancelled;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

HostMemory::HostMemory(const Parts& parts, std::uint64_t window_base, std::uint64_t window_bytes)
    : parts_(parts),
      bounds_{window_base, window_bytes},
      window_(window_base, window_bytes),
      pages_({parts.calls, parts.contexts, parts.whole_system_work}, {window_base, window_bytes}) {}

CUresult HostMemory::allocate(Thread& thread, Context& context, std::size_t bytes, unsigned flags, void** pointer) {
  if (bytes > window_.bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  std::uint64_t base;
  if (parts_.channel.shares_memory()) {
    if (const CUresult bad = share(thread, context, round_up(bytes), base); bad != CUDA_SUCCESS) return bad;
  } else {
    if (const CUresult bad = take_window(round_up(bytes), base); bad != CUDA_SUCCESS) return bad;
    void* const mapped =
        ::mmap(bytes_at(base), round_up(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (mapped == MAP_FAILED) {
      give_window(base, round_up(bytes));
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (bytes >= huge_page_bytes) ::madvise(mapped, round_up(bytes), MADV_HUGEPAGE);
    rdma::StableMemory::of_process().add(bytes_at(base), bytes);
  }
  const CUresult result = hold(thread,
                               {.kind = Region::Kind::host,
                                .base = base,
                                .bytes = bytes,
                                .device = context.device,
                                .context = &context,
                                .flags = flags,
                                .device_address = base},
                               flags & CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS) *pointer = bytes_at(base);
  return result;
}

CUresult HostMemory::take_window(std::uint64_t bytes, std::uint64_t& base) {
  const std::lock_guard lock(mutex_);
  const auto taken = window_.take(bytes, bytes < huge_page_bytes ? page_bytes : huge_page_bytes);
  exists_ = true;
  if (taken) base = *taken;
  return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// The addresses stay reserved, so that nothing else of the program comes to lie there. A worker in this process has its
// own copy of the block in these very pages, and may not have heard yet that it is gone.
void HostMemory::give_window(std::uint64_t base, std::uint64_t bytes) {
  rdma::StableMemory::of_process().remove(bytes_at(base));
  if (!parts_.one_process)
    ::mmap(bytes_at(base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  const std::lock_guard lock(mutex_);
  window_.give(base, bytes);
}

CUresult HostMemory::share(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& base) {
  if (const CUresult bad = take_window(bytes, base); bad != CUDA_SUCCESS) return bad;
  // Descriptors come in the order of the answers: one at a time is asked for.
  const std::lock_guard order(order_);
  RemoteCall<wire::OpenHostBlock> call(thread, &context);
  auto in = call.in();
  in.setAddress(base);
  in.setBytes(bytes);
  in.setShared(true);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) {
    give_window(base, bytes);
    return result;
  }
  const int descriptor = parts_.channel.receive_descriptor();
  if (descriptor < 0) throw ProtocolError("pinned memory is to be shared, and was not sent");
  const bool sealed = is_sealed_memory(descriptor, bytes);
  const bool mapped = sealed && ::mmap(bytes_at(base), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                       descriptor, 0) != MAP_FAILED;
  ::close(descriptor);
  if (!sealed) throw ProtocolError("pinned memory is to be shared that could shrink");
  if (mapped) return CUDA_SUCCESS;
  close(thread, base);
  give_window(base, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult HostMemory::hold(Thread& thread, Region region, bool for_kernels) {
  const bool shared = region.kind == Region::Kind::host && parts_.channel.shares_memory();
  {
    const std::lock_guard lock(mutex_);
    auto block = std::make_unique<Block>();
    block->base = region.base;
    block->bytes = region.bytes;
    block->owned = region.kind == Region::Kind::host;
    block->shared = shared;
    if (shared) block->device_address = region.base;
    block->opened = shared;
    blocks_.emplace(region.base, std::move(block));
  }
  if (shared) mapped_.fetch_add(1);
  region.buffer_id = parts_.map.next_buffer_id();
  parts_.map.add(region);
  if (shared) return CUDA_SUCCESS;
  // Large ones wait for more than a flag to say so, for copies from and to blocks that kernels use are slower.
  if (!for_kernels || region.bytes > mapped_by_flag_max) return CUDA_SUCCESS;
  std::uint64_t device_address;
  const CUresult result = map(thread, region.base, device_address);
  if (result != CUDA_SUCCESS) {
    parts_.map.remove(region.base);
    drop(thread, region.base);
  }
  return result;
}

// A call to the worker is answered before it is carried out while a stream waits for the program. Then it is told, and
// the place is free behind a fence.
Fences* HostMemory::instead_of_an_answer(Fences& fences) const {
  return parts_.stream_waits.any_here() ? &fences : nullptr;
}

CUresult HostMemory::free(Thread& thread, void* pointer, Fences& fences) {
  const auto base = reinterpret_cast<std::uint64_t>(pointer);
  const auto region = parts_.map.find(base);
  if (!region || region->kind != Region::Kind::host || region->base != base || region->pool)
    return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = wait_for_users(thread, *region);
  parts_.map.remove(base);
  drop(thread, base, /*gone_at_worker=*/false, instead_of_an_answer(fences));
  return result;
}

void HostMemory::discard(Thread& thread, std::uint64_t base, std::uint64_t buffer_id, Fences& fences) {
  if (parts_.map.remove_if(base, [&](const Region& region) { return region.buffer_id == buffer_id; }))
    drop(thread, base, /*gone_at_worker=*/false, &fences);
}

CUresult HostMemory::add(Thread& thread, Context& context, void* pointer, std::size_t bytes, unsigned flags) {
  const auto base = reinterpret_cast<std::uint64_t>(pointer);
  if (parts_.map.overlaps(base, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  {
    const std::lock_guard lock(mutex_);
    registered_begin_ = std::min(registered_begin_.load(), base);
    registered_end_ = std::max(registered_end_.load(), base + bytes);
  }
  return hold(thread,
              {.kind = Region::Kind::registered,
               .base = base,
               .bytes = bytes,
               .device = context.device,
               .context = &context,
               .flags = flags},
              flags & CU_MEMHOSTREGISTER_DEVICEMAP);
}

CUresult HostMemory::remove(Thread& thread, void* pointer, Fences& fences) {
  const auto base = reinterpret_cast<std::uint64_t>(pointer);
  const auto region = parts_.map.find(base);
  if (region && region->kind == Region::Kind::host) return CUDA_ERROR_INVALID_VALUE;
  if (!region || region->kind != Region::Kind::registered || region->base != base)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  const CUresult result = wait_for_users(thread, *region);
  parts_.map.remove(base);
  drop(thread, base, /*gone_at_worker=*/false, instead_of_an_answer(fences));
  return result;
}

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

// The driver waits here for work of the context, and copies under way need the memory, whichever context they are of.
// This call tells of no failure of other contexts, and it waits even if an earlier call has failed.
CUresult HostMemory::wait_for_users(Thread& thread, const Region& region) {
  if (parts_.contexts.idle()) return CUDA_SUCCESS;
  const CUresult late = thread.take_late_error();
  const Thread::AnswersOnly answers_only(thread);
  for (Context* const context : delivering_to(region)) (void)parts_.waits.settle(thread, *context);
  const CUresult result = parts_.waits.settle(thread, *region.context);
  return late != CUDA_SUCCESS ? late : result;
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

// Any context may copy to the memory, not only the one that it is of.
std::vector<Context*> HostMemory::delivering_to(const Region& region) {
  std::vector<const Context*> wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = expected_.contexts(region.base, region.base + region.bytes);
  }
  std::vector<Context*> found;
  if (!wanted.empty())
    parts_.contexts.for_active([&](Context& context) {
      if (std::find(wanted.begin(), wanted.end(), &context) != wanted.end()) found.push_back(&context);
    });
  return found;
}

CUresult HostMemory::reach(Thread& thread, std::uint64_t& address, RemoteCallBase& call) {
  const auto region = parts_.map.find(address);
  if (!region) return CUDA_SUCCESS;
  const bool on_host = region->on_host() || region->kind == Region::Kind::alias;
  if (!on_host && !region->managed()) return CUDA_SUCCESS;
  call.host_visible();
  call.count(parts_.whole_system_work.giving());  // before the program's changes are sent
  if (region->managed()) parts_.managed.before_work(thread);
  if (!on_host) return CUDA_SUCCESS;
  if (region->on_host()) {
    if (const CUresult result = map(thread, address, address); result != CUDA_SUCCESS) return result;
  } else if (const CUresult result = keep_promise(thread, *region); result != CUDA_SUCCESS) {
    return result;
  }
  before_work(thread);
  return CUDA_SUCCESS;
}

bool HostMemory::mapped(std::uint64_t address) const {
  if (!any_mapped()) return false;
  const std::lock_guard lock(mutex_);
  const Block* const block = find(address, 1);
  return block && block->device_address != 0;
}

bool HostMemory::at_worker(std::uint64_t address) const {
  if (!any_mapped()) return false;
  const std::lock_guard lock(mutex_);
  const Block* const block = find(address, 1);
  return block && (block->paged || block->shared);
}

void HostMemory::send_changes(Thread& thread) {
  if (compared_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard order(order_);
  for (std::uint64_t after = 0;;) {
    std::vector<Change> changes;
    {
      const std::lock_guard lock(mutex_);
      Block* const block = next_compared(after);
      if (!block) return;
      after = block->base;
      changes = take_changes(*block);
    }
    for (const Change& change : changes) {
      for (std::size_t offset = 0; offset < change.bytes.size(); offset += limits::bulk_bytes_max) {
        RemoteCall<wire::WriteHostBlock> call(parts_.calls, thread);
        call.in().setAddress(change.address + offset);
        call.in().setHeard(change.heard + 1);
        call.bulk(
            std::span(change.bytes).subspan(offset, std::min(limits::bulk_bytes_max, change.bytes.size() - offset)));
        call.tell();
      }
    }
  }
}

HostMemory::Block* HostMemory::next_compared(std::uint64_t after) const {
  for (auto it = blocks_.upper_bound(after); it != blocks_.end(); ++it)
    if (it->second->compared()) return it->second.get();
  return nullptr;
}

// What is sent is a copy, and the shadow the same, so that it holds exactly what the worker gets while the program goes
// on writing.
std::vector<HostMemory::Change> HostMemory::take_changes(Block& block) {
  std::vector<Change> changes;
  if (!block.owned && is_unmapped(block.base, block.bytes)) return changes;
  const std::span<const std::byte> now(bytes_at(block.base), block.bytes);
  for_changed_runs(now, block.shadow, [&](std::size_t offset, std::size_t bytes) {
    Change& change = changes.emplace_back();
    change.address = block.base + offset;
    change.heard = deliveries_;
    change.bytes.assign(now.begin() + static_cast<std::ptrdiff_t>(offset),
                        now.begin() + static_cast<std::ptrdiff_t>(offset + bytes));
    std::memcpy(block.shadow.data() + offset, change.bytes.data(), bytes);
  });
  return changes;
}

std::uint32_t HostMemory::expect_delivery(Thread& thread, Context& context, std::uint64_t address,
                                          std::uint64_t bytes) {
  give_way(address);
  const std::lock_guard order(order_);
  Block* opened = nullptr;
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (Block* const block = find(address, bytes); block && !block->opened) {
      block->opened = true;
      opened = block;
    }
    // Into a paged block the copy goes at the worker.
    if (const Block* const block = find(address, bytes); !block || !block->paged)
      number = expected_.add(By::connection, address, address + bytes, context);
  }
  if (!opened) return number;
  const auto region = parts_.map.find(address);
  open(thread, region ? *region->context : context, *opened);
  return number;
}

void HostMemory::cancel_delivery(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  expected_.over(number);
}

bool HostMemory::expect_by_lanes(Context& context, std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  // Bytes on the lanes could overtake those that come otherwise.
  if (expected_.any(By::connection, begin, end)) return false;
  // And the pages may be taken away.
  if (const Block* const block = find(begin, 1); block && (block->becomes_mapped || block->device_address != 0))
    return false;
  expected_.add(By::lanes, begin, end, context);
  return true;
}

bool HostMemory::expect_awaited(Context& context, std::uint64_t begin, std::uint64_t end) {
  give_way(begin);
  for (bool waited = false;; waited = true) {
    {
      const std::lock_guard lock(mutex_);
      const Block* const block = find(begin, 1);
      if (!block || !block->becomes_mapped) {
        if (waited || (block && (block->paged || block->shared))) return false;
        expected_.add(By::thread, begin, end, context);
        return true;
      }
    }
    rest();
  }
}

void HostMemory::awaited_is_over(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  expected_.over(By::thread, begin, end);
}

void HostMemory::begin_reading(std::uint64_t begin, std::uint64_t end) {
  give_way(begin);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      const Block* const block = find(begin, 1);
      if (!block || !block->becomes_mapped) {
        expected_.begin_reading(begin, end);
        return;
      }
    }
    rest();
  }
}

void HostMemory::reading_is_over(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  expected_.reading_is_over(begin, end);
}

void HostMemory::arrived_by_lanes(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  expected_.over(By::lanes, begin, end);
}

ExpectedBytes::Part HostMemory::newest(std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return expected_.newest(address, address + bytes);
}

bool HostMemory::expects(std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return expected_.any(address, address + bytes);
}

bool HostMemory::expects_any() const {
  if (compared_.load(std::memory_order_relaxed) > 0 || parts_.graphs.any_launched()) return true;
  const std::lock_guard lock(mutex_);
  return !expected_.empty();
}

bool HostMemory::awaits(std::uint64_t address, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = find(address, bytes);
  return block && block->opened && !block->paged && !block->shared;
}

void HostMemory::lost(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  if (const Block* const block = find(address, 1)) note_lost(*block, address);
  else note_conflict(address, "pinned", 0, 0);
}

void HostMemory::note_lost(const Block& block, std::uint64_t address) {
  note_conflict(address, block.owned ? "pinned" : "registered", block.base, block.bytes);
}

// The bytes came somewhere else: a worker that sends them slowly must not write to memory that is another's by then.
void HostMemory::delivered(std::uint64_t address, std::span<const std::byte> bytes, std::uint32_t copy, bool over) {
  const std::lock_guard lock(mutex_);
  ++deliveries_;
  if (over) {
    expected_.over(copy);
    return;
  }
  if (bytes.empty()) return;
  if (Block* const block = find(address, bytes.size()); block && block->opened && !block->paged && !block->shared &&
                                                        (block->owned || !is_unmapped(address, bytes.size()))) {
    if (block->device_address != 0) {
      const auto known = std::span(block->shadow).subspan(address - block->base, bytes.size());
      // A copy that the program has asked for may replace what it wrote there.
      const bool copied = expected_.any(address, address + 1);
      const std::size_t both = copied ? bytes.size() : changed_by_both(bytes, {bytes_at(address), bytes.size()}, known);
      if (both < bytes.size()) note_lost(*block, address + both);
      std::memcpy(known.data(), bytes.data(), bytes.size());
    }
    copy_untorn(bytes_at(address), bytes);
  }
  expected_.arrived(address, address + bytes.size(), copy);
}

void HostMemory::context_closed(Thread& thread, Context& context) {
  {
    const std::lock_guard lock(mutex_);
    expected_.forget(context);
  }
  for (const Region& region : parts_.map.extract([&](const Region& r) { return r.on_host() && r.context == &context; }))
    drop(thread, region.base, true);
}

HostMemory::Block* HostMemory::find(std::uint64_t address, std::uint64_t bytes) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  Block* const block = std::prev(it)->second.get();
  const std::uint64_t offset = address - block->base;
  return offset <= block->bytes && block->bytes - offset >= bytes ? block : nullptr;
}

void HostMemory::open(Thread& thread, Context& owner, const Block& block) {
  RemoteCall<wire::OpenHostBlock> call(thread, &owner);
  auto in = call.in();
  in.setAddress(block.base);
  in.setBytes(block.bytes);
  call.tell();
}

void HostMemory::close(Thread& thread, std::uint64_t base, bool awaited) {
  RemoteCall<wire::CloseHostBlock> call(parts_.calls, thread);
  call.in().setAddress(base);
  const Thread::AnswersOnly answers_only(thread);
  if (awaited) call.wait();
  else call.tell();
}

// With `fences` nothing is waited for.
void HostMemory::drop(Thread& thread, std::uint64_t base, bool gone_at_worker, Fences* fences) {
  std::unique_lock order(order_);
  std::unique_ptr<Block> block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(base);
    if (found == blocks_.end()) return;
    block = std::move(found->second);
    blocks_.erase(found);
    expected_.forget(block->base, block->base + block->bytes);
    if (block->device_address != 0) {
      mapped_.fetch_sub(1);
      if (!block->owned) registered_mapped_.fetch_sub(1);
    }
    if (block->compared()) compared_.fetch_sub(1);
    if (block->compared() && block->owned) compared_bytes_ -= block->bytes;
  }
  parts_.lanes.forget(block->base, block->base + block->bytes);
  parts_.stream_waits.forget(block->base, block->bytes);
  if (block->paged) pages_.forsake(block->base);
  if (const std::uint64_t seen_at = std::exchange(block->device_address, 0); seen_at != 0) {
    name_parts(thread, *block);
    block->device_address = seen_at;
  }
  order.unlock();
  // The worker closes it behind all work that is held back, of other contexts too. Until then its place is not free.
  const bool busy = block->opened && !gone_at_worker && !parts_.contexts.quiet();
  if (block->opened && !gone_at_worker) close(thread, block->base, busy && !fences);
  if (block->alias != 0) parts_.map.remove(block->alias);
  const auto give = [this, base, bytes = round_up(block->bytes), owned = block->owned, alias = block->alias] {
    if (owned) give_window(base, bytes);
    if (alias == 0) return;
    const std::lock_guard lock(mutex_);
    window_.give(alias, bytes);
  };
  if (busy && fences && (block->owned || block->alias != 0)) fences->after_all(thread, give);
  else give();
}

}  // namespace fargpu::client
