#include "host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "operations.capnp.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/rdma/stable_memory.h"
#include "protocol/sealed_memory.h"
#include "client/call/client_lanes.h"
#include "client/call/remote_call.h"
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
#include "client/base/untorn_copy.h"

namespace fargpu::client {
namespace {

// For blocks up to here the flag of their allocation says that kernels use them.
constexpr std::uint64_t mapped_by_flag_max = 1u << 20;

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
