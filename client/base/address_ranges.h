#pragma once
// Divides a range of numbers: the window into allocations, a block into small ones.

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace fargpu::client {

/// Free and taken parts of [base, base + bytes). First fit by address within the smallest part that is large enough;
/// freed neighbours merge. Not synchronised.
class AddressRanges {
 public:
  AddressRanges() = default;
  AddressRanges(std::uint64_t base, std::uint64_t bytes);

  /// Takes `bytes` at a multiple of `alignment` (a power of two).
  std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t alignment);
  /// Takes exactly this part, if it is free.
  bool take_at(std::uint64_t address, std::uint64_t bytes);
  /// Gives a part back that was taken.
  void give(std::uint64_t address, std::uint64_t bytes);

  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }
  bool empty() const { return free_bytes_ == bytes_; }  ///< nothing is taken

 private:
  void insert(std::uint64_t address, std::uint64_t bytes);
  void remove(std::map<std::uint64_t, std::uint64_t>::iterator part);
  void carve(std::map<std::uint64_t, std::uint64_t>::iterator part, std::uint64_t address, std::uint64_t bytes);

  std::uint64_t base_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> by_address_;          // free parts
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // (bytes, address) of the same
};

}  // namespace fargpu::client
