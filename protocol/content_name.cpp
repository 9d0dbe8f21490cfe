#include "content_name.h"

#include <blake3.h>

namespace fargpu {

static_assert(sizeof(ContentName) == BLAKE3_OUT_LEN);

ContentName name_content(std::span<const std::byte> bytes) {
  ContentName name;
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, bytes.data(), bytes.size());
  blake3_hasher_finalize(&hasher, reinterpret_cast<unsigned char*>(name.data()), name.size());
  return name;
}

}  // namespace fargpu
