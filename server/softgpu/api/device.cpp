#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>
#include <cstring>
#include <string>

#include "common/limits.h"
#include "driver/array.h"

using namespace fargpu::softgpu;

CUresult cuInit(unsigned int flags) {
  return guarded([&] {
    require(flags == 0);
    Driver::initialize();
  });
}

CUresult cuDriverGetVersion(int* version) {
  return guarded([&] {
    require(version != nullptr);
    *version = driver_version;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return entry([&] {
    require(device != nullptr);
    *device = Driver::get().device(ordinal).ordinal();
  });
}

CUresult cuDeviceGetCount(int* count) {
  return entry([&] {
    require(count != nullptr);
    *count = Driver::get().device_count();
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return entry([&] {
    require(name != nullptr && length > 0);
    Driver::get().device(device);
    constexpr char text[] = "fargpu software GPU";
    size_t copied = std::min(static_cast<size_t>(length) - 1, sizeof text - 1);
    std::memcpy(name, text, copied);
    name[copied] = '\0';
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return entry([&] {
    require(uuid != nullptr);
    *uuid = Driver::get().device(device).uuid();
  });
}

// An identity that Windows gives to adapters.
CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return entry([&] {
    require(bytes != nullptr);
    *bytes = Driver::get().device(device).account()->total_bytes();
  });
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format format, unsigned channels, CUdevice device) {
  return entry([&] {
    require(width != nullptr);
    Driver::get().device(device);
    texel_format(format, channels);
    *width = size_t{1} << 28;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return entry([&] {
    require(value != nullptr);
    *value = Driver::get().device(device).attribute(attribute);
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return entry([&] {
    require(major != nullptr && minor != nullptr);
    Driver::get().device(device);
    *major = compute_capability_major;
    *minor = compute_capability_minor;
  });
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
  return entry([&] {
    require(properties != nullptr);
    const Device& d = Driver::get().device(device);
    auto value = [&](CUdevice_attribute attribute) { return d.attribute(attribute); };
    *properties = {};
    properties->maxThreadsPerBlock = value(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    for (int i = 0; i < 3; ++i) {
      properties->maxThreadsDim[i] = static_cast<int>(block_dimension_max[i]);
      properties->maxGridSize[i] = static_cast<int>(grid_dimension_max[i]);
    }
    properties->sharedMemPerBlock = value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    properties->totalConstantMemory = value(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    properties->SIMDWidth = value(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    properties->memPitch = value(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    properties->regsPerBlock = value(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    properties->clockRate = value(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    properties->textureAlign = value(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  });
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return entry([&] {
    require(id != nullptr && length > 0);
    std::string text = Driver::get().device(device).pci_bus_id();
    require(text.size() < static_cast<size_t>(length));
    std::memcpy(id, text.c_str(), text.size() + 1);
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  return entry([&] {
    require(device != nullptr && id != nullptr);
    std::string wanted = id;
    std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    for (int i = 0; i < Driver::get().device_count(); ++i) {
      // The domain and the function may be left out.
      std::string full = Driver::get().device(i).pci_bus_id();
      std::string without_function = full.substr(0, full.rfind('.'));
      for (const std::string& form : {full, without_function, full.substr(5), without_function.substr(5)})
        if (form == wanted) {
          *device = i;
          return;
        }
    }
    require(wanted.find(':') != std::string::npos &&
            wanted.find_first_not_of("0123456789ABCDEF:.") == std::string::npos);
    throw Failure(CUDA_ERROR_INVALID_DEVICE);
  });
}

CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType type, CUdevice device) {
  return entry([&] {
    require(supported != nullptr && type < CU_EXEC_AFFINITY_TYPE_MAX);
    Driver::get().device(device);
    *supported = 0;
  });
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  return entry([&] {
    require(can_access != nullptr);
    Driver::get().device(device);
    Driver::get().device(peer);
    *can_access = device != peer;
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) {
  return entry([&] {
    require(value != nullptr);
    Driver::get().device(source);
    Driver::get().device(target);
    require(source != target, CUDA_ERROR_INVALID_DEVICE);
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; return;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 1; return;
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: *value = 0; return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

namespace {

/// All atomic operations work on memory of the host and of peers alike.
void report_atomics(unsigned* capabilities, const CUatomicOperation* operations, unsigned count) {
  require(capabilities != nullptr && operations != nullptr && count != 0);
  for (unsigned i = 0; i < count; ++i) {
    require(operations[i] >= 0 && operations[i] < CU_ATOMIC_OPERATION_MAX);
    capabilities[i] = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_SCALAR_32 |
                      CU_ATOMIC_CAPABILITY_SCALAR_64;
  }
}

}  // namespace

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations,
                                           unsigned int count, CUdevice device) {
  return entry([&] {
    Driver::get().device(device);
    report_atomics(capabilities, operations, count);
  });
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations,
                                          unsigned int count, CUdevice source, CUdevice target) {
  return entry([&] {
    Driver::get().device(source);
    Driver::get().device(target);
    require(source != target, CUDA_ERROR_INVALID_DEVICE);
    report_atomics(capabilities, operations, count);
  });
}
