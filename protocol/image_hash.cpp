#include "image_hash.h"

#define OPENSSL_SUPPRESS_DEPRECATED  // the plain functions: no global state of OpenSSL in a stranger's process
#include <openssl/sha.h>

namespace fargpu {

ImageHash hash_image(std::span<const std::byte> bytes) {
  ImageHash hash;
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, bytes.data(), bytes.size());
  SHA256_Final(reinterpret_cast<unsigned char*>(hash.data()), &context);
  return hash;
}

}  // namespace fargpu
