#pragma once
// The part of NVML's interface that fargpu serves, declared here because the CUDA toolkit brings no nvml.h. Names,
// numbers and layouts are NVML's ("NVML API Reference Guide": "Device Structs", "Enumerators").

namespace fargpu::client::nvml {

enum Return : int {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999,
};

/// Opaque to programs; here, 1 + the device's number.
using DeviceHandle = struct nvmlDevice_st*;

struct PciInfo {
  char busIdLegacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  char busId[32];
};

/// nvmlPciInfo_v2_t, which ends before the long bus id.
struct PciInfoShort {
  char busIdLegacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  unsigned reserved[4];
};

struct ProcessShort {  // nvmlProcessInfo_v1_t
  unsigned pid;
  unsigned long long usedGpuMemory;  // bytes
};
struct Process {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
};
constexpr unsigned no_instance = 0xffffffff;

struct Memory {  // bytes
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct MemoryVersioned {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
struct Utilization {  // percent
  unsigned gpu;
  unsigned memory;
};

struct TemperatureVersioned {  // nvmlTemperature_v1_t
  unsigned version;
  unsigned sensor;
  int temperature;
};
constexpr unsigned temperature_version = static_cast<unsigned>(sizeof(TemperatureVersioned)) | 1u << 24;

struct PciInfoExt {  // nvmlPciInfoExt_v1_t
  unsigned version;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  unsigned baseClass;
  unsigned subClass;
  char busId[32];
};
constexpr unsigned pci_ext_version = static_cast<unsigned>(sizeof(PciInfoExt)) | 1u << 24;

struct FieldValue {
  unsigned fieldId;
  unsigned scopeId;
  long long timestamp;  // microseconds
  long long latencyUsec;
  int valueType;
  Return nvmlReturn;
  union {
    double dVal;
    int siVal;
    unsigned uiVal;
    unsigned long long ullVal;
  } value;
};
enum ValueType : int { value_unsigned_int = 1, value_unsigned_long_long = 3 };

enum Clock : unsigned { clock_graphics = 0, clock_sm = 1, clock_memory = 2, clock_video = 3 };

constexpr unsigned memory_version = static_cast<unsigned>(sizeof(MemoryVersioned)) | 2u << 24;

}  // namespace fargpu::client::nvml
