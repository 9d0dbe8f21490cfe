#pragma once
// Memory of the host that a session takes, whatever for, against what it may.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace fargpu::server {

/// One counter with one bound, for all that grows with what the client does: calls that are held back, images, copies of pinned memory,
/// logs. What has a bound of its own is not counted: frames on their way out, staging rings. Threads: any.
class HostBudget {
 public:
  /// `bytes_max`: 0 for none. `refused` is called by the first who does not get what he wants.
  explicit HostBudget(std::uint64_t bytes_max, std::function<void()> refused = [] {})
      : bytes_max_(bytes_max), refused_(std::move(refused)) {}

  bool take(std::uint64_t bytes) {
    std::uint64_t taken = taken_.load();
    do {
      if (bytes_max_ != 0 && (bytes > bytes_max_ || taken > bytes_max_ - bytes)) {
        if (!told_.exchange(true)) refused_();
        return false;
      }
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  void give(std::uint64_t bytes) { taken_.fetch_sub(bytes); }
  std::uint64_t taken() const { return taken_.load(); }

 private:
  const std::uint64_t bytes_max_;
  const std::function<void()> refused_;
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<bool> told_{false};
};

/// Bytes that are counted until this goes.
class HostCharge {
 public:
  HostCharge() = default;
  HostCharge(HostCharge&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
  HostCharge& operator=(HostCharge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HostCharge() {
    if (budget_) budget_->give(bytes_);
  }

  /// Nothing if the session may not take so much more.
  static std::optional<HostCharge> take(HostBudget& budget, std::uint64_t bytes) {
    if (!budget.take(bytes)) return std::nullopt;
    return HostCharge(budget, bytes);
  }

 private:
  HostCharge(HostBudget& budget, std::uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
  HostBudget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace fargpu::server
