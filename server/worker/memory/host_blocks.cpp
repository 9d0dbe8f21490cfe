#include "host_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/sealed_memory.h"

namespace fargpu::server {
namespace {

constexpr std::uint64_t page_bytes = 4096;
std::uint64_t round_up(std::uint64_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

// Gives a word of memory that the GPU may be writing its new contents. Returns whether it was what was known.
bool exchange_word(std::byte* memory, const std::byte* now, const std::byte* known, std::size_t bytes) {
  std::uint32_t there = 0;
  if (bytes == sizeof there && reinterpret_cast<std::uintptr_t>(memory) % sizeof there == 0) {
    std::uint32_t wanted = 0;
    std::memcpy(&wanted, now, bytes);
    there = std::atomic_ref(*reinterpret_cast<std::uint32_t*>(memory)).exchange(wanted);
  } else {
    std::memcpy(&there, memory, bytes);
    std::memcpy(memory, now, bytes);
  }
  return std::memcmp(&there, known, bytes) == 0 || std::memcmp(&there, now, bytes) == 0;
}

}  // namespace

HostBlocks::HostBlocks(DriverTable& driver, DeviceMemory& memory, HostBudget& budget, const Window& window,
                       Options options)
    : driver_(driver), memory_(memory), budget_(budget), window_(window), options_(options) {}

HostBlocks::~HostBlocks() {
  for (auto& [address, block] : blocks_) drop(block);
}

// Of each block: what is known of it, here and by the driver, and what the driver gives at least.
constexpr std::uint64_t about_itself = 2048;

// A block that could not be had yet keeps its place: a copy to it tells the program, and a later one tries again.
CUresult HostBlocks::open(std::uint64_t address, std::uint64_t bytes, std::uint32_t context) {
  if (bytes == 0 || address + bytes < address || blocks_.contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Block block{bytes, nullptr, context, false, false, {}, {}};
  if (const CUresult bad = pin(block); bad != CUDA_SUCCESS) {
    auto charge = HostCharge::take(budget_, about_itself);
    if (!charge) return bad;
    block.charge = std::move(*charge);
  }
  blocks_[address] = std::move(block);
  return CUDA_SUCCESS;
}

CUresult HostBlocks::pin(Block& block) {
  auto charge = HostCharge::take(budget_, about_itself + block.bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = nullptr;
  const CUresult result = driver_.cuMemHostAlloc(&memory, block.bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS) return result;
  if (options_.scrub) std::memset(memory, 0, block.bytes);
  block.memory = static_cast<std::byte*>(memory);
  block.charge = std::move(*charge);
  return result;
}

CUresult HostBlocks::have(std::uint64_t address, std::uint64_t bytes, const std::function<bool(std::uint32_t)>& enter) {
  auto* const found = locate(address, bytes);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  Block& block = found->second;
  if (block.memory) return CUDA_SUCCESS;
  return enter(block.context) ? pin(block) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult HostBlocks::open_mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t device_address, bool paged,
                                 std::uint32_t context) {
  if (address + bytes < address || !free_in_window(device_address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  auto charge = HostCharge::take(budget_, paged ? round_up(bytes) : 2 * round_up(bytes));  // with the shadow
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  std::vector<std::byte> shadow(paged ? 0 : bytes);
  const auto known = blocks_.find(address);
  if (known != blocks_.end() && known->second.mapped) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = put_at(device_address, bytes, -1);
  if (result != CUDA_SUCCESS) return result;
  // A copy that only remembered is replaced: its contents come with the client's first write.
  if (known != blocks_.end()) drop(known->second);
  blocks_[address] = {
      bytes, reinterpret_cast<std::byte*>(device_address), context, true, false, std::move(shadow), std::move(*charge)};
  if (!paged) ++compared_;
  return result;
}

CUresult HostBlocks::open_shared(std::uint64_t address, std::uint64_t bytes, std::uint32_t context,
                                 Descriptor& descriptor) {
  if (bytes % page_bytes != 0 || !free_in_window(address, bytes) || blocks_.contains(address))
    return CUDA_ERROR_INVALID_VALUE;
  auto charge = HostCharge::take(budget_, bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  try {
    descriptor = Descriptor(make_sealed_memory("fargpu-pinned", bytes));
  } catch (const SystemError&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = put_at(address, bytes, descriptor.number());
  if (result == CUDA_SUCCESS)
    blocks_[address] = {bytes, reinterpret_cast<std::byte*>(address), context, true, true, {}, std::move(*charge)};
  return result;
}

bool HostBlocks::free_in_window(std::uint64_t address, std::uint64_t bytes) const {
  const std::uint64_t offset = address - window_.base;
  if (bytes == 0 || bytes > window_.bytes || address % page_bytes != 0 || offset > window_.bytes ||
      round_up(bytes) > window_.bytes - offset)
    return false;
  return std::none_of(device_ranges_.begin(), device_ranges_.end(), [&](const auto& range) {
    return range.first < address + round_up(bytes) && address < range.first + round_up(range.second);
  });
}

// Pinned memory that kernels use, at a place that is free: memory behind the descriptor, or if there is none, of our
// own.
CUresult HostBlocks::put_at(std::uint64_t address, std::uint64_t bytes, int descriptor) {
  // The window is reserved by this process, without access, so nothing else can lie there.
  void* const wish = reinterpret_cast<void*>(address);
  const int kind = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = ::mmap(wish, round_up(bytes), PROT_READ | PROT_WRITE, kind | MAP_FIXED, descriptor, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      driver_.cuMemHostRegister_v2(memory, round_up(bytes), CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS) {
    clear(static_cast<std::byte*>(memory), bytes);
    return result;
  }
  device_ranges_[address] = bytes;
  memory_.add_foreign(address, bytes);
  return result;
}

CUresult HostBlocks::page(std::uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.shadow.empty() || options_.one_process) return CUDA_ERROR_INVALID_VALUE;
  Block& block = found->second;
  block.shadow = {};
  block.unheard.clear();
  block.bytes = round_up(block.bytes);  // its memory is whole pages
  block.charge.shrink(block.bytes);
  --compared_;
  return CUDA_SUCCESS;
}

CUresult HostBlocks::close(std::uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return CUDA_ERROR_INVALID_VALUE;
  drop(found->second);
  blocks_.erase(found);
  return CUDA_SUCCESS;
}

void HostBlocks::context_closes(std::uint32_t context) {
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    if (it->second.context != context) {
      ++it;
      continue;
    }
    drop(it->second);
    it = blocks_.erase(it);
  }
}

void HostBlocks::inherit(std::uint32_t from, std::uint32_t to) {
  for (auto& [address, block] : blocks_)
    if (block.context == from) block.context = to;
}

void HostBlocks::drop(Block& block) {
  if (!block.mapped) {
    if (block.memory) driver_.cuMemFreeHost(block.memory);
    return;
  }
  if (!block.shadow.empty()) --compared_;
  device_ranges_.erase(reinterpret_cast<std::uint64_t>(block.memory));
  memory_.remove_foreign(reinterpret_cast<std::uint64_t>(block.memory));
  driver_.cuMemHostUnregister(block.memory);
  clear(block.memory, block.bytes);
}

// The addresses stay reserved.
void HostBlocks::clear(std::byte* memory, std::uint64_t bytes) {
  if (!options_.one_process)
    ::mmap(memory, round_up(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

std::pair<const std::uint64_t, HostBlocks::Block>* HostBlocks::locate(std::uint64_t address, std::uint64_t bytes) {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  --it;
  const std::uint64_t offset = address - it->first;
  return offset <= it->second.bytes && bytes <= it->second.bytes - offset ? &*it : nullptr;
}

std::span<std::byte> HostBlocks::find(std::uint64_t address, std::uint64_t bytes) {
  const auto* const found = locate(address, bytes);
  if (!found || !found->second.memory) return {};
  return {found->second.memory + (address - found->first), bytes};
}

bool HostBlocks::shared(std::uint64_t address, std::uint64_t bytes) {
  const auto* const found = locate(address, bytes);
  return found && found->second.shared;
}

bool HostBlocks::write(std::uint64_t address, std::span<const std::byte> bytes, std::optional<std::uint64_t> heard,
                       std::uint64_t& lost) {
  lost = 0;
  auto* const found = locate(address, bytes.size());
  if (!found || !found->second.mapped) return false;
  Block& block = found->second;
  const std::uint64_t offset = address - found->first;
  if (!block.shadow.empty()) {
    const auto known = std::span(block.shadow).subspan(offset, bytes.size());
    const std::size_t both = changed_by_both(bytes, {block.memory + offset, bytes.size()}, known);
    if (both < bytes.size()) lost = address + both;
    // What the client had not heard of when it wrote, it has replaced without having seen it.
    while (!block.unheard.empty() && (!heard || block.unheard.front().delivery <= *heard)) block.unheard.pop_front();
    for (const Unheard& change : block.unheard) {
      const std::uint64_t first = std::max(change.offset, offset),
                          end = std::min(change.offset + change.bytes, offset + bytes.size());
      if (first >= end) continue;
      const auto part = [&](std::span<const std::byte> all) { return all.subspan(first - offset, end - first); };
      if (!std::ranges::equal(part(bytes), part(known))) lost = address - offset + first;
    }
    std::memcpy(known.data(), bytes.data(), bytes.size());
  }
  std::memcpy(block.memory + offset, bytes.data(), bytes.size());
  return true;
}

bool HostBlocks::change(std::uint64_t address, std::span<const std::byte> now, std::span<const std::byte> known,
                        std::uint64_t& lost) {
  lost = 0;
  auto* const found = locate(address, now.size());
  if (!found || !found->second.mapped || !found->second.shadow.empty()) return false;
  std::byte* const memory = found->second.memory + (address - found->first);
  for_changed_runs(now, known, [&](std::size_t offset, std::size_t bytes) {
    for (const std::size_t end = offset + bytes; offset < end; offset += change_bytes) {
      const std::size_t word = std::min(change_bytes, end - offset);
      if (!exchange_word(memory + offset, &now[offset], &known[offset], word) && lost == 0) lost = address + offset;
    }
  });
  return true;
}

void HostBlocks::delivered(std::uint64_t address, std::span<const std::byte> bytes) {
  auto* const found = locate(address, bytes.size());
  if (!found || found->second.shadow.empty()) return;
  std::memcpy(found->second.shadow.data() + (address - found->first), bytes.data(), bytes.size());
}

void HostBlocks::changes(const std::function<std::uint64_t(std::uint64_t, std::span<const std::byte>)>& deliver) {
  for (auto& [address, block] : blocks_) {
    if (block.shadow.empty()) continue;
    const std::span<const std::byte> now(block.memory, block.bytes);
    for_changed_runs(now, block.shadow, [&, base = address, &block = block](std::size_t offset, std::size_t bytes) {
      std::memcpy(block.shadow.data() + offset, now.data() + offset, bytes);
      for (const std::size_t end = offset + bytes; offset < end; offset += limits::bulk_bytes_max) {
        const std::size_t part = std::min(limits::bulk_bytes_max, end - offset);
        const std::uint64_t delivery = deliver(base + offset, std::span(block.shadow).subspan(offset, part));
        block.unheard.push_back({delivery, offset, part});
      }
      // So that the notes are no larger than the block.
      while (block.unheard.size() > std::min<std::size_t>(4096, 16 + block.bytes / 32)) block.unheard.pop_front();
    });
  }
}

}  // namespace fargpu::server
