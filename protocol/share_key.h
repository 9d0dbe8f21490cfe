#pragma once
// Names of what sessions share with each other: random bytes, so that only a session that was told one can use it.

#include <capnp/blob.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "data.h"

namespace fargpu {

using ShareKey = std::array<std::byte, 16>;

inline capnp::Data::Reader wire_of(const ShareKey& key) { return data_of(key); }

/// Nothing for what has another length.
inline std::optional<ShareKey> share_key(capnp::Data::Reader data) {
  ShareKey key;
  if (data.size() != key.size()) return std::nullopt;
  std::ranges::copy(bytes_of(data), key.begin());
  return key;
}

}  // namespace fargpu
