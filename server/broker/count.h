#pragma once
// So many and no more.

#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace fargpu::server {

/// Counts what there may be only so many of, by the tenants that have them: none has more than three times what it leaves to others. Used by
/// one thread; outlives its parts.
class Count {
  using ByTenant = std::map<std::string, std::size_t>;

 public:
  explicit Count(std::size_t most) : most_(most) {}

  /// One of them, until it goes. False if it is none.
  class Part {
   public:
    Part() = default;
    Part(Part&& other) noexcept : count_(std::exchange(other.count_, nullptr)), tenant_(other.tenant_) {}
    Part& operator=(Part&& other) noexcept {
      std::swap(count_, other.count_);
      std::swap(tenant_, other.tenant_);
      return *this;
    }
    ~Part() {
      if (!count_) return;
      --count_->taken_;
      if (--tenant_->second == 0) count_->tenants_.erase(tenant_);
    }
    explicit operator bool() const { return count_ != nullptr; }

   private:
    friend class Count;
    Part(Count* count, ByTenant::iterator tenant) : count_(count), tenant_(tenant) {}
    Count* count_ = nullptr;
    ByTenant::iterator tenant_;
  };
  Part take(const std::string& tenant) {
    if (taken_ >= most_) return Part();
    const auto [entry, first] = tenants_.try_emplace(tenant);
    if (entry->second >= 3 * (most_ - taken_)) return Part();
    ++entry->second;
    ++taken_;
    return Part(this, entry);
  }

 private:
  const std::size_t most_;
  std::size_t taken_ = 0;
  ByTenant tenants_;
};

}  // namespace fargpu::server
