// Taking over a descriptor that others write to, and which code may write to it.

#include "server/worker/call/captured_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <thread>

using namespace fargpu::server;

namespace {

std::string collected(CapturedOutput& printed) {
  std::string text;
  printed.collect([&](std::span<const std::byte> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return text;
}

struct Descriptor {
  Descriptor() : number(::open("/dev/null", O_WRONLY)) { REQUIRE(number >= 0); }
  ~Descriptor() { ::close(number); }
  void write(const std::string& text) const {
    CHECK(::write(number, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  const int number;
};

bool may(std::string_view image) { return may_print(std::as_bytes(std::span(image))); }

}  // namespace

TEST_CASE("what is written to a descriptor that was taken over is collected once, in order") {
  const Descriptor descriptor;
  CapturedOutput printed(descriptor.number);
  CHECK(collected(printed).empty());
  descriptor.write("one ");
  descriptor.write("two");
  CHECK(collected(printed) == "one two");
  CHECK(collected(printed).empty());
  descriptor.write("three");
  CHECK(collected(printed) == "three");
}

TEST_CASE("nothing is lost of much output, written while it is collected") {
  const Descriptor descriptor;
  CapturedOutput printed(descriptor.number);
  std::string expected;
  for (int i = 0; i < 40000; ++i) expected += std::to_string(i) + "\n";
  std::thread writer([&] {
    for (std::size_t at = 0; at < expected.size(); at += 1000) descriptor.write(expected.substr(at, 1000));
  });
  std::string seen;
  while (seen.size() < expected.size() / 2) seen += collected(printed);
  writer.join();
  seen += collected(printed);
  CHECK(seen == expected);
}

TEST_CASE("code that names what printf or assert call may print, other code may not") {
  CHECK(may(".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);"));
  CHECK(may(".extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);"));
  CHECK_FALSE(may(".visible .entry add() { ret; }"));
  CHECK_FALSE(may(""));
}

TEST_CASE("code in a container may print, as its parts may be compressed") {
  CHECK(may("\x50\xed\x55\xba and more"));
  CHECK_FALSE(may("\x50\xed\x55"));
}
