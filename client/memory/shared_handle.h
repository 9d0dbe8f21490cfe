#pragma once
// What programs pass to each other to share memory and events: the 64 bytes of CUDA's IPC handles, and files with the
// same in them for shareable handles of allocations. CUDA Driver API, cuIpcGetMemHandle and
// cuMemExportToShareableHandle.

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/share_key.h"

namespace fargpu::client {

struct SharedHandle {
  enum class Kind : std::uint32_t { memory = 1, event = 2, allocation = 3, pool = 4 };
  static constexpr std::size_t wire_bytes = 64;
  using Bytes = std::array<std::byte, wire_bytes>;

  Kind kind = Kind::memory;
  ShareKey key{};            ///< of a pool: the UUID of its device
  std::uint64_t bytes = 0;   ///< of the piece of memory that the key names
  std::uint64_t offset = 0;  ///< of the allocation in it
  std::uint64_t length = 0;  ///< of the allocation

  Bytes encode() const;
  /// Nothing for bytes that are no handle of this kind, or of no sense. They may come from anywhere.
  static std::optional<SharedHandle> decode(std::span<const std::byte, wire_bytes> bytes, Kind kind);

  /// A file that holds the handle, for the caller to own and pass on; -1 if there can be none.
  int to_file() const;
  static std::optional<SharedHandle> from_file(int descriptor, Kind kind);
};

}  // namespace fargpu::client
