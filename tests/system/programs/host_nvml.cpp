// The NVML of a GPU host in tests: it knows the fake driver's devices, and says of each what the test wrote into a file
// of lines "function value", named by FARGPU_TEST_NVML and read each time. What is not there is not supported.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace {

constexpr int success = 0, not_supported = 3, not_found = 6, insufficient_size = 7;

bool said(const std::string& what, unsigned long long& value) {
  const char* const path = std::getenv("FARGPU_TEST_NVML");
  std::ifstream file(path ? path : "");
  std::string name;
  unsigned long long number;
  while (file >> name >> number) {
    if (name != what) continue;
    value = number;
    return true;
  }
  return false;
}

template <class T>
int tell(const std::string& what, void* device, T* out) {
  unsigned long long value = 0;
  if (!said(what, value)) return not_supported;
  // Each device a little more than the one before it.
  *out = static_cast<T>(value + reinterpret_cast<std::uintptr_t>(device) - 1);
  return success;
}

struct Field {
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  unsigned long long value;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ONE(name) \
  EXPORT int name(void* device, unsigned* out) { return tell(#name, device, out); }
#define LONG(name) \
  EXPORT int name(void* device, unsigned long long* out) { return tell(#name, device, out); }
#define KIND(name)                                              \
  EXPORT int name(void* device, unsigned kind, unsigned* out) { \
    return tell(#name + std::to_string(kind), device, out);     \
  }
#define TWO(name)                                                        \
  EXPORT int name(void* device, unsigned* first, unsigned* second) {     \
    const int result = tell(#name "0", device, first);                   \
    return result == success ? tell(#name "1", device, second) : result; \
  }

EXPORT int nvmlInit_v2() {
  unsigned long long result = 0;
  return said("nvmlInit_v2", result) ? static_cast<int>(result) : success;
}
// The fake driver's devices are numbered by their last byte.
EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strncmp(uuid, "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0", 38) != 0 || std::strlen(uuid) != 40)
    return not_found;
  *device = reinterpret_cast<void*>(std::strtoul(uuid + 38, nullptr, 16) + 1);
  return success;
}
// While it says "hang", it does.
EXPORT int nvmlDeviceGetUtilizationRates(void* device, unsigned* both) {
  for (unsigned long long hangs = 0; said("hang", hangs);) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const int result = tell("utilisation", device, &both[0]);
  return result == success ? tell("memory_utilisation", device, &both[1]) : result;
}
EXPORT int nvmlDeviceGetTopologyCommonAncestor(void* one, void* other, unsigned* level) {
  unsigned long long value = 0;
  if (one == other || !said("topology", value)) return not_supported;
  *level = static_cast<unsigned>(value);
  return success;
}
EXPORT int nvmlDeviceGetP2PStatus(void* one, void* other, unsigned kind, unsigned* status) {
  unsigned long long value = 0;
  if (one == other || !said("peer" + std::to_string(kind), value)) return not_supported;
  *status = static_cast<unsigned>(value);
  return success;
}
// "links": how many are up. All lead to a switch that a virtual machine does not see, but for number 1, which leads to
// the fake driver's second device.
EXPORT int nvmlDeviceGetNvLinkState(void*, unsigned number, unsigned* active) {
  unsigned long long links = 0;
  if (!said("links", links)) return not_supported;
  *active = number < links;
  return success;
}
EXPORT int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) {
  *version = 4;
  return success;
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned number, unsigned* type) {
  *type = number == 1 ? 0 : 1;
  return success;
}
EXPORT int nvmlDeviceGetNvLinkCapability(void*, unsigned, unsigned capability, unsigned* has) {
  *has = capability == 0 || capability == 2;
  return success;
}
struct Pci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned number, Pci* pci) {
  *pci = {"FFFFFFF:FFFF:FF", ~0u, ~0u, ~0u, ~0u, 0, "FFFFFFFF:FFFF:FF"};
  if (number == 1) *pci = {"0000:02:00.0", 0, 2, 0, 0, 0, "00000000:02:00.0"};
  return success;
}
struct Process {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
// One process of the first device: "process" and "process_bytes".
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  unsigned long long process = 0, bytes = 0;
  const bool some =
      reinterpret_cast<std::uintptr_t>(device) == 1 && said("process", process) && said("process_bytes", bytes);
  if (some && *count < 1) return insufficient_size;
  *count = some;
  if (some) processes[0] = {static_cast<unsigned>(process), bytes, 0, 0};
  return success;
}
EXPORT int nvmlDeviceGetFieldValues(void* device, int count, Field* fields) {
  for (int i = 0; i < count; ++i)
    fields[i].result = tell("field" + std::to_string(fields[i].field), device, &fields[i].value);
  return success;
}
ONE(nvmlDeviceGetPowerUsage)
ONE(nvmlDeviceGetPowerManagementLimit)
ONE(nvmlDeviceGetEnforcedPowerLimit)
ONE(nvmlDeviceGetPowerManagementDefaultLimit)
ONE(nvmlDeviceGetFanSpeed)
ONE(nvmlDeviceGetPerformanceState)
ONE(nvmlDeviceGetPersistenceMode)
ONE(nvmlDeviceGetComputeMode)
ONE(nvmlDeviceGetBrand)
ONE(nvmlDeviceGetCurrPcieLinkGeneration)
ONE(nvmlDeviceGetCurrPcieLinkWidth)
ONE(nvmlDeviceGetMaxPcieLinkGeneration)
ONE(nvmlDeviceGetMaxPcieLinkWidth)
LONG(nvmlDeviceGetTotalEnergyConsumption)
LONG(nvmlDeviceGetCurrentClocksThrottleReasons)
KIND(nvmlDeviceGetTemperature)
KIND(nvmlDeviceGetClockInfo)
KIND(nvmlDeviceGetMaxClockInfo)
TWO(nvmlDeviceGetEncoderUtilization)
TWO(nvmlDeviceGetDecoderUtilization)
TWO(nvmlDeviceGetEccMode)
