// Which versions of the protocol two sides use.

#include "protocol/version.h"

#include <catch2/catch.hpp>
#include <utility>

#include "control.capnp.h"
#include "protocol/message.h"

using namespace fargpu;

TEST_CASE("two sides use the newest version that both speak") {
  CHECK(common_version({3, 5}, {4, 4}) == 4u);
  CHECK(common_version({3, 5}, {5, 9}) == 5u);
  CHECK(common_version({5, 9}, {3, 5}) == 5u);
  CHECK(common_version({3, 3}, {3, 3}) == 3u);
  CHECK_FALSE(common_version({3, 5}, {6, 9}));
  CHECK_FALSE(common_version({3, 5}, {1, 2}));
}

TEST_CASE("versions that are told the wrong way round are refused") {
  CHECK_FALSE(common_version({3, 5}, {9, 4}));
  CHECK_FALSE(common_version({3, 5}, {0, 0}));
}

TEST_CASE("a message of before 0.2.0 names one version") {
  const auto told = [](std::uint32_t oldest, std::uint32_t newest) {
    MessageWriter writer;
    auto hello = writer.root<wire::Control>().initHello();
    hello.setOldestProtocol(oldest);
    hello.setProtocolVersion(newest);
    const auto message = writer.finish();
    MessageReader reader(message);
    const Versions versions = versions_of(reader.root<wire::Control>().getHello());
    return std::pair(versions.oldest, versions.newest);
  };
  CHECK(told(3, 4) == std::pair(3u, 4u));
  CHECK(told(0, 1) == std::pair(1u, 1u));
  CHECK(told(3828966415, 1) == std::pair(1u, 1u));  // other data lies there
}

TEST_CASE("sides that have no version in common are told which is older") {
  const Side host{"gpu1:8470", "0.1.0", {1, 1}}, client{"the client", "", {3, 4}};
  CHECK(versions_apart(host, client) ==
        "gpu1:8470 has an older fargpu (0.1.0, protocol 1) than the client (protocol 3 to 4); update fargpu on the GPU "
        "host");
  CHECK(versions_apart({"this host", "0.3.0", {5, 5}}, client) ==
        "the client has an older fargpu (protocol 3 to 4) than this host (0.3.0, protocol 5); update fargpu on the "
        "client's machine");
}

TEST_CASE("a build speaks its own versions") {
  CHECK(speaks(our_versions.newest));
  CHECK(speaks(our_versions.oldest));
  CHECK_FALSE(speaks(our_versions.newest + 1));
  CHECK_FALSE(speaks(our_versions.oldest - 1));
}
