#include "deliveries.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "protocol/limits.h"

namespace fargpu::server {

void Deliveries::send_changes() {
  if (!blocks_.any_compared()) return;
  blocks_.changes([&](std::uint64_t address, std::span<const std::byte> bytes) {
    for (std::size_t offset = 0; offset < bytes.size(); offset += limits::bulk_bytes_max) {
      const auto part = bytes.subspan(offset, std::min(limits::bulk_bytes_max, bytes.size() - offset));
      auto copy = std::make_shared<std::vector<std::byte>>(part.begin(), part.end());
      client_.deliver(address + offset, *copy, [copy] {});
    }
  });
}

}  // namespace fargpu::server
