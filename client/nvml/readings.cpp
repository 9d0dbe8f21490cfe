// What the host's NVML reads off a device: use, temperatures, power, clocks. "NVML API Reference Guide", "Device
// Queries". The host is asked each time; what it does not know is not supported here either.

#include <sys/time.h>

#include <algorithm>

#include "link_fields.h"
#include "state.h"

namespace fargpu::client::nvml {
namespace {

using Kind = wire::Reading::Kind;

template <class T>
Return give_reading(DeviceHandle handle, Kind kind, T* out) noexcept {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  return with_device_now(handle, [&](const Host& host, std::size_t i) {
    const auto value = host.devices[i].reading(kind);
    return value ? give(static_cast<T>(*value), out) : NVML_ERROR_NOT_SUPPORTED;
  });
}

Return give_two(DeviceHandle handle, Kind first, Kind second, unsigned* first_out, unsigned* second_out) noexcept {
  if (!first_out || !second_out) return NVML_ERROR_INVALID_ARGUMENT;
  return with_device_now(handle, [&](const Host& host, std::size_t i) {
    const auto one = host.devices[i].reading(first), two = host.devices[i].reading(second);
    if (!one || !two) return NVML_ERROR_NOT_SUPPORTED;
    *first_out = static_cast<unsigned>(*one);
    *second_out = static_cast<unsigned>(*two);
    return NVML_SUCCESS;
  });
}

// How long the host looks for one value is its own affair, and not told.
Return give_utilisation(DeviceHandle handle, Kind kind, unsigned* percent, unsigned* period) noexcept {
  if (!period) return NVML_ERROR_INVALID_ARGUMENT;
  const Return result = give_reading(handle, kind, percent);
  if (result == NVML_SUCCESS) *period = 0;
  return result;
}

Return give_clock(DeviceHandle handle, unsigned type, unsigned* out, Kind first) noexcept {
  if (type > clock_video) return NVML_ERROR_INVALID_ARGUMENT;
  return give_reading(handle, static_cast<Kind>(static_cast<unsigned>(first) + type), out);
}
static_assert(static_cast<unsigned>(Kind::VIDEO_CLOCK) == static_cast<unsigned>(Kind::GRAPHICS_CLOCK) + clock_video);
static_assert(static_cast<unsigned>(Kind::VIDEO_CLOCK_MAX) ==
              static_cast<unsigned>(Kind::GRAPHICS_CLOCK_MAX) + clock_video);

}  // namespace

// Calls that give one reading as it is: the call, the type of its number, the reading.
#define FARGPU_READING(call, number, kind) \
  NVML_EXPORT Return call(DeviceHandle device, number* out) { return give_reading(device, Kind::kind, out); }
FARGPU_READING(nvmlDeviceGetPowerUsage, unsigned, POWER)
FARGPU_READING(nvmlDeviceGetPowerManagementLimit, unsigned, POWER_LIMIT)
FARGPU_READING(nvmlDeviceGetEnforcedPowerLimit, unsigned, POWER_LIMIT_ENFORCED)
FARGPU_READING(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, POWER_LIMIT_DEFAULT)
FARGPU_READING(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, ENERGY)
FARGPU_READING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, CLOCK_REASONS)
FARGPU_READING(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, CLOCK_REASONS)
FARGPU_READING(nvmlDeviceGetFanSpeed, unsigned, FAN_SPEED)
FARGPU_READING(nvmlDeviceGetPerformanceState, unsigned, PERFORMANCE_STATE)
FARGPU_READING(nvmlDeviceGetPowerState, unsigned, PERFORMANCE_STATE)
FARGPU_READING(nvmlDeviceGetPersistenceMode, unsigned, PERSISTENCE_MODE)
FARGPU_READING(nvmlDeviceGetComputeMode, unsigned, COMPUTE_MODE)
FARGPU_READING(nvmlDeviceGetBrand, unsigned, BRAND)
FARGPU_READING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, PCIE_GENERATION)
FARGPU_READING(nvmlDeviceGetCurrPcieLinkWidth, unsigned, PCIE_WIDTH)
FARGPU_READING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, PCIE_GENERATION_MAX)
FARGPU_READING(nvmlDeviceGetMaxPcieLinkWidth, unsigned, PCIE_WIDTH_MAX)
#undef FARGPU_READING

