#pragma once
// So many and no more, and none of those that share it takes nearly all.

#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace fargpu::server {

/// Counts what there may be only so many of, by the tenants that have them: none has more than three times what it
/// leaves to others. Used by one thread; outlives its places.
class FairLimit {
  using ByTenant = std::map<std::string, std::size_t>;

 public:
  explicit FairLimit(std::size_t most) : most_(most) {}

  /// One of them, until this goes. False if it is none.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : limit_(std::exchange(other.limit_, nullptr)), tenant_(other.tenant_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(limit_, other.limit_);
      std::swap(tenant_, other.tenant_);
      return *this;
    }
    ~Place() {
      if (!limit_) return;
      --limit_->taken_;
      if (--tenant_->second == 0) limit_->tenants_.erase(tenant_);
    }
    explicit operator bool() const { return limit_ != nullptr; }

   private:
    friend class FairLimit;
    Place(FairLimit* limit, ByTenant::iterator tenant) : limit_(limit), tenant_(tenant) {}
    FairLimit* limit_ = nullptr;
    ByTenant::iterator tenant_;
  };
  Place take(const std::string& tenant) {
    if (taken_ >= most_) return Place();
    const auto [entry, first] = tenants_.try_emplace(tenant);
    if (entry->second >= 3 * (most_ - taken_)) return Place();
    ++entry->second;
    ++taken_;
    return Place(this, entry);
  }

 private:
  const std::size_t most_;
  std::size_t taken_ = 0;
  ByTenant tenants_;
};

}  // namespace fargpu::server
