#include "uuid.h"

#include <fmt/format.h>

#include <cstring>

namespace fargpu::client {

CUuuid read_uuid(capnp::Data::Reader bytes) {
  CUuuid uuid{};
  if (bytes.size() == sizeof(uuid.bytes)) std::memcpy(uuid.bytes, bytes.begin(), sizeof(uuid.bytes));
  return uuid;
}

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace fargpu::client
