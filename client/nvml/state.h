#pragma once
// What all parts of the library stand on: the host as it was told, and ways into and out of its C functions.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "client/connect/dial_error.h"
#include "client/connect/host_report.h"
#include "client/base/log.h"
#include "client/base/uncancelled.h"
#include "nvml.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace fargpu::client::nvml {

using report::ask_host;
using report::Device;
using report::Host;
using report::Session;

struct State {
  std::mutex mutex;
  unsigned users = 0;  // nvmlInit less nvmlShutdown
  Host host;           // as it was at the first of them, or when the process had got its lease
};

State& state();
/// The host is this from now on.
void keep(const Host& host);

/// Nothing of C++ leaves the library, and no cancelled thread does so half-way.
template <class Body>
Return guarded(Body&& body) noexcept {
  const Uncancelled uncancelled;
  try {
    return body();
  } catch (const DialError& error) {
    log::error("{}", error.what());
    return NVML_ERROR_DRIVER_NOT_LOADED;
  } catch (const std::bad_alloc&) {
    return NVML_ERROR_MEMORY;
  } catch (...) {
    return NVML_ERROR_UNKNOWN;
  }
}

template <class Body>
Return with_host(Body&& body) noexcept {
  return guarded([&] {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.users == 0 ? NVML_ERROR_UNINITIALIZED : body(s.host);
  });
}

/// Calls `body` with the device of a handle and its number.
template <class Body>
Return device_of(const Host& host, DeviceHandle handle, Body&& body) {
  const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number > host.devices.size()) return NVML_ERROR_INVALID_ARGUMENT;
  return body(host.devices[number - 1], static_cast<unsigned>(number - 1));
}

/// Calls `body` with the device of a handle, as it was at first, and its number.
template <class Body>
Return with_device(DeviceHandle handle, Body&& body) noexcept {
  return with_host([&](const Host& host) { return device_of(host, handle, body); });
}

/// `Info`: PciInfo or PciInfoShort.
template <class Info>
Info pci_of(const Device& device) {
  Info info{};
  std::snprintf(info.busIdLegacy, sizeof(info.busIdLegacy), "%04X:%02X:%02X.0", device.pci_domain & 0xffff,
                device.pci_bus, device.pci_device);
  info.domain = device.pci_domain;
  info.bus = device.pci_bus;
  info.device = device.pci_device;
  info.pciDeviceId = device.pci_device_id;
  info.pciSubSystemId = device.pci_subsystem_id;
  if constexpr (requires { info.busId; }) {
    std::snprintf(info.busId, sizeof(info.busId), "%08X:%02X:%02X.0", device.pci_domain, device.pci_bus,
                  device.pci_device);
  }
  return info;
}

/// Calls `use` with the device as it is now, and its number. What changes is asked for each time. Where the devices
/// were a guess until the process had its lease, it is that lease's device of this number.
template <class Use>
Return with_device_now(DeviceHandle handle, Use&& use) noexcept {
  std::string uuid;
  std::size_t number = 0;
  bool guessed = false;
  if (const Return bad = with_host([&](const Host& host) {
        guessed = host.guessed;
        return device_of(host, handle, [&](const Device& device, unsigned n) {
          uuid = device.uuid;
          number = n;
          return NVML_SUCCESS;
        });
      });
      bad != NVML_SUCCESS)
    return bad;
  return guarded([&] {
    const Host host = ask_host();
    if (guessed && !host.guessed && number < host.devices.size()) {
      keep(host);
      return use(host, number);
    }
    for (std::size_t i = 0; i < host.devices.size(); ++i)
      if (host.devices[i].uuid == uuid) return use(host, i);
    return NVML_ERROR_GPU_IS_LOST;
  });
}

inline Return give_text(const std::string& text, char* out, unsigned length) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

template <class T>
Return give(T value, T* out) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = value;
  return NVML_SUCCESS;
}

}  // namespace fargpu::client::nvml
