#pragma once
// Resources of devices (CUdevResource) that the driver gave out. The client knows them by number: what a driver makes
// of a struct that a stranger filled nobody knows.

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace fargpu::server {

/// Equal resources have one number. There is no end to them in CUDA, so there is a bound to how many are kept.
class Resources {
 public:
  std::uint64_t add(const CUdevResource& resource) {
    for (std::size_t i = 0; i < known_.size(); ++i)
      if (std::memcmp(&known_[i], &resource, sizeof(resource)) == 0) return i + 1;
    known_.push_back(resource);
    return known_.size();
  }
  /// Null for a number that was not given.
  const CUdevResource* find(std::uint64_t number) const {
    return number == 0 || number > known_.size() ? nullptr : &known_[static_cast<std::size_t>(number) - 1];
  }
  bool full() const { return known_.size() >= kept_max; }

 private:
  static constexpr std::size_t kept_max = 16384;
  std::vector<CUdevResource> known_;
};

}  // namespace fargpu::server
