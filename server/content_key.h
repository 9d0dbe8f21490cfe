#pragma once
// The key of the tags on kept contents.

#include <array>
#include <cstddef>

namespace fargpu::server {

/// The broker makes one for each tenant and tells it to the workers of that tenant alone. It is another one after the
/// broker has started again.
using ContentKey = std::array<std::byte, 32>;

}  // namespace fargpu::server
