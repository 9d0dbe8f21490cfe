#pragma once
// Touches the program's own memory.

#include <cstdint>

#include "client/base/pages.h"

namespace fargpu::client {

// Meets a bad address here, in the caller, as the driver's own copy would, before any lock is held.
inline void touch_for_reading(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | (page_bytes - 1)) + 1)
    (void)*reinterpret_cast<const volatile char*>(at);
}
inline void touch_for_writing(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | (page_bytes - 1)) + 1) {
    auto* const byte = reinterpret_cast<volatile char*>(at);
    *byte = *byte;
  }
}

}  // namespace fargpu::client
