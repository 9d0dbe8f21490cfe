#pragma once
// Reserved parts of the window (cuMemAddressReserve).

#include <cstdint>
#include <map>
#include <mutex>

namespace fargpu::client {

/// Threads: any.
class Reservations {
 public:
  void add(std::uint64_t base, std::uint64_t bytes);
  /// Whether one reservation holds this whole range.
  bool holds(std::uint64_t address, std::uint64_t bytes) const;
  /// Forgets a reservation of exactly this range; false if there is none.
  bool remove(std::uint64_t base, std::uint64_t bytes);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> bytes_;  // by base
};

}  // namespace fargpu::client
