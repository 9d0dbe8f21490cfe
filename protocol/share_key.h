#pragma once
// Names of what sessions share with each other: random bytes, so that only a session that was told one can use it.

#include <capnp/blob.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace fargpu {

using ShareKey = std::array<std::byte, 16>;

inline capnp::Data::Reader wire_of(const ShareKey& key) {
  return {reinterpret_cast<const kj::byte*>(key.data()), key.size()};
}

/// Nothing for what has another length.
inline std::optional<ShareKey> share_key(capnp::Data::Reader bytes) {
  ShareKey key;
  if (bytes.size() != key.size()) return std::nullopt;
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.begin()), key.size(), key.begin());
  return key;
}

}  // namespace fargpu
