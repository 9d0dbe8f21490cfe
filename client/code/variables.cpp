#include "variables.h"

#include <algorithm>
#include <cstdint>

#include "client/objects/context.h"

namespace fargpu::client {

std::vector<Region> Variables::take(const std::function<bool(const Region&)>& which) {
  std::vector<Region> taken = map_.extract([&](const Region& r) { return r.kind == Region::Kind::global && which(r); });
  for (const Region& region : taken)
    if (region.managed_variable) managed_.forsake(region.base, region.bytes);
  const std::lock_guard lock(mutex_);
  std::erase_if(addresses_, [&](const auto& known) {
    return std::any_of(taken.begin(), taken.end(), [&](const Region& r) { return r.base == known.second; });
  });
  return taken;
}

std::optional<Region> Variables::known(const Name& name, std::uint64_t owner) const {
  std::uint64_t address = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = addresses_.find(name);
    if (found == addresses_.end()) return std::nullopt;
    address = found->second;
  }
  const auto region = map_.find(address);
  const bool same = region && region->kind == Region::Kind::global && region->base == address &&
                    region->owner == owner && region->context == name.context;
  return same ? region : std::nullopt;
}

void Variables::found(Name name, std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  addresses_.insert_or_assign(std::move(name), address);
}

void Variables::hand_on(Thread& thread, Context& from, Context& to) {
  managed_.hand_on_variables(thread, from, to);
  map_.update_within(0, UINT64_MAX, [&](Region& region) {
    if (region.context != &from || !region.managed_variable || Handle(region.owner).kind() != HandleKind::library)
      return;
    region.context = &to;
    region.device = to.device;
  });
}

void Variables::give_back(Thread& thread, const std::vector<Region>& variables) {
  for (const Region& region : variables) {
    if (region.managed_variable && !managed_.adopt(thread, *region.context, region.base, region.bytes))
      continue;  // no room any more
    map_.add(region);
  }
}

}  // namespace fargpu::client
