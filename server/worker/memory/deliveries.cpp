#include "deliveries.h"

#include <memory>
#include <vector>

namespace fargpu::server {

void Deliveries::send_changes() {
  if (!blocks_.any_compared()) return;
  blocks_.changes([&](std::uint64_t address, std::span<const std::byte> bytes) {
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    return client_.deliver(address, *copy, [copy] {});
  });
}

}  // namespace fargpu::server
