#include "device_bytes.h"

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

namespace fargpu {
namespace {

struct Range {
  Range(std::size_t size, DeviceBytes::Copy function) : bytes(size), copy(std::move(function)) {}
  const std::size_t bytes;
  const DeviceBytes::Copy copy;
  std::shared_mutex uses;  // held in common by threads that copy
};

struct Ranges {
  std::atomic<std::size_t> count{0};
  std::shared_mutex mutex;  // for a moment only; before those of the ranges
  std::map<const std::byte*, std::shared_ptr<Range>> all;

  /// The memory in which the address lies, and whether so many bytes from there on do; null if it does not. Under the
  /// mutex.
  std::shared_ptr<Range> find(const void* address, std::size_t bytes, bool& whole) const {
    const auto* const begin = static_cast<const std::byte*>(address);
    whole = false;
    auto found = all.upper_bound(begin);
    if (found == all.begin()) return nullptr;
    --found;
    const auto offset = static_cast<std::size_t>(begin - found->first);
    if (offset >= found->second->bytes) return nullptr;
    whole = bytes <= found->second->bytes - offset;
    return found->second;
  }
};

// Never destroyed, for lanes may ask until the process ends. Takes no memory, for nobody expects that asking fails.
Ranges& ranges() noexcept {
  alignas(Ranges) static std::array<std::byte, sizeof(Ranges)> place;
  static auto* const all = new (place.data()) Ranges;
  return *all;
}

}  // namespace

void DeviceBytes::add(std::span<const std::byte> memory, Copy copy) {
  Ranges& known = ranges();
  auto range = std::make_shared<Range>(memory.size(), std::move(copy));
  const std::lock_guard lock(known.mutex);
  known.all.insert_or_assign(memory.data(), std::move(range));
  known.count.store(known.all.size());
}

void DeviceBytes::remove(const std::byte* begin) noexcept {
  Ranges& known = ranges();
  std::shared_ptr<Range> range;
  {
    const std::lock_guard lock(known.mutex);
    const auto found = known.all.find(begin);
    if (found == known.all.end()) return;
    range = found->second;
    known.all.erase(found);
    known.count.store(known.all.size());
  }
  const std::lock_guard nobody(range->uses);
}

bool DeviceBytes::contains(const void* address) noexcept {
  Ranges& known = ranges();
  if (known.count.load(std::memory_order_relaxed) == 0) return false;
  const std::shared_lock lock(known.mutex);
  bool whole = false;
  return known.find(address, 1, whole) != nullptr;
}

bool DeviceBytes::copy(void* to, const void* from, std::size_t bytes) noexcept {
  Ranges& known = ranges();
  std::shared_ptr<Range> target, source;
  std::shared_lock<std::shared_mutex> target_use, source_use;
  {
    const std::shared_lock lock(known.mutex);
    bool target_whole = false, source_whole = false;
    target = known.find(to, bytes, target_whole);
    source = known.find(from, bytes, source_whole);
    if ((!target && !source) || (target && !target_whole) || (source && !source_whole)) return false;
    if (target) target_use = std::shared_lock(target->uses);
    if (source && source != target) source_use = std::shared_lock(source->uses);
  }
  try {
    const Way way = !source ? Way::in : !target ? Way::out : Way::within;
    return (target ? target : source)->copy(way, to, from, bytes);
  } catch (const std::exception&) {
    return false;
  }
}

void copy_wherever(void* to, const void* from, std::size_t bytes) {
  if (!DeviceBytes::contains(to) && !DeviceBytes::contains(from)) {
    std::memcpy(to, from, bytes);
  } else if (!DeviceBytes::copy(to, from, bytes)) {
    throw DeviceBytesError("memory of the GPU through which contents pass cannot be read or written");
  }
}

void throw_if_on_device(const void* address) {
  if (DeviceBytes::contains(address))
    throw DeviceBytesError("memory of the GPU through which contents pass cannot be read or written");
}

}  // namespace fargpu
