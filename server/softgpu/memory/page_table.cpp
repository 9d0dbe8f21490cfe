#include "memory/page_table.h"

#include <cassert>

namespace fargpu::softgpu {

PageTable::PageTable() : leaves_(new std::atomic<Leaf*>[leaf_count]()) {}

PageTable::~PageTable() {
  for (size_t i = 0; i < leaf_count; ++i) {
    Leaf* leaf = leaves_[i].load(std::memory_order_relaxed);
    if (leaf == nullptr) continue;
    for (Entry& entry : leaf->entries) {
      uint64_t value = entry.load(std::memory_order_relaxed);
      if (value & is_split) delete reinterpret_cast<SmallPages*>(value & ~flag_bits);
    }
    delete leaf;
  }
}

PageTable::Entry& PageTable::large_entry(DeviceAddress address) {
  std::atomic<Leaf*>& slot = leaves_[address >> (large_page_bits + leaf_bits)];
  Leaf* leaf = slot.load(std::memory_order_relaxed);
  if (leaf == nullptr) {
    leaf = new Leaf();
    slot.store(leaf, std::memory_order_release);
  }
  return leaf->entries[(address >> large_page_bits) & ((size_t{1} << leaf_bits) - 1)];
}

PageTable::Entry& PageTable::small_entry(DeviceAddress address) {
  Entry& large = large_entry(address);
  uint64_t value = large.load(std::memory_order_relaxed);
  if (!(value & is_split)) {
    auto* pages = new SmallPages();
    if (value != 0)
      for (size_t i = 0; i < small_pages; ++i)
        pages->entries[i].store(value + i * small_page_bytes, std::memory_order_relaxed);
    value = reinterpret_cast<uint64_t>(pages) | is_split;
    large.store(value, std::memory_order_release);
  }
  auto* pages = reinterpret_cast<SmallPages*>(value & ~flag_bits);
  return pages->entries[(address / small_page_bytes) % small_pages];
}

void PageTable::set_range(DeviceAddress address, uint64_t first_value, bool is_mapped, uint64_t bytes) {
  assert(address % small_page_bytes == 0 && bytes % small_page_bytes == 0);
  assert(address + bytes <= DeviceAddress{1} << device_address_bits);
  uint64_t done = 0;
  while (done < bytes) {
    DeviceAddress current = address + done;
    uint64_t value = is_mapped ? first_value + done : 0;
    bool is_whole_page = current % large_page_bytes == 0 && bytes - done >= large_page_bytes;
    Entry& large = large_entry(current);
    bool is_split_already = large.load(std::memory_order_relaxed) & is_split;
    if (is_whole_page && !is_split_already) {
      large.store(value, std::memory_order_release);
      done += large_page_bytes;
    } else {
      small_entry(current).store(value, std::memory_order_release);
      done += small_page_bytes;
    }
  }
}

void PageTable::map(DeviceAddress address, std::byte* host, uint64_t bytes, Access access) {
  assert(reinterpret_cast<uint64_t>(host) % small_page_bytes == 0);
  std::lock_guard lock(mutex_);
  set_range(address, reinterpret_cast<uint64_t>(host) | static_cast<uint64_t>(access), access != Access::none, bytes);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void PageTable::unmap(DeviceAddress address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  set_range(address, 0, false, bytes);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

Translation PageTable::find(DeviceAddress address, Access wanted) const {
  if (address >> device_address_bits) return {};
  const Leaf* leaf = leaves_[address >> (large_page_bits + leaf_bits)].load(std::memory_order_acquire);
  if (leaf == nullptr) return {};
  uint64_t value =
      leaf->entries[(address >> large_page_bits) & ((size_t{1} << leaf_bits) - 1)].load(std::memory_order_acquire);
  uint64_t page_bytes = large_page_bytes;
  if (value & is_split) {
    auto* pages = reinterpret_cast<const SmallPages*>(value & ~flag_bits);
    value = pages->entries[(address / small_page_bytes) % small_pages].load(std::memory_order_acquire);
    page_bytes = small_page_bytes;
  }
  uint64_t right = static_cast<uint64_t>(wanted);
  if (value == 0 || (value & right) != right) return {};
  DeviceAddress begin = address & ~(page_bytes - 1);
  std::byte* page = reinterpret_cast<std::byte*>(value & ~flag_bits);
  return {page + (address - begin), begin, page_bytes};
}

}  // namespace fargpu::softgpu
