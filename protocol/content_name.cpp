#include "content_name.h"

#include <blake3.h>

namespace fargpu {

namespace {

static_assert(sizeof(ContentName) == BLAKE3_OUT_LEN);

ContentName hash(std::span<const std::byte> bytes) {
  ContentName name;
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, bytes.data(), bytes.size());
  blake3_hasher_finalize(&hasher, reinterpret_cast<unsigned char*>(name.data()), name.size());
  return name;
}

}  // namespace

// The first hash finds out which instructions the processor has, and does not expect others beside it.
ContentName name_content(std::span<const std::byte> bytes) {
  [[maybe_unused]] static const ContentName first = hash({});
  return hash(bytes);
}

}  // namespace fargpu
