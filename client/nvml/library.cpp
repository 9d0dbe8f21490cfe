// libnvidia-ml.so.1: what programs ask of a machine's GPUs before they start CUDA. "NVML API Reference Guide".

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "client/tables/memory_table.h"
#include "client/tables/table_of_driver.h"
#include "state.h"

namespace fargpu::client::nvml {

State& state() {
  static State* const instance = new State;  // never destroyed: late calls may still ask
  return *instance;
}

void keep(const Host& host) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.host = host;
}

namespace {

template <class Matches>
Return find_device(DeviceHandle* out, Matches&& matches) noexcept {
  return with_host([&](const Host& host) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    for (std::size_t i = 0; i < host.devices.size(); ++i) {
      if (!matches(host.devices[i], i)) continue;
      *out = reinterpret_cast<DeviceHandle>(i + 1);
      return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

template <class Info>
Return give_pci(DeviceHandle handle, Info* out) noexcept {
  return with_device(handle, [&](const Device& device, unsigned) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = pci_of<Info>(device);
    return NVML_SUCCESS;
  });
}

// What this process keeps of the device for reuse is free to its program, which reads that here and by cuMemGetInfo.
std::uint64_t without_kept(const Device& device, std::uint64_t used) {
  const auto* const table = table_of_driver<MemoryTable>(memory_table_id);
  std::uint64_t kept = 0;
  if (!table || table->kept_bytes(device.uuid.c_str(), &kept) != CUDA_SUCCESS) return used;
  return used - std::min(used, kept);
}

// Programs of this machine that hold memory of the device. `count` is the room in `out`, and becomes their number.
template <class Info>
Return give_processes(DeviceHandle handle, unsigned* count, Info* out) noexcept {
  if (!count || (*count > 0 && !out)) return NVML_ERROR_INVALID_ARGUMENT;
  return with_device_now(handle, [&](const Host& host, std::size_t number) {
    unsigned n = 0;
    for (const Session& session : host.sessions) {
      const std::uint64_t bytes = number < session.memory_bytes.size() ? session.memory_bytes[number] : 0;
      if (bytes == 0) continue;
      if (n < *count) {
        const bool own = session.process_id == static_cast<unsigned>(::getpid());
        out[n] = {session.process_id, own ? without_kept(host.devices[number], bytes) : bytes};
        if constexpr (requires { out->gpuInstanceId; }) out[n].gpuInstanceId = out[n].computeInstanceId = no_instance;
      }
      ++n;
    }
    const bool room = n <= *count;
    *count = n;
    return room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
  });
}

const char* describe(int result) {
  switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "nvmlInit has not been called";
    case NVML_ERROR_INVALID_ARGUMENT: return "An argument is not valid";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Not permitted";
    case NVML_ERROR_NOT_FOUND: return "Not found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "The buffer is too small";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "No GPU host can be reached";
    case NVML_ERROR_TIMEOUT: return "Timed out";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "No such function";
    case NVML_ERROR_GPU_IS_LOST: return "The GPU is not there any more";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Versions do not fit";
    case NVML_ERROR_MEMORY: return "Out of memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "A structure is of a version that is not known";
    default: return "Unknown error";
  }
}

}  // namespace

NVML_EXPORT Return nvmlInitWithFlags(unsigned) {
  return guarded([] {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.users == 0 || s.host.guessed) s.host = ask_host();
    ++s.users;
    return NVML_SUCCESS;
  });
}
NVML_EXPORT Return nvmlInit_v2() { return nvmlInitWithFlags(0); }
NVML_EXPORT Return nvmlInit() { return nvmlInitWithFlags(0); }

NVML_EXPORT Return nvmlShutdown() {
  return guarded([] {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.users == 0) return NVML_ERROR_UNINITIALIZED;
    --s.users;
    return NVML_SUCCESS;
  });
}

NVML_EXPORT const char* nvmlErrorString(int result) { return describe(result); }

NVML_EXPORT Return nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return with_host([&](const Host& host) {
    return host.driver_release.empty() ? NVML_ERROR_NOT_SUPPORTED : give_text(host.driver_release, version, length);
  });
}
// The library's own version is that of its interface's level and of the driver, as NVML's is.
NVML_EXPORT Return nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return with_host([&](const Host& host) {
    return host.driver_release.empty()
               ? NVML_ERROR_NOT_SUPPORTED
               : give_text(fmt::format("{}.{}", host.driver_version / 1000, host.driver_release), version, length);
  });
}
NVML_EXPORT Return nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return with_host([&](const Host& host) { return give(host.driver_version, version); });
}
NVML_EXPORT Return nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML_EXPORT Return nvmlDeviceGetCount_v2(unsigned* count) {
  return with_host([&](const Host& host) { return give(static_cast<unsigned>(host.devices.size()), count); });
}
NVML_EXPORT Return nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

