#pragma once
// The paged memory of this process, for signal handlers.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fargpu::client {

/// Memory whose pages come and go. All may be called on any thread, also within a fault.
class WatchedPages {
 public:
  virtual ~WatchedPages() = default;
  /// Whether such memory can be there. Needs no lock, and no stack to speak of.
  virtual bool covers(std::uint64_t address) const = 0;
  /// The program touched an address that it may not use at present. False if that is none of ours.
  virtual bool fault(std::uint64_t address, bool writing) = 0;
  /// Makes what is ours of [address, address + bytes) usable, as if the program had touched every page.
  virtual void touch(std::uint64_t address, std::uint64_t bytes, bool writing) = 0;
};

/// One memory of each kind: that of a later session takes the place of that of an earlier one, whose pages mean nothing
/// any more. Threads: any.
class Watched {
 public:
  static constexpr std::size_t kinds = 2;

  /// False if it was here already.
  bool add(WatchedPages& memory, std::size_t kind) { return memories_[kind].exchange(&memory) != &memory; }
  /// Whether `accept` holds for one of them.
  template <class Accept>
  bool any(Accept&& accept) const {
    for (const auto& place : memories_) {
      WatchedPages* const memory = place.load();
      if (memory && accept(*memory)) return true;
    }
    return false;
  }

 private:
  std::array<std::atomic<WatchedPages*>, kinds> memories_{};
};

}  // namespace fargpu::client
