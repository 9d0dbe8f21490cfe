#include "variables.h"

namespace fargpu::client {

std::vector<Region> Variables::take(const std::function<bool(const Region&)>& which) {
  std::vector<Region> taken = map_.extract([&](const Region& r) { return r.kind == Region::Kind::global && which(r); });
  for (const Region& region : taken)
    if (region.managed_variable) managed_.forsake(region.base, region.bytes);
  return taken;
}

void Variables::give_back(Thread& thread, const std::vector<Region>& variables) {
  for (const Region& region : variables) {
    if (region.managed_variable && !managed_.adopt(thread, *region.context, region.base, region.bytes))
      continue;  // no room any more
    map_.add(region);
  }
}

}  // namespace fargpu::client
