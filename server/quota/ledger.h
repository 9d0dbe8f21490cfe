#pragma once
// What a session is charged for of its devices' memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tenant_account.h"

namespace fargpu::server {

/// What a session holds, per device, against what it may. A charge is taken before the driver is asked. Sessions of one
/// lease share its limit, and those of a tenant's leases without one the tenant's: what counts is what all of them
/// hold.
class Ledger {
 public:
  /// `limits_bytes` per device; 0 for none. Without a place the session has its limits for itself.
  /// `refused` is called when a charge of a kind of bound is refused for the first time.
  enum class Bound { lease, tenant, device };
  struct Refusal {
    Bound bound;
    int device;
    std::uint64_t asked, limit, left;  ///< bytes; the last two are 0 for a device, which only the driver knows
  };
  explicit Ledger(
      std::vector<std::uint64_t> limits_bytes, std::optional<AccountPlace> place = std::nullopt,
      std::function<void(const Refusal&)> refused = [](const Refusal&) {});
  bool charge(int device, std::uint64_t bytes);
  /// Charges that were refused so far.
  std::uint64_t refusals() const { return refusals_; }
  void credit(int device, std::uint64_t bytes);
  /// The driver has no room for what the session may hold.
  void device_full(int device, std::uint64_t bytes) { tell({Bound::device, device, bytes, 0, 0}); }
  /// Of what is charged, so much is not on the device from now on, or is again.
  void leave(int device, std::uint64_t bytes) { slot().away[static_cast<std::size_t>(device)] += bytes; }
  void come_back(int device, std::uint64_t bytes) { slot().away[static_cast<std::size_t>(device)] -= bytes; }
  /// What this session holds.
  const std::vector<std::uint64_t>& charged() const { return charged_; }
  std::uint64_t limit(int device) const { return limits_[static_cast<std::size_t>(device)]; }

  /// All that there is of a device for the session, and what nobody has of it yet; TenantAccount::no_limit without a
  /// limit.
  struct Share {
    std::uint64_t limit;
    std::uint64_t left;
  };
  Share share(int device);

 private:
  AccountSlot& slot() { return place_.account->slot(place_.slot); }
  bool unreserved() { return slot().unreserved != 0; }
  bool try_charge(int device, std::uint64_t bytes);
  void hold(std::size_t device, std::uint64_t bytes);
  void tell(const Refusal& refusal);

  std::vector<std::uint64_t> limits_;
  std::vector<std::uint64_t> charged_;
  AccountPlace place_;
  const std::uint64_t lease_;
  const std::function<void(const Refusal&)> refused_;
  std::uint64_t refusals_ = 0;
  std::array<bool, 3> told_{};  // by the numbers of Bound
};

/// Bytes of a device that the session is charged for until this goes.
class Charge {
 public:
  /// Null if the session may not hold so much more.
  static std::shared_ptr<Charge> take(Ledger& ledger, int device, std::uint64_t bytes);
  /// Of memory that another session is charged for.
  static std::shared_ptr<Charge> nothing(Ledger& ledger, int device, std::uint64_t bytes);
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    companion.reset();
    if (charged_) ledger_.credit(device_, bytes_);
  }
  int device() const { return device_; }
  std::uint64_t bytes() const { return bytes_; }
  /// So much of it is another one's from now on.
  std::shared_ptr<Charge> split(std::uint64_t bytes);
  bool charged() const { return charged_; }
  /// Ends with it, before the session is charged less.
  std::shared_ptr<void> companion;

 private:
  Charge(Ledger& ledger, int device, std::uint64_t bytes, bool charged)
      : ledger_(ledger), device_(device), bytes_(bytes), charged_(charged) {}

  Ledger& ledger_;
  const int device_;
  std::uint64_t bytes_;
  const bool charged_;
};

}  // namespace fargpu::server
