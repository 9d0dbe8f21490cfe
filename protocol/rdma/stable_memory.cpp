#include "stable_memory.h"

#include <sys/utsname.h>

#include <array>
#include <cstdio>

namespace fargpu::rdma {
namespace {

// Since Linux 5.12 a fork copies pages that a device knows. Before, the program's next write would have, and the device
// would have gone on reading what is the child's then; or the child would not have had them at all.
bool forks_copy_known_pages() {
  static const bool copy = [] {
    utsname kernel{};
    int major = 0, minor = 0;
    return ::uname(&kernel) == 0 && std::sscanf(kernel.release, "%d.%d", &major, &minor) == 2 &&
           std::pair(major, minor) >= std::pair(5, 12);
  }();
  return copy;
}

}  // namespace

StableMemory& StableMemory::of_process() {
  static auto* const all = new StableMemory;  // lanes may use it until the process ends
  return *all;
}

StableMemory::~StableMemory() {
  for (auto& [begin, block] : blocks_) forget(block);
}

StableMemory::Hold::~Hold() {
  if (!block_) return;
  const std::lock_guard lock(memory_->mutex_);
  if (--block_->holds == 0) memory_->released_.notify_all();
}

void StableMemory::add(const void* begin, std::size_t bytes, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  Block& block = blocks_.try_emplace(static_cast<const std::byte*>(begin)).first->second;
  block.bytes = bytes;
  block.kind = kind;
}

void StableMemory::remove(const void* begin) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(begin));
  if (found == blocks_.end()) return;
  found->second.leaving = true;
  released_.wait(lock, [&] { return found->second.holds == 0; });
  forget(found->second);
  blocks_.erase(found);
}

std::optional<StableMemory::Hold> StableMemory::hold(Bytes bytes, const std::shared_ptr<OpenedDevices>& devices) {
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(bytes.data());
  if (found == blocks_.begin()) return std::nullopt;
  --found;
  auto& [begin, block] = *found;
  if (block.leaving || bytes.data() + bytes.size() > begin + block.bytes) return std::nullopt;
  Memory* known = nullptr;
  if (block.kind == MemoryKind::device || devices->functions().knows_memory()) {
    known = know(begin, block, devices);
    if (!known) return std::nullopt;
  }
  block.used = ++uses_;
  ++block.holds;
  return Hold(*this, block, known);
}

Memory* StableMemory::know(const std::byte* begin, Block& block, const std::shared_ptr<OpenedDevices>& devices) {
  if (const auto found = block.known.find(devices); found != block.known.end()) return found->second;
  // Pages of a GPU are no fork's.
  if ((block.kind == MemoryKind::host && !forks_copy_known_pages()) || !make_room(block.bytes)) return nullptr;
  std::array<char, why_bytes> why{};
  Memory*& known = block.known[devices];
  known =
      devices->functions().know(devices->context(), const_cast<std::byte*>(begin), block.bytes, block.kind, why.data());
  if (known) registered_bytes_ += block.bytes;  // else too little may be locked: it is copied, and not tried again
  return known;
}

// What was not used for the longest time goes.
bool StableMemory::make_room(std::size_t bytes) {
  while (registered_bytes_ + bytes > registered_bytes_max_) {
    Block* oldest = nullptr;
    for (auto& [begin, block] : blocks_)
      if (block.holds == 0 && !block.known.empty() && (!oldest || block.used < oldest->used)) oldest = &block;
    if (!oldest) return false;
    forget(*oldest);
  }
  return true;
}

void StableMemory::forget(Block& block) noexcept {
  for (const auto& [devices, known] : block.known) {
    if (!known) continue;
    devices->functions().forget(devices->context(), known);
    registered_bytes_ -= block.bytes;
  }
  block.known.clear();
}

std::size_t StableMemory::registered_bytes() const {
  const std::lock_guard lock(mutex_);
  return registered_bytes_;
}

}  // namespace fargpu::rdma
