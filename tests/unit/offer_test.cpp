// What hosts of a pool offer, and which is the better one.

#include "client/connect/offer.h"

#include <catch2/catch.hpp>
#include <vector>

#include "protocol/message.h"

using namespace fargpu;
using namespace fargpu::client;

namespace {

constexpr std::uint64_t gib = 1u << 30;

// A host that serves, with so much free on each device.
Offer offer(
    const std::vector<std::uint64_t>& free, const LeaseOptions& wish,
    const std::function<void(wire::Status::Builder)>& more = [](wire::Status::Builder) {}) {
  MessageWriter writer;
  auto status = writer.root<wire::Control>().initStatus();
  status.setSessionsMax(4);
  status.setTenant("lab");
  auto devices = status.initDevices(static_cast<unsigned>(free.size()));
  for (unsigned i = 0; i < free.size(); ++i) devices[i].setFreeBytes(free[i]);
  more(status);
  const auto message = writer.finish();
  MessageReader reader(message);
  return read_offer(reader.root<wire::Control>().getStatus(), wish);
}

LeaseOptions wish(std::uint32_t gpus, std::uint64_t memory) {
  LeaseOptions options;
  options.gpus = gpus;
  options.memory_bytes = memory;
  return options;
}

}  // namespace

TEST_CASE("a host offers what the tenant may use") {
  const auto second_alone = [](wire::Status::Builder status) {
    auto tenant = status.initTenants(1)[0];
    tenant.setName("lab");
    tenant.initDevices(1).set(0, 1);
  };
  CHECK(offer({4 * gib, 2 * gib}, wish(0, 0), second_alone).devices == 1);
  CHECK(offer({0, 2 * gib}, wish(0, 0), second_alone).room);
  CHECK_FALSE(offer({4 * gib, 0}, wish(1, 0), second_alone).room);
  CHECK_FALSE(offer({4 * gib, 2 * gib}, wish(2, 0), second_alone).room);
}

TEST_CASE("a host has room where enough devices have enough memory") {
  CHECK(offer({gib, gib}, wish(0, 0)).room);
  CHECK(offer({gib, 0}, wish(1, gib)).room);
  CHECK_FALSE(offer({gib, 0}, wish(0, 0)).room);  // all devices are meant
  CHECK_FALSE(offer({gib, gib - 1}, wish(2, gib)).room);
  CHECK_FALSE(offer({gib, gib}, wish(3, 0)).room);
  CHECK_FALSE(offer({}, wish(0, 0)).room);
}

TEST_CASE("a host that cannot serve has no room") {
  CHECK_FALSE(offer({gib}, wish(1, 0), [](auto status) { status.setSessionsTaken(4); }).room);
  CHECK_FALSE(offer({gib}, wish(1, 0), [](auto status) { status.setDraining(true); }).room);
  CHECK_FALSE(offer({gib}, wish(1, 0), [](auto status) { status.setState(wire::HostState::STOPPING); }).room);
  CHECK_FALSE(offer({gib}, wish(1, 0), [](auto status) {
                status.initFailure().setReason(wire::Failure::Reason::HOST_ERROR);
              }).room);
}

TEST_CASE("a tenant's own bound of sessions counts, and nobody else's") {
  const auto with = [](const char* tenant, std::uint64_t limit) {
    return offer({gib}, wish(1, 0), [&](wire::Status::Builder status) {
      auto one = status.initTenants(1)[0];
      one.setName(tenant);
      one.setSessionsLimit(limit);
      one.setSessions(2);
    });
  };
  CHECK_FALSE(with("lab", 2).room);
  CHECK(with("lab", 3).room);
  CHECK(with("lab", 0).room);  // no bound
  CHECK(with("other", 2).room);
}

TEST_CASE("requests that wait are load as sessions are") {
  const Offer busy = offer({gib}, wish(1, 0), [](wire::Status::Builder status) {
    status.setSessionsTaken(2);
    status.initWaiting(3);
  });
  CHECK(busy.load == 5);
  CHECK(busy.devices == 1);
}

TEST_CASE("room counts before load, and load by device") {
  const auto at = [](bool room, std::uint32_t devices, std::uint32_t load) {
    return Offer{.room = room, .devices = devices, .free = devices, .id = "", .load = load};
  };
  CHECK(better(at(true, 1, 9), at(false, 1, 0)));
  CHECK_FALSE(better(at(false, 1, 0), at(true, 1, 9)));
  CHECK(better(at(true, 8, 3), at(true, 1, 1)));
  CHECK_FALSE(better(at(true, 1, 1), at(true, 8, 3)));
  CHECK_FALSE(better(at(true, 2, 2), at(true, 1, 1)));  // equal
  CHECK_FALSE(better(at(true, 1, 1), at(true, 2, 2)));
  CHECK(better(at(true, 0, 0), at(true, 0, 1)));  // no device is no reason to divide by nothing
}
