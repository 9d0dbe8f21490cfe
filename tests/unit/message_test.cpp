// Messages of one segment, good ones and hostile ones.

#include <capnp/any.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "control.capnp.h"
#include "frames.h"
#include "want_of_memory.h"
#include "operations.capnp.h"
#include "protocol/message.h"

using namespace fargpu;
using namespace fargpu::test;

namespace {

using Words = std::vector<std::uint64_t>;

std::span<const std::byte> bytes_of(const Words& words) { return std::as_bytes(std::span(words)); }

// Pointers of Cap'n Proto's encoding. `offset` counts words from behind the pointer.
std::uint64_t struct_pointer(std::int32_t offset, std::uint16_t data_words, std::uint16_t pointers) {
  return static_cast<std::uint32_t>(offset) << 2 | std::uint64_t{data_words} << 32 | std::uint64_t{pointers} << 48;
}
std::uint64_t byte_list_pointer(std::int32_t offset, std::uint32_t bytes) {
  return (static_cast<std::uint32_t>(offset) << 2 | 1u) | std::uint64_t{2} << 32 | std::uint64_t{bytes} << 35;
}
std::uint64_t far_pointer(std::uint32_t segment, std::uint32_t offset, bool two_words) {
  return std::uint64_t{segment} << 32 | offset << 3 | (two_words ? 4u : 0u) | 2u;
}

// How deep a chain of structs, each the first pointer of the one before, can be followed.
unsigned depth_of(capnp::AnyPointer::Reader pointer) {
  unsigned depth = 0;
  while (!pointer.isNull()) {
    pointer = pointer.getAs<capnp::AnyStruct>().getPointerSection()[0];
    ++depth;
  }
  return depth;
}

Words chain(unsigned length) {
  Words words{struct_pointer(0, 0, 1)};
  for (unsigned i = 1; i < length; ++i) words.push_back(struct_pointer(0, 0, 1));
  words.push_back(0);
  return words;
}

}  // namespace

TEST_CASE("a message is read in place as it was written") {
  MessageWriter writer;
  auto copy = writer.root<wire::CopyDevice>();
  copy.setStream(5);
  copy.initCopy().setWidth(100);
  copy.getCopy().initTarget().setPitch(0x1000'0000'0000);
  const auto bytes = writer.finish();
  CHECK(bytes.size() % 8 == 0);
  MessageReader reader(bytes);
  const auto read = reader.root<wire::CopyDevice>();
  CHECK(read.getStream() == 5);
  CHECK(read.getCopy().getWidth() == 100);
  CHECK(read.getCopy().getHeight() == 1);  // a default of the schema
  CHECK(read.getCopy().getTarget().getPitch() == 0x1000'0000'0000);
  CHECK(read.getCopy().getSource().getPitch() == 0);
}

TEST_CASE("a message that outgrows its first segment still is one segment") {
  MessageWriter writer;
  auto launch = writer.root<wire::Launch>();
  const Bytes parameters = pattern(limits::kernel_parameter_bytes_max);
  launch.setParameters(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(parameters.data()), parameters.size()));
  auto attributes = launch.initAttributes(300);
  for (unsigned i = 0; i < 300; ++i) attributes[i].setHandle(i);
  MessageReader reader(writer.finish());
  const auto read = reader.root<wire::Launch>();
  REQUIRE(read.getParameters().size() == parameters.size());
  CHECK(std::memcmp(read.getParameters().begin(), parameters.data(), parameters.size()) == 0);
  REQUIRE(read.getAttributes().size() == 300);
  CHECK(read.getAttributes()[299].getHandle() == 299);
}

#ifdef FARGPU_WANT_OF_MEMORY
TEST_CASE("memory that there is not for a message is missing as any other, whenever it is needed") {
  const Bytes parameters = pattern(limits::kernel_parameter_bytes_max);
  const auto fill = [&](MessageWriter& writer) {
    writer.root<wire::Launch>().setParameters(
        capnp::Data::Reader(reinterpret_cast<const kj::byte*>(parameters.data()), parameters.size()));
  };
  // While it is written, and while it is put into one piece.
  for (std::size_t spared = 0; spared < 20; ++spared) {
    MessageWriter writer;
    bool missing = false, refused = false;
    {
      const WantOfMemory none(spared);
      try {
        fill(writer);
        writer.finish();
      } catch (const std::bad_alloc&) {
        missing = true;
      }
      refused = none.refused();
    }
    CHECK(missing == refused);
    if (spared == 0) CHECK(missing);
    if (missing) continue;
    MessageReader reader(writer.finish());
    CHECK(reader.root<wire::Launch>().getParameters().size() == parameters.size());
    return;
  }
  FAIL("a message takes more memory than it should");
}
#endif

TEST_CASE("no bytes read as a message of defaults, and a writer that was not used gives none") {
  MessageWriter writer;
  CHECK(writer.finish().empty());
  MessageReader reader({});
  CHECK(reader.root<wire::Launch>().getGridX() == 0);
  CHECK(reader.root<wire::Launch>().getParameters().size() == 0);
  CHECK(reader.root<wire::FunctionAttributes>().getDevice() == -1);
}

