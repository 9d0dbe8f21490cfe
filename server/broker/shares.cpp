#include "shares.h"

#include <cuda.h>

#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {

bool Shares::add(pid_t worker, const std::string& tenant, wire::Share::Reader share, Descriptor descriptor) {
  const auto key = share_key(share.getKey());
  const auto event = share.getEvent();
  const bool memory = share.getDevice() >= 0;
  if (!key || shares_.contains(*key) || event.size() > sizeof(CUipcEventHandle))
    throw ProtocolError("the worker shares what cannot be shared");
  // Without a descriptor: none was free here.
  if (counts_[worker] >= limits::shares_max || (memory && descriptor.number() < 0)) return false;
  Count::Part room = room_.take(tenant);
  if (!room) return false;
  const auto* const bytes = reinterpret_cast<const std::byte*>(event.begin());
  shares_[*key] = {worker, std::move(room), {share.getDevice(), share.getBytes(), std::move(descriptor), {bytes, bytes + event.size()}}};
  ++counts_[worker];
  return true;
}

void Shares::remove(pid_t worker, capnp::Data::Reader bytes) {
  const auto key = share_key(bytes);
  const auto found = key ? shares_.find(*key) : shares_.end();
  if (found == shares_.end() || found->second.worker != worker) return;
  shares_.erase(found);
  --counts_[worker];
}

void Shares::remove_all(pid_t worker) {
  std::erase_if(shares_, [&](const auto& entry) { return entry.second.worker == worker; });
  counts_.erase(worker);
}

const SharedThing* Shares::find(capnp::Data::Reader bytes, const std::function<bool(pid_t)>& may) const {
  const auto key = share_key(bytes);
  const auto found = key ? shares_.find(*key) : shares_.end();
  return found == shares_.end() || !may(found->second.worker) ? nullptr : &found->second.thing;
}

}  // namespace fargpu::server
