// Taking over a descriptor that others write to.

#include "server/worker/printed.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>

using namespace fargpu::server;

namespace {

std::string collected(Printed& printed) {
  std::string text;
  printed.collect([&](std::span<const std::byte> piece) { text.append(reinterpret_cast<const char*>(piece.data()), piece.size()); });
  return text;
}

struct Descriptor {
  Descriptor() : number(::open("/dev/null", O_WRONLY)) { REQUIRE(number >= 0); }
  ~Descriptor() { ::close(number); }
  void write(const std::string& text) const { CHECK(::write(number, text.data(), text.size()) == static_cast<ssize_t>(text.size())); }
  const int number;
};

}  // namespace

TEST_CASE("what is written to a descriptor that was taken over is collected once, in order") {
  const Descriptor descriptor;
  Printed printed(descriptor.number);
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
  Printed printed(descriptor.number);
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
