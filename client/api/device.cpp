// Devices, from the facts of the handshake. CUDA Driver API, "Device Management".

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

#include "narrow.h"
#include "client/session/process.h"
#include "client/session/session.h"
#include "client/objects/thread.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

// Runs `use` with the device's facts, or says why not.
template <class Use>
CUresult with_device(CUdevice ordinal, Use&& use) {
  const Device* const device = process().facts().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  return use(*device);
}

std::string pci_bus_id(const Device& device) {
  return fmt::format("{:04X}:{:02X}:{:02X}.0", device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                     device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                     device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
}

}  // namespace

CUresult cuDeviceGet(Thread& thread, CUdevice* device, int ordinal) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!process().facts().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(Thread& thread, int* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(process().facts().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(Thread& thread, char* name, int len, CUdevice dev) {
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    std::snprintf(name, static_cast<std::size_t>(len), "%s", device.name.c_str());
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid_v2(Thread& thread, CUuuid* uuid, CUdevice dev) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    *uuid = device.uuid;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetLuid(Thread& thread, char* luid, unsigned* mask, CUdevice dev) {
  if (!luid || !mask) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    std::memcpy(luid, device.luid.data(), device.luid.size());
    *mask = device.luid_node_mask;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem_v2(Thread& thread, std::size_t* bytes, CUdevice dev) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    *bytes = device.memory_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem(Thread& thread, unsigned* bytes, CUdevice dev) {
  std::size_t all = 0;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = cuDeviceTotalMem_v2(thread, &all, dev);
  if (result == CUDA_SUCCESS) *bytes = narrowed(all);
  return result;
}

CUresult cuDeviceGetAttribute(Thread& thread, int* pi, CUdevice_attribute attrib, CUdevice dev) {
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    const auto found = device.attributes.find(attrib);
    if (found == device.attributes.end()) return CUDA_ERROR_INVALID_VALUE;
    *pi = found->second;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetProperties(Thread& thread, CUdevprop* prop, CUdevice dev) {
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    CUdevprop p{};
    p.maxThreadsPerBlock = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    p.maxThreadsDim[0] = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    p.maxThreadsDim[1] = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    p.maxThreadsDim[2] = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    p.maxGridSize[0] = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    p.maxGridSize[1] = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    p.maxGridSize[2] = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    p.sharedMemPerBlock = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    p.totalConstantMemory = device.attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    p.SIMDWidth = device.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    p.memPitch = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    p.regsPerBlock = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    p.clockRate = device.attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    p.textureAlign = device.attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    *prop = p;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceComputeCapability(Thread& thread, int* major, int* minor, CUdevice dev) {
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    *major = device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    *minor = device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(Thread& thread, char* text, int len, CUdevice dev) {
  if (!text || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device& device) {
    const std::string id = pci_bus_id(device);
    if (static_cast<std::size_t>(len) <= id.size()) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<std::size_t>(len), "%s", id.c_str());
    return CUDA_SUCCESS;
  });
}

// Accepts [domain]:[bus]:[device].[function], [domain]:[bus]:[device] and [bus]:[device].[function], in hexadecimal.
CUresult cuDeviceGetByPCIBusId(Thread& thread, CUdevice* dev, const char* text) {
  if (!dev || !text) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  const bool full = std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;
  if (!full) {
    domain = 0;
    if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 3) return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& devices = process().facts().devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto is = [&](CUdevice_attribute which, unsigned value) {
      return static_cast<unsigned>(devices[i].attribute(which)) == value;
    };
    if (!is(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, domain) || !is(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, bus) ||
        !is(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, slot))
      continue;
    *dev = static_cast<CUdevice>(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetExecAffinitySupport(Thread& thread, int* pi, CUexecAffinityType type, CUdevice dev) {
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
  return with_device(dev, [&](const Device&) {
    *pi = 0;  // contexts with execution affinity are refused in this version
    return CUDA_SUCCESS;
  });
}

}  // namespace fargpu::client::hand