NVML_EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned index, DeviceHandle* device) {
  const Return result = find_device(device, [&](const Device&, std::size_t i) { return i == index; });
  return result == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : result;
}
NVML_EXPORT Return nvmlDeviceGetHandleByIndex(unsigned index, DeviceHandle* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
NVML_EXPORT Return nvmlDeviceGetHandleByUUID(const char* uuid, DeviceHandle* device) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  return find_device(device, [&](const Device& d, std::size_t) { return d.uuid == uuid; });
}
NVML_EXPORT Return nvmlDeviceGetHandleByPciBusId_v2(const char* id, DeviceHandle* device) {
  unsigned domain = 0, bus = 0, number = 0;
  if (!id || (std::sscanf(id, "%x:%x:%x", &domain, &bus, &number) != 3 &&
              (domain = 0, std::sscanf(id, "%x:%x", &bus, &number) != 2)))
    return NVML_ERROR_INVALID_ARGUMENT;
  return find_device(device, [&](const Device& d, std::size_t) {
    return d.pci_domain == domain && d.pci_bus == bus && d.pci_device == number;
  });
}
NVML_EXPORT Return nvmlDeviceGetHandleByPciBusId(const char* id, DeviceHandle* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

NVML_EXPORT Return nvmlDeviceGetIndex(DeviceHandle device, unsigned* index) {
  return with_device(device, [&](const Device&, unsigned number) { return give(number, index); });
}
NVML_EXPORT Return nvmlDeviceGetName(DeviceHandle device, char* name, unsigned length) {
  return with_device(device, [&](const Device& d, unsigned) { return give_text(d.name, name, length); });
}
NVML_EXPORT Return nvmlDeviceGetUUID(DeviceHandle device, char* uuid, unsigned length) {
  return with_device(device, [&](const Device& d, unsigned) { return give_text(d.uuid, uuid, length); });
}
NVML_EXPORT Return nvmlDeviceGetPciInfo_v3(DeviceHandle device, PciInfo* pci) { return give_pci(device, pci); }
NVML_EXPORT Return nvmlDeviceGetPciInfo_v2(DeviceHandle device, PciInfoShort* pci) { return give_pci(device, pci); }
NVML_EXPORT Return nvmlDeviceGetPciInfo(DeviceHandle device, PciInfoShort* pci) { return give_pci(device, pci); }
NVML_EXPORT Return nvmlDeviceGetCudaComputeCapability(DeviceHandle device, int* major, int* minor) {
  return with_device(device, [&](const Device& d, unsigned) {
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = d.compute_capability / 10;
    *minor = d.compute_capability % 10;
    return NVML_SUCCESS;
  });
}

NVML_EXPORT Return nvmlDeviceGetMemoryInfo(DeviceHandle device, Memory* memory) {
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  return with_device_now(device, [&](const Host& host, std::size_t i) {
    const std::uint64_t all = host.devices[i].memory_bytes,
                        used = without_kept(host.devices[i], host.devices[i].used_bytes);
    *memory = {all, all - used, used};
    return NVML_SUCCESS;
  });
}
NVML_EXPORT Return nvmlDeviceGetMemoryInfo_v2(DeviceHandle device, MemoryVersioned* memory) {
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != memory_version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return with_device_now(device, [&](const Host& host, std::size_t i) {
    const std::uint64_t all = host.devices[i].memory_bytes,
                        used = without_kept(host.devices[i], host.devices[i].used_bytes);
    *memory = {memory_version, all, 0, all - used, used};
    return NVML_SUCCESS;
  });
}

NVML_EXPORT Return nvmlDeviceGetComputeRunningProcesses(DeviceHandle device, unsigned* count, ProcessShort* processes) {
  return give_processes(device, count, processes);
}
NVML_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v2(DeviceHandle device, unsigned* count, Process* processes) {
  return give_processes(device, count, processes);
}
NVML_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(DeviceHandle device, unsigned* count, Process* processes) {
  return give_processes(device, count, processes);
}

// No program draws on the devices, and none shares one through a server of its own.
NVML_EXPORT Return nvmlDeviceGetGraphicsRunningProcesses(DeviceHandle device, unsigned* count, ProcessShort*) {
  return with_device(device, [&](const Device&, unsigned) { return give(0u, count); });
}
NVML_EXPORT Return nvmlDeviceGetGraphicsRunningProcesses_v2(DeviceHandle device, unsigned* count, Process*) {
  return nvmlDeviceGetGraphicsRunningProcesses(device, count, nullptr);
}
NVML_EXPORT Return nvmlDeviceGetGraphicsRunningProcesses_v3(DeviceHandle device, unsigned* count, Process*) {
  return nvmlDeviceGetGraphicsRunningProcesses(device, count, nullptr);
}
NVML_EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses(DeviceHandle device, unsigned* count, ProcessShort*) {
  return nvmlDeviceGetGraphicsRunningProcesses(device, count, nullptr);
}
NVML_EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses_v2(DeviceHandle device, unsigned* count, Process*) {
  return nvmlDeviceGetGraphicsRunningProcesses(device, count, nullptr);
}
NVML_EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses_v3(DeviceHandle device, unsigned* count, Process*) {
  return nvmlDeviceGetGraphicsRunningProcesses(device, count, nullptr);
}

}  // namespace fargpu::client::nvml
