// CUDA_VISIBLE_DEVICES, as CUDA understands it.

#include <catch2/catch.hpp>

#include "client/connect/facts.h"
#include "client/base/uuid.h"

using namespace fargpu::client;

namespace {

// Four devices whose uuids begin a0, a1, a2, b3.
Facts four_devices() {
  Facts facts;
  for (int i = 0; i < 4; ++i) {
    Device device;
    device.worker_ordinal = i;
    for (int b = 0; b < 16; ++b) device.uuid.bytes[b] = static_cast<char>(i * 16 + b);
    device.uuid.bytes[0] = static_cast<char>((i == 3 ? 0xb0 : 0xa0) + i);
    facts.devices.push_back(device);
  }
  return facts;
}

std::vector<int> chosen(const std::string& visible) {
  Facts facts = four_devices();
  select_devices(facts, visible);
  std::vector<int> ordinals;
  for (const Device& device : facts.devices) ordinals.push_back(device.worker_ordinal);
  return ordinals;
}

using List = std::vector<int>;

}  // namespace

TEST_CASE("numbers choose devices in their order") {
  CHECK(chosen("0") == List{0});
  CHECK(chosen("3,1") == List{3, 1});
  CHECK(chosen("0,1,2,3") == List{0, 1, 2, 3});
  CHECK(chosen(" 2 , 0 ") == List{2, 0});
  CHECK(chosen("\t1,2") == List{1, 2});
  CHECK(chosen("0 1") == List{0});
  CHECK(chosen("1gpu2,2ampere") == List{1, 2});
}

TEST_CASE("an empty list, or one that begins with nothing, chooses none") {
  CHECK(chosen("").empty());
  CHECK(chosen(" ").empty());
  CHECK(chosen(",0").empty());
  CHECK(chosen("-1").empty());
  CHECK(chosen("NoDevFiles").empty());
}

TEST_CASE("the list ends at the first entry that names no device") {
  CHECK(chosen("1,4,2") == List{1});
  CHECK(chosen("1,-1,2") == List{1});
  CHECK(chosen("2,x,1") == List{2});
  CHECK(chosen("2,,1") == List{2});
  CHECK(chosen("0,99999999999999999999,1") == List{0});
}

TEST_CASE("uuids choose devices, whole or by a beginning that is one device's alone") {
  const Facts facts = four_devices();
  const std::string third = uuid_text(facts.devices[2].uuid);
  CHECK(third == "GPU-a2212223-2425-2627-2829-2a2b2c2d2e2f");
  CHECK(chosen(third) == List{2});
  CHECK(chosen("GPU-a2") == List{2});
  CHECK(chosen("GPU-b") == List{3});
  CHECK(chosen("GPU-b3,0,GPU-a1") == List{3, 0, 1});
  CHECK(chosen("GPU-a").empty());  // of several
  CHECK(chosen("GPU-").empty());
  CHECK(chosen("GPU-c").empty());
  CHECK(chosen("0,GPU-a,1") == List{0});
  CHECK(chosen(third + "0").empty());
  CHECK(chosen("a2212223").empty());
  CHECK(chosen("MIG-a2212223").empty());
}

TEST_CASE("a device named twice makes the list empty") {
  CHECK(chosen("0,0").empty());
  CHECK(chosen("1,2,1").empty());
  CHECK(chosen("GPU-a1,1").empty());
  CHECK(chosen("0,9,0") == List{0});  // the list ended before
}

TEST_CASE("the program's ordinals count the chosen devices") {
  Facts facts = four_devices();
  select_devices(facts, "3,1");
  REQUIRE(facts.device(0));
  CHECK(facts.device(0)->worker_ordinal == 3);
  CHECK(facts.device(1)->worker_ordinal == 1);
  CHECK(facts.device(2) == nullptr);
  CHECK(facts.device(-1) == nullptr);
}
