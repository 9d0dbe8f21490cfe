#pragma once
// The program's own memory, by address.

#include <cstddef>
#include <cstdint>

namespace fargpu::client {

inline std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// Meets a bad address here, in the caller, as the driver's own copy would, before any lock is held.
inline void touch_for_reading(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | 4095) + 1)
    (void)*reinterpret_cast<const volatile char*>(at);
}
inline void touch_for_writing(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | 4095) + 1) {
    auto* const byte = reinterpret_cast<volatile char*>(at);
    *byte = *byte;
  }
}

}  // namespace fargpu::client
