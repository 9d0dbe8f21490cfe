#include "facts.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "cuda_facts.h"
#include "protocol/data.h"

namespace fargpu::server {
namespace {

constexpr CUdevice_P2PAttribute peer_attributes[] = {
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED,
    CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED};

void write_device(DriverTable& driver, CUdevice ordinal, wire::DeviceFacts::Builder device) {
  char name[256] = {};
  driver.cuDeviceGetName(name, sizeof(name) - 1, ordinal);
  device.setName(name);
  CUuuid uuid{};
  driver.cuDeviceGetUuid_v2(&uuid, ordinal);
  device.setUuid(data_of(std::as_bytes(std::span(uuid.bytes))));
  char luid[8] = {};
  unsigned mask = 0;
  if (driver.cuDeviceGetLuid(luid, &mask, ordinal) == CUDA_SUCCESS) {
    device.setLuid(data_of(std::as_bytes(std::span(luid))));
    device.setLuidNodeMask(mask);
  }
  std::size_t bytes = 0;
  driver.cuDeviceTotalMem_v2(&bytes, ordinal);
  device.setMemoryBytes(bytes);

  std::vector<std::pair<int, int>> known;
  for (const DeviceAttribute& attribute : device_attributes()) {
    int value = 0;
    if (driver.cuDeviceGetAttribute(&value, attribute.attribute, ordinal) != CUDA_SUCCESS) continue;
    known.emplace_back(attribute.attribute, value);
  }
  auto attributes = device.initAttributes(static_cast<unsigned>(known.size()));
  for (unsigned i = 0; i < known.size(); ++i) {
    attributes[i].setAttribute(static_cast<std::uint32_t>(known[i].first));
    attributes[i].setValue(known[i].second);
  }
  int affinity = 0;
  if (driver.cuDeviceGetExecAffinitySupport(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT, ordinal) == CUDA_SUCCESS) {
    auto list = device.initExecAffinity(1);
    list[0].setAttribute(CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    list[0].setValue(affinity);
  }
}

// The driver's release, which the name of its library ends with: libcuda.so.580.95.05.
std::string driver_release(DriverTable& driver) {
  Dl_info info{};
  if (!::dladdr(reinterpret_cast<void*>(driver.cuInit), &info) || !info.dli_fname) return "";
  std::error_code error;
  const std::string name = std::filesystem::canonical(info.dli_fname, error).filename();
  constexpr std::string_view before = "libcuda.so.";
  return name.starts_with(before) && name.find('.', before.size()) != std::string::npos ? name.substr(before.size())
                                                                                        : "";
}

}  // namespace

void write_facts(DriverTable& driver, const std::vector<int>& ordinals, wire::HostFacts::Builder facts) {
  int version = 0;
  driver.cuDriverGetVersion(&version);
  facts.setDriverVersion(static_cast<std::uint32_t>(version));
  facts.setDriverRelease(driver_release(driver));
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  driver.cuModuleGetLoadingMode(&mode);
  facts.setModuleLoadingMode(mode);
  const auto count = static_cast<unsigned>(ordinals.size());
  auto devices = facts.initDevices(count);
  for (unsigned i = 0; i < count; ++i) write_device(driver, ordinals[i], devices[i]);

  auto peers = facts.initPeers(count * (count > 0 ? count - 1 : 0));
  unsigned next = 0;
  for (unsigned from = 0; from < count; ++from) {
    for (unsigned to = 0; to < count; ++to) {
      if (from == to) continue;
      auto peer = peers[next++];
      peer.setFrom(from);
      peer.setTo(to);
      int can = 0;
      driver.cuDeviceCanAccessPeer(&can, ordinals[from], ordinals[to]);
      peer.setCanAccess(can != 0);
      std::vector<std::pair<CUdevice_P2PAttribute, int>> known;  // an older driver does not know all
      for (const CUdevice_P2PAttribute attribute : peer_attributes) {
        int value = 0;
        if (driver.cuDeviceGetP2PAttribute(&value, attribute, ordinals[from], ordinals[to]) == CUDA_SUCCESS)
          known.emplace_back(attribute, value);
      }
      auto attributes = peer.initAttributes(static_cast<unsigned>(known.size()));
      for (unsigned i = 0; i < known.size(); ++i) {
        attributes[i].setAttribute(known[i].first);
        attributes[i].setValue(known[i].second);
      }
    }
  }
  const auto results = result_facts();
  std::vector<std::pair<CUresult, const char*>> texts;
  for (const ResultFacts& result : results) {
    const char* text = nullptr;
    if (driver.cuGetErrorString(result.result, &text) == CUDA_SUCCESS && text) texts.emplace_back(result.result, text);
  }
  auto list = facts.initErrorTexts(static_cast<unsigned>(texts.size()));
  for (unsigned i = 0; i < texts.size(); ++i) {
    list[i].setResult(texts[i].first);
    list[i].setText(texts[i].second);
  }
}

}  // namespace fargpu::server
