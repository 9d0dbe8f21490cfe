#include "integrity.h"

#include <cstring>

namespace fargpu {
namespace {

// RFC 1319, section 3.2: a permutation made from the digits of pi.
constexpr std::uint8_t substitution[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243, 192, 199,
    115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,
    138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122, 169, 104,
    121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,
    53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,
    170, 198, 79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,
    100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,
    97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193,
    171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,
    80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20};

template <class T>
void append(std::vector<std::uint8_t>& message, const T& value) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  message.insert(message.end(), bytes, bytes + sizeof(value));
}

}  // namespace

Digest md2(std::span<const std::uint8_t> message) {
  std::vector<std::uint8_t> padded(message.begin(), message.end());
  const auto padding = static_cast<std::uint8_t>(16 - message.size() % 16);
  padded.insert(padded.end(), padding, padding);

  Digest checksum{};
  std::uint8_t last = 0;
  for (std::size_t i = 0; i < padded.size(); ++i) last = checksum[i % 16] ^= substitution[padded[i] ^ last];
  padded.insert(padded.end(), checksum.begin(), checksum.end());

  std::array<std::uint8_t, 48> state{};
  for (std::size_t block = 0; block < padded.size(); block += 16) {
    for (std::size_t i = 0; i < 16; ++i) {
      state[16 + i] = padded[block + i];
      state[32 + i] = state[16 + i] ^ state[i];
    }
    unsigned t = 0;
    for (unsigned round = 0; round < 18; ++round) {
      for (std::uint8_t& byte : state) t = byte ^= substitution[t];
      t = (t + round) % 256;
    }
  }
  Digest digest;
  std::memcpy(digest.data(), state.data(), digest.size());
  return digest;
}

Digest hmac_md2(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message) {
  std::vector<std::uint8_t> inner(16, 0x36), outer(16, 0x5C);
  for (std::size_t i = 0; i < key.size(); ++i) {
    inner[i] ^= key[i];
    outer[i] ^= key[i];
  }
  inner.insert(inner.end(), message.begin(), message.end());
  const Digest digest = md2(inner);
  outer.insert(outer.end(), digest.begin(), digest.end());
  return md2(outer);
}

std::array<std::uint64_t, 2> integrity_answer(const IntegrityQuestion& q) {
  if (q.version % 10 == 0) return {0x3341181C03CB675C, 0x8ED383AA1F4CD1E8};
  if (q.version % 10 == 1) return {0x1841181C03CB675C, 0x8ED383AA1F4CD1E8};
  constexpr std::uint8_t key[] = {0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52,
                                  0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F};
  std::vector<std::uint8_t> message;
  append(message, q.driver_version);
  append(message, q.version);
  append(message, q.process_id);
  append(message, q.thread);
  append(message, q.cudart_table);
  append(message, q.integrity_table);
  append(message, q.function);
  append(message, q.unix_seconds);
  for (const IntegrityDevice& device : q.devices) {
    message.insert(message.end(), device.uuid.begin(), device.uuid.end());
    append(message, device.pci_domain);
    append(message, device.pci_bus);
    append(message, device.pci_device);
  }
  const Digest digest = hmac_md2(key, message);
  std::array<std::uint64_t, 2> answer;
  std::memcpy(answer.data(), digest.data(), sizeof(answer));
  return answer;
}

}  // namespace fargpu
