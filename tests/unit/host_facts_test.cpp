// What the broker believes of the devices that a worker tells of.

#include "server/broker/host_facts.h"

#include <capnp/any.h>
#include <capnp/message.h>
#include <kj/exception.h>

#include <catch2/catch.hpp>

#include "protocol/errors.h"

using namespace fargpu;

namespace {

struct Facts {
  capnp::MallocMessageBuilder message;
  wire::HostFacts::Builder facts = message.initRoot<wire::HostFacts>();
  wire::DeviceFacts::Builder device = facts.initDevices(1)[0];
  Facts() {
    facts.setDriverRelease("580.95.05");
    device.setName("a device");
    device.initUuid(16)[0] = 7;
    device.setMemoryBytes(1u << 30);
    device.initAttributes(1)[0].setValue(5);
    facts.initPeers(1)[0].setTo(1);
  }
  void copy() const {
    capnp::MallocMessageBuilder kept;
    server::copy_facts(facts.asReader(), kept.initRoot<wire::HostFacts>());
  }
};

// Something else where a text or a list is expected.
template <class Struct>
void put_bytes(Struct in, unsigned pointer) {
  const kj::byte bytes[] = {'n', 'o', ' ', 'e', 'n', 'd'};
  capnp::AnyStruct::Builder(std::move(in))
      .getPointerSection()[pointer]
      .setAs<capnp::Data>(capnp::Data::Reader(bytes, sizeof(bytes)));
}

}  // namespace

TEST_CASE("facts of a host are kept as they were told") {
  const Facts told;
  capnp::MallocMessageBuilder kept;
  server::copy_facts(told.facts.asReader(), kept.initRoot<wire::HostFacts>());
  const auto facts = kept.getRoot<wire::HostFacts>().asReader();
  CHECK(facts.getDriverRelease() == "580.95.05");
  REQUIRE(facts.getDevices().size() == 1);
  CHECK(facts.getDevices()[0].getName() == "a device");
  CHECK(facts.getDevices()[0].getMemoryBytes() == 1u << 30);
  CHECK(facts.getDevices()[0].getAttributes()[0].getValue() == 5);
  CHECK(facts.getPeers()[0].getTo() == 1);
  CHECK(server::same_devices(told.facts.asReader(), facts));
}

TEST_CASE("facts that cannot be read are refused when they are told") {
  SECTION("a name without an end") {
    Facts told;
    put_bytes(told.device, 0);
    CHECK_THROWS_AS(told.copy(), kj::Exception);
  }
  SECTION("a release without an end") {
    Facts told;
    put_bytes(told.facts, 3);
    CHECK_THROWS_AS(told.copy(), kj::Exception);
  }
  SECTION("bytes in place of devices") {
    Facts told;
    put_bytes(told.facts, 0);
    CHECK_THROWS_AS(told.copy(), ProtocolError);  // so many devices with nothing in them
  }
  SECTION("a UUID of another length") {
    Facts told;
    told.device.initUuid(15);
    CHECK_THROWS_AS(told.copy(), ProtocolError);
  }
}

TEST_CASE("devices are the same if they are as many, in the same order") {
  Facts one, other;
  CHECK(server::same_devices(one.facts.asReader(), other.facts.asReader()));
  other.device.getUuid()[0] = 8;
  CHECK_FALSE(server::same_devices(one.facts.asReader(), other.facts.asReader()));
  other.facts.initDevices(2)[0].setUuid(one.device.getUuid().asReader());
  CHECK_FALSE(server::same_devices(one.facts.asReader(), other.facts.asReader()));
}