TEST_CASE("pointers out of the message are errors, never reads") {
  const auto follow = [](const Words& words) {
    MessageReader reader(bytes_of(words));
    const auto attach = reader.root<wire::Attach>();
    std::size_t sum = attach.getProtocolVersion();
    for (const kj::byte byte : attach.getTicket()) sum += byte;
    return sum;
  };
  CHECK(follow({0}) == 0);
  const std::uint64_t root = struct_pointer(0, 2, 4);  // Attach: two words of data, four pointers
  CHECK(follow({root, 7, 0, byte_list_pointer(3, 8), 0, 0, 0, 0x0101010101010101}) == 7 + 8);
  SECTION("the root struct ends behind the message") { CHECK_THROWS_AS(follow({root, 7, 0}), kj::Exception); }
  SECTION("the root struct begins behind it") { CHECK_THROWS_AS(follow({struct_pointer(5, 1, 0), 0}), kj::Exception); }
  SECTION("the root struct begins before it") { CHECK_THROWS_AS(follow({struct_pointer(-2, 1, 0), 0}), kj::Exception); }
  SECTION("offsets at the ends of their range") {
    CHECK_THROWS_AS(follow({struct_pointer(0x1FFFFFFF, 1, 1), 0}), kj::Exception);
    CHECK_THROWS_AS(follow({struct_pointer(-0x20000000, 1, 1), 0}), kj::Exception);
  }
  SECTION("a list ends behind the message") {
    CHECK_THROWS_AS(follow({root, 7, 0, byte_list_pointer(3, 9), 0, 0, 0, 0}), kj::Exception);
    CHECK_THROWS_AS(follow({root, 7, 0, byte_list_pointer(3, 0x1FFFFFFF), 0, 0, 0, 0}), kj::Exception);
  }
  SECTION("a list of another kind than the schema's") {
    CHECK_THROWS_AS(follow({root, 7, 0, struct_pointer(3, 1, 0), 0, 0, 0, 0}), kj::Exception);
  }
  SECTION("a list where the root belongs") { CHECK_THROWS_AS(follow({byte_list_pointer(0, 8), 0}), kj::Exception); }
}

TEST_CASE("far pointers lead nowhere but into the one segment there is") {
  const auto version = [](const Words& words) {
    MessageReader reader(bytes_of(words));
    return reader.root<wire::Attach>().getProtocolVersion();
  };
  SECTION("to another segment") {
    CHECK_THROWS_AS(version({far_pointer(1, 0, false), 0}), kj::Exception);
    CHECK_THROWS_AS(version({far_pointer(0xFFFFFFFF, 0, false), 0}), kj::Exception);
  }
  SECTION("behind the end of this one") {
    CHECK_THROWS_AS(version({far_pointer(0, 2, false), 0}), kj::Exception);
    CHECK_THROWS_AS(version({far_pointer(0, 0x1FFFFFFF, true), 0}), kj::Exception);
    CHECK_THROWS_AS(version({far_pointer(0, 1, true), 0}), kj::Exception);  // its second word is missing
  }
  SECTION("to itself") { CHECK_THROWS_AS(version({far_pointer(0, 0, false)}), kj::Exception); }
  SECTION("to one that leads on to another segment") {
    CHECK_THROWS_AS(version({far_pointer(0, 1, true), far_pointer(3, 0, false), struct_pointer(0, 1, 0)}),
                    kj::Exception);
  }
}

TEST_CASE("messages are nested only so deep") {
  const auto limit = static_cast<unsigned>(limits::message_nesting_max);
  const Words fine = chain(limit - 1), deep = chain(limit + 1), deepest = chain(100000);
  MessageReader reads(bytes_of(fine));
  CHECK(depth_of(reads.root<capnp::AnyPointer>()) == limit - 1);
  MessageReader refuses(bytes_of(deep));
  CHECK_THROWS_AS(depth_of(refuses.root<capnp::AnyPointer>()), kj::Exception);
  MessageReader refuses_too(bytes_of(deepest));
  CHECK_THROWS_AS(depth_of(refuses_too.root<capnp::AnyPointer>()), kj::Exception);
  // A struct that holds itself.
  const Words loop{struct_pointer(0, 0, 1), struct_pointer(-1, 0, 1)};
  MessageReader endless(bytes_of(loop));
  CHECK_THROWS_AS(depth_of(endless.root<capnp::AnyPointer>()), kj::Exception);
}

TEST_CASE("the same bytes can be read a few times, not for ever") {
  MessageWriter writer;
  const Bytes ticket = pattern(8000);
  writer.root<wire::Attach>().setTicket(
      capnp::Data::Reader(reinterpret_cast<const kj::byte*>(ticket.data()), ticket.size()));
  MessageReader reader(writer.finish());
  const auto attach = reader.root<wire::Attach>();
  for (unsigned i = 0; i < 3; ++i) CHECK(attach.getTicket().size() == 8000);
  const auto read_on = [&] {
    for (unsigned i = 0; i < 10; ++i) attach.getTicket();
  };
  CHECK_THROWS_AS(read_on(), kj::Exception);
}

TEST_CASE("a short message cannot claim a long list of empty elements") {
  // A list of structs of no size: a few bytes that would keep a reader busy for two thousand million rounds.
  const std::uint64_t composite = 1u | std::uint64_t{7} << 32;  // zero words
  const std::uint64_t tag = std::uint64_t{0x1FFFFFFF} << 2;     // that many elements, of no words
  const Words words{struct_pointer(0, 0, 1), composite, tag};
  MessageReader reader(bytes_of(words));
  const auto follow = [&] {
    return reader.root<capnp::AnyPointer>()
        .getAs<capnp::AnyStruct>()
        .getPointerSection()[0]
        .getAs<capnp::List<wire::CopySide>>()
        .size();
  };
  CHECK_THROWS_AS(follow(), kj::Exception);
}
