#include "launch_class.h"

#include <algorithm>
#include <cstring>

namespace fargpu::client {

void LaunchClass::add(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    add(word);
  }
}

std::uint64_t fit_of(const Context& context, const unsigned (&block)[3], unsigned shared_bytes,
                     const unsigned (&cluster)[3]) {
  LaunchClass fingerprint;
  fingerprint.add(context.id());
  fingerprint.add(shared_bytes);
  for (std::size_t d = 0; d < 3; ++d) fingerprint.add(std::uint64_t{block[d]} << 32 | cluster[d]);
  return fingerprint.value();
}

}  // namespace fargpu::client
