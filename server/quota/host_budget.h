#pragma once
// Memory of the host that a session takes, whatever for, against what it may.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tenant_account.h"

namespace fargpu::server {

/// One counter for all that grows with what the client does: calls that are held back, images, copies of pinned memory,
/// logs. It has two bounds, the session's own and that of its lease, whose sessions count together. What has a bound of
/// its own is not counted: frames on their way out; the staging rings of one context, 64 MiB. Threads: any.
class HostBudget {
 public:
  enum class Bound { session, lease };
  /// `bytes_max`: the session's; 0 for none. Without a place there is no lease. `refused` is called once, when a
  /// charge is refused for the first time.
  explicit HostBudget(
      std::uint64_t bytes_max, std::optional<AccountPlace> place = std::nullopt,
      std::function<void(Bound)> refused = [](Bound) {})
      : bytes_max_(bytes_max),
        place_(std::move(place)),
        lease_(place_ ? slot().lease.load() : 0),
        refused_(std::move(refused)) {}

  bool charge(std::uint64_t bytes) {
    const auto refused = try_charge(bytes);
    if (!refused) return true;
    if (refusals_++ == 0) refused_(*refused);
    return false;
  }
  /// Charges that were refused so far.
  std::uint64_t refusals() const { return refusals_.load(); }
  /// Charges where a refusal need not be told: another amount will do, or another time. Returns the bound that it would
  /// exceed.
  std::optional<Bound> try_charge(std::uint64_t bytes) {
    std::uint64_t charged = charged_.load();
    do {
      if (bytes_max_ != 0 && (bytes > bytes_max_ || charged > bytes_max_ - bytes)) return Bound::session;
    } while (!charged_.compare_exchange_weak(charged, charged + bytes));
    if (!place_ || bytes == 0) return std::nullopt;
    const auto fits = [&] { return place_->account->held_of_host(lease_) <= place_->account->host_max(); };
    if (bytes <= place_->account->host_max() && announce(slot().host, bytes, place_->slot, fits)) return std::nullopt;
    charged_.fetch_sub(bytes);
    return Bound::lease;
  }
  /// What could be charged now, if nobody else took of it.
  std::uint64_t room() {
    const auto left = [](std::uint64_t held, std::uint64_t max) { return held < max ? max - held : 0; };
    const std::uint64_t own = bytes_max_ == 0 ? ~std::uint64_t{0} : left(charged_.load(), bytes_max_);
    return place_ ? std::min(own, left(place_->account->held_of_host(lease_), place_->account->host_max())) : own;
  }
  /// Whether so much could be charged, and as much again: for what the client did not ask for.
  bool has_plenty(std::uint64_t bytes) {
    const auto fits = [&](std::uint64_t held, std::uint64_t max) { return held <= max && bytes <= (max - held) / 2; };
    return (bytes_max_ == 0 || fits(charged_.load(), bytes_max_)) &&
           (!place_ || fits(place_->account->held_of_host(lease_), place_->account->host_max()));
  }
  void credit(std::uint64_t bytes) {
    charged_.fetch_sub(bytes);
    if (place_) slot().host.fetch_sub(bytes);
  }
  std::uint64_t charged() const { return charged_.load(); }

 private:
  AccountSlot& slot() { return place_->account->slot(place_->slot); }

  const std::uint64_t bytes_max_;
  const std::optional<AccountPlace> place_;
  const std::uint64_t lease_;
  const std::function<void(Bound)> refused_;
  std::atomic<std::uint64_t> charged_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

/// Bytes of the host's memory that the session is charged for until this goes.
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
    if (budget_) budget_->credit(bytes_);
  }

  std::uint64_t bytes() const { return bytes_; }
  /// Less is taken after all.
  void shrink(std::uint64_t bytes) { budget_->credit(std::exchange(bytes_, bytes) - bytes); }

  /// Nothing if the session may not take so much more.
  static std::optional<HostCharge> take(HostBudget& budget, std::uint64_t bytes) {
    if (!budget.charge(bytes)) return std::nullopt;
    return HostCharge(budget, bytes);
  }
  /// Takes a charge where a refusal need not be told.
  static std::optional<HostCharge> try_take(HostBudget& budget, std::uint64_t bytes) {
    if (budget.try_charge(bytes)) return std::nullopt;
    return HostCharge(budget, bytes);
  }

 private:
  HostCharge(HostBudget& budget, std::uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
  HostBudget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace fargpu::server
