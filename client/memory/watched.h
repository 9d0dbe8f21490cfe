#pragma once
// The paged memory of this process, for signal handlers.

#include <array>
#include <atomic>
#include <cstddef>

namespace fargpu::client {

class PagedMemory;

/// One memory of each kind: that of a later session takes the place of that of an earlier one, whose pages mean nothing any more.
/// Threads: any.
class Watched {
 public:
  static constexpr std::size_t kinds = 2;

  /// False if it was here already.
  bool add(PagedMemory& memory, std::size_t kind) { return memories_[kind].exchange(&memory) != &memory; }
  /// Whether `accept` holds for one of them.
  template <class Accept>
  bool any(Accept&& accept) const {
    for (const auto& place : memories_) {
      PagedMemory* const memory = place.load();
      if (memory && accept(*memory)) return true;
    }
    return false;
  }

 private:
  std::array<std::atomic<PagedMemory*>, kinds> memories_{};
};

}  // namespace fargpu::client
