#pragma once
// Bytes in memory as Cap'n Proto's Data, and back.

#include <capnp/blob.h>

#include <cstddef>
#include <span>
#include <vector>

namespace fargpu {

inline capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

inline std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}

inline std::vector<std::byte> copy_of(capnp::Data::Reader data) {
  const std::span<const std::byte> bytes = bytes_of(data);
  return {bytes.begin(), bytes.end()};
}

}  // namespace fargpu
