#pragma once
// The check by which CUDA runtimes make sure that they talk to the driver they were given: HMAC-MD2 over facts of the
// process and the devices (RFC 1319, RFC 2104). Confirmed against CUDA 13.0.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fargpu {

using Digest = std::array<std::uint8_t, 16>;

/// RFC 1319.
Digest md2(std::span<const std::uint8_t> message);
/// RFC 2104 with MD2; keys of at most 16 bytes.
Digest hmac_md2(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message);

struct IntegrityDevice {
  std::array<std::uint8_t, 16> uuid{};
  std::int32_t pci_domain = 0;
  std::int32_t pci_bus = 0;
  std::int32_t pci_device = 0;
};

struct IntegrityQuestion {
  std::uint32_t driver_version = 0;
  std::uint32_t version = 0;  ///< the runtime's; its last decimal digit selects the kind of answer
  std::uint32_t process_id = 0;
  std::uint32_t thread = 0;  ///< low half of pthread_self()
  std::uint64_t cudart_table = 0;
  std::uint64_t integrity_table = 0;
  std::uint64_t function = 0;
  std::uint64_t unix_seconds = 0;
  std::vector<IntegrityDevice> devices;
};

/// The two words that the runtime expects.
std::array<std::uint64_t, 2> integrity_answer(const IntegrityQuestion& question);

}  // namespace fargpu
