#include "ledger.h"

#include <algorithm>
#include <utility>

namespace fargpu::server {
namespace {

AccountPlace place_alone() {
  AccountPlace place{std::make_shared<TenantAccount>(1), 0};
  place.account->begin(/*lease=*/1, /*unreserved=*/false);
  return place;
}

std::uint64_t left_of(std::uint64_t limit, std::uint64_t held) { return limit > held ? limit - held : 0; }

}  // namespace

Ledger::Ledger(std::vector<std::uint64_t> limits_bytes, std::optional<AccountPlace> place,
               std::function<void(const Refusal&)> refused)
    : limits_(std::move(limits_bytes)),
      charged_(limits_.size()),
      place_(place ? std::move(*place) : place_alone()),
      lease_(slot().lease),
      refused_(std::move(refused)) {}

// The smaller of two bounds is the one that was met.
bool Ledger::charge(int device, std::uint64_t bytes) {
  if (try_charge(device, bytes)) return true;
  ++refusals_;
  const std::uint64_t own = limits_[static_cast<std::size_t>(device)];
  const std::uint64_t lease_left =
      own == 0 ? TenantAccount::no_limit : left_of(own, place_.account->held(lease_, device));
  const std::uint64_t all = unreserved() ? place_.account->unreserved_max() : TenantAccount::no_limit;
  const std::uint64_t tenant_left =
      all == TenantAccount::no_limit ? all : left_of(all, place_.account->held_unreserved());
  if (lease_left <= tenant_left) tell({Bound::lease, device, bytes, own, lease_left});
  else tell({Bound::tenant, device, bytes, all, tenant_left});
  return false;
}

void Ledger::tell(const Refusal& refusal) {
  if (!std::exchange(told_[static_cast<std::size_t>(refusal.bound)], true)) refused_(refusal);
}

bool Ledger::try_charge(int device, std::uint64_t bytes) {
  const auto d = static_cast<std::size_t>(device);
  const Share share = this->share(device);
  if (share.limit == TenantAccount::no_limit) {  // whatever it is: the driver will say
    slot().charged[d] += bytes;
    hold(d, charged_[d] + bytes);
    return true;
  }
  if (bytes > share.limit || charged_[d] > share.limit - bytes) return false;  // whatever the others do
  const bool taken = announce(slot().charged[d], bytes, place_.slot, [&] {
    return (limits_[d] == 0 || place_.account->held(lease_, device) <= limits_[d]) &&
           (!unreserved() || place_.account->held_unreserved() <= place_.account->unreserved_max());
  });
  if (taken) hold(d, charged_[d] + bytes);
  return taken;
}

void Ledger::credit(int device, std::uint64_t bytes) {
  const auto d = static_cast<std::size_t>(device);
  hold(d, charged_[d] - bytes);
  slot().charged[d] -= bytes;
}

void Ledger::hold(std::size_t device, std::uint64_t bytes) {
  charged_[device] = bytes;
  slot().held[device] = bytes;
}

Ledger::Share Ledger::share(int device) {
  Share share{TenantAccount::no_limit, TenantAccount::no_limit};
  if (limits_[static_cast<std::size_t>(device)] != 0) {
    share.limit = limit(device);
    share.left = left_of(share.limit, place_.account->held(lease_, device));
  }
  if (unreserved()) {
    const std::uint64_t all = place_.account->unreserved_max();
    share.limit = std::min(share.limit, all);
    if (all != TenantAccount::no_limit)
      share.left = std::min(share.left, left_of(all, place_.account->held_unreserved()));
  }
  return share;
}

std::shared_ptr<Charge> Charge::take(Ledger& ledger, int device, std::uint64_t bytes) {
  if (!ledger.charge(device, bytes)) return nullptr;
  return std::shared_ptr<Charge>(new Charge(ledger, device, bytes, true));
}

std::shared_ptr<Charge> Charge::split(std::uint64_t bytes) {
  std::shared_ptr<Charge> part(new Charge(ledger_, device_, bytes, charged_));
  bytes_ -= bytes;
  return part;
}

std::shared_ptr<Charge> Charge::nothing(Ledger& ledger, int device, std::uint64_t bytes) {
  return std::shared_ptr<Charge>(new Charge(ledger, device, bytes, false));
}

}  // namespace fargpu::server