NVML_EXPORT Return nvmlDeviceGetUtilizationRates(DeviceHandle device, Utilization* out) {
  return out ? give_two(device, Kind::GPU_UTILISATION, Kind::MEMORY_UTILISATION, &out->gpu, &out->memory)
             : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT Return nvmlDeviceGetEncoderUtilization(DeviceHandle device, unsigned* percent, unsigned* period) {
  return give_utilisation(device, Kind::ENCODER_UTILISATION, percent, period);
}
NVML_EXPORT Return nvmlDeviceGetDecoderUtilization(DeviceHandle device, unsigned* percent, unsigned* period) {
  return give_utilisation(device, Kind::DECODER_UTILISATION, percent, period);
}

NVML_EXPORT Return nvmlDeviceGetTemperature(DeviceHandle device, unsigned sensor, unsigned* degrees) {
  return sensor == 0 ? give_reading(device, Kind::TEMPERATURE, degrees) : NVML_ERROR_INVALID_ARGUMENT;
}
NVML_EXPORT Return nvmlDeviceGetTemperatureV(DeviceHandle device, TemperatureVersioned* temperature) {
  if (!temperature) return NVML_ERROR_INVALID_ARGUMENT;
  if (temperature->version != temperature_version) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return temperature->sensor == 0 ? give_reading(device, Kind::TEMPERATURE, &temperature->temperature)
                                  : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT Return nvmlDeviceGetClockInfo(DeviceHandle device, unsigned type, unsigned* mhz) {
  return give_clock(device, type, mhz, Kind::GRAPHICS_CLOCK);
}
NVML_EXPORT Return nvmlDeviceGetMaxClockInfo(DeviceHandle device, unsigned type, unsigned* mhz) {
  return give_clock(device, type, mhz, Kind::GRAPHICS_CLOCK_MAX);
}
NVML_EXPORT Return nvmlDeviceGetClock(DeviceHandle device, unsigned type, unsigned id, unsigned* mhz) {
  constexpr unsigned current = 0;  // NVML_CLOCK_ID_CURRENT; the others are of clocks that nobody can set here
  return id == current ? nvmlDeviceGetClockInfo(device, type, mhz) : NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT Return nvmlDeviceGetEccMode(DeviceHandle device, unsigned* current, unsigned* pending) {
  return give_two(device, Kind::ECC_MODE, Kind::ECC_MODE_PENDING, current, pending);
}

// Readings by number (NVML_FI_DEV_*); each answer says for itself whether there is one.
NVML_EXPORT Return nvmlDeviceGetFieldValues(DeviceHandle device, int count, FieldValue* values) {
  if (count <= 0 || !values) return NVML_ERROR_INVALID_ARGUMENT;
  struct Field {
    unsigned id;
    Kind kind;
    ValueType type;
  };
  static constexpr Field fields[] = {{82, Kind::MEMORY_TEMPERATURE, value_unsigned_int},
                                     {83, Kind::ENERGY, value_unsigned_long_long},
                                     {185, Kind::POWER, value_unsigned_int},
                                     {186, Kind::POWER, value_unsigned_int}};
  return with_device_now(device, [&](const Host& host, std::size_t number) {
    timeval now{};
    ::gettimeofday(&now, nullptr);
    for (int i = 0; i < count; ++i) {
      FieldValue& value = values[i];
      const auto* const field =
          std::find_if(std::begin(fields), std::end(fields), [&](const Field& f) { return f.id == value.fieldId; });
      const Device& of = host.devices[number];
      const auto reading = field == std::end(fields) ? std::nullopt : of.reading(field->kind);
      const auto link = link_field(of, value.fieldId, value.scopeId);
      value.timestamp = now.tv_sec * 1'000'000ll + now.tv_usec;
      value.latencyUsec = 0;
      value.nvmlReturn = reading || link ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
      if (!reading && !link) continue;
      value.valueType = reading ? field->type : value_unsigned_int;
      value.value.ullVal = reading ? static_cast<unsigned long long>(*reading) : *link;
    }
    return NVML_SUCCESS;
  });
}

}  // namespace fargpu::client::nvml
