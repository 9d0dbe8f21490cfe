// The check by which CUDA runtimes recognise their driver.

#include "protocol/integrity.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string_view>

using namespace fargpu;

namespace {

template <std::size_t n>
std::string hex(const std::array<std::uint8_t, n>& bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
std::string md2_of(std::string_view text) { return hex(md2(bytes_of(text))); }

std::string answer_text(const IntegrityQuestion& question) {
  std::array<std::uint8_t, 16> bytes;
  const auto answer = integrity_answer(question);
  std::memcpy(bytes.data(), answer.data(), bytes.size());
  return hex(bytes);
}

IntegrityQuestion captured_question() {
  return {.driver_version = 12080,
          .version = 12082,
          .process_id = 0x002fa423,
          .thread = 0xf79c1000,
          .cudart_table = 0x7ffff6958240,
          .integrity_table = 0x7ffff6958220,
          .function = 0x7ffff2aaf4a0,
          .unix_seconds = 0x682b9cee,
          .devices = {}};
}

}  // namespace

TEST_CASE("MD2 gives the digests of RFC 1319") {
  CHECK(md2_of("") == "8350e5a3e24c153df2275c9f80692773");
  CHECK(md2_of("a") == "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  CHECK(md2_of("abc") == "da853b0d3f88d99b30283a69e6ded6bb");
  CHECK(md2_of("message digest") == "ab4f496bfb2a530b219ff33031fe06b0");
  CHECK(md2_of("abcdefghijklmnopqrstuvwxyz") == "4e8ddff3650292ab5a4108c3aa47940b");
  CHECK(md2_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") == "da33def2a42df13975352846c30338cd");
  CHECK(md2_of("12345678901234567890123456789012345678901234567890123456789012345678901234567890") ==
        "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST_CASE("HMAC is two digests over padded keys") {
  // RFC 2104 spelled out for a key of sixteen bytes, and for a shorter one, which zeros fill.
  for (const std::string key : {"0123456789abcdef", "short"}) {
    std::string inner(16, '\x36'), outer(16, '\x5c');
    for (std::size_t i = 0; i < key.size(); ++i) {
      inner[i] = static_cast<char>(inner[i] ^ key[i]);
      outer[i] = static_cast<char>(outer[i] ^ key[i]);
    }
    const Digest middle = md2(bytes_of(inner + "what is said"));
    outer.append(reinterpret_cast<const char*>(middle.data()), middle.size());
    CHECK(hex(hmac_md2(bytes_of(key), bytes_of("what is said"))) == md2_of(outer));
  }
}

TEST_CASE("the last digit of the version selects the kind of answer") {
  IntegrityQuestion question = captured_question();
  for (const std::uint32_t version : {12080u, 13000u}) {
    question.version = version;
    CHECK(integrity_answer(question) == std::array<std::uint64_t, 2>{0x3341181C03CB675C, 0x8ED383AA1F4CD1E8});
    question.version = version + 1;
    CHECK(integrity_answer(question) == std::array<std::uint64_t, 2>{0x1841181C03CB675C, 0x8ED383AA1F4CD1E8});
  }
}

TEST_CASE("answers to captured questions are those that the runtime accepted") {
  IntegrityQuestion question = captured_question();
  CHECK(answer_text(question) == "0779ef5e4ffa2dd207527503d1907bfa");
  question.devices.push_back(
      {{0x9a, 0xfe, 0x2b, 0x8a, 0xac, 0x25, 0x2d, 0x38, 0xea, 0x37, 0xae, 0xc5, 0x6d, 0x71, 0x32, 0x5f}, 0, 2, 0});
  CHECK(answer_text(question) == "4448a171b026cef76c8c3e39051b02dd");
}

TEST_CASE("every part of the question matters") {
  IntegrityQuestion question = captured_question();
  question.devices.resize(2);
  const std::string plain = answer_text(question);
  SECTION("driver") { ++question.driver_version; }
  SECTION("version") { ++question.version; }
  SECTION("process") { ++question.process_id; }
  SECTION("thread") { ++question.thread; }
  SECTION("runtime's table") { ++question.cudart_table; }
  SECTION("own table") { ++question.integrity_table; }
  SECTION("function") { ++question.function; }
  SECTION("time") { question.unix_seconds += std::uint64_t{1} << 32; }
  SECTION("uuid") { question.devices[1].uuid[15] = 1; }
  SECTION("domain") { question.devices[0].pci_domain = 1; }
  SECTION("bus") { question.devices[0].pci_bus = 1; }
  SECTION("device") { question.devices[1].pci_device = -1; }
  SECTION("number of devices") { question.devices.pop_back(); }
  CHECK(answer_text(question) != plain);
}
