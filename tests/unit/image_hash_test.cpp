// What images are called.

#include "protocol/image_hash.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>
#include <string_view>

using namespace fargpu;

namespace {

std::string hex(const ImageHash& hash) {
  std::string digits;
  char pair[3];
  for (const std::byte byte : hash) {
    std::snprintf(pair, sizeof(pair), "%02x", std::to_integer<unsigned>(byte));
    digits += pair;
  }
  return digits;
}

}  // namespace

TEST_CASE("images are named by their SHA-256") {
  const auto hash = [](std::string_view characters) { return hex(hash_image(std::as_bytes(std::span(characters)))); };
  CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hash(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
