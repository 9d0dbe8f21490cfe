#include "host_nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "event_log.h"

namespace fargpu::server {
namespace {

using Kind = wire::Reading::Kind;

constexpr auto retry_after = std::chrono::seconds(30);

// "NVML API Reference Guide": functions of one device with one number as their answer, and with an argument before it.
struct Question {
  Kind kind;
  const char* function;
};
constexpr Question questions[] = {{Kind::POWER, "nvmlDeviceGetPowerUsage"},
                                  {Kind::POWER_LIMIT, "nvmlDeviceGetPowerManagementLimit"},
                                  {Kind::POWER_LIMIT_ENFORCED, "nvmlDeviceGetEnforcedPowerLimit"},
                                  {Kind::POWER_LIMIT_DEFAULT, "nvmlDeviceGetPowerManagementDefaultLimit"},
                                  {Kind::FAN_SPEED, "nvmlDeviceGetFanSpeed"},
                                  {Kind::PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState"},
                                  {Kind::PERSISTENCE_MODE, "nvmlDeviceGetPersistenceMode"},
                                  {Kind::COMPUTE_MODE, "nvmlDeviceGetComputeMode"},
                                  {Kind::BRAND, "nvmlDeviceGetBrand"},
                                  {Kind::PCIE_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration"},
                                  {Kind::PCIE_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth"},
                                  {Kind::PCIE_GENERATION_MAX, "nvmlDeviceGetMaxPcieLinkGeneration"},
                                  {Kind::PCIE_WIDTH_MAX, "nvmlDeviceGetMaxPcieLinkWidth"}};
constexpr Question long_questions[] = {{Kind::ENERGY, "nvmlDeviceGetTotalEnergyConsumption"},
                                       {Kind::CLOCK_REASONS, "nvmlDeviceGetCurrentClocksThrottleReasons"}};
struct QuestionWith {
  Kind kind;
  const char* function;
  unsigned argument;
};
constexpr QuestionWith questions_with[] = {
    {Kind::TEMPERATURE, "nvmlDeviceGetTemperature", 0},     {Kind::GRAPHICS_CLOCK, "nvmlDeviceGetClockInfo", 0},
    {Kind::SM_CLOCK, "nvmlDeviceGetClockInfo", 1},          {Kind::MEMORY_CLOCK, "nvmlDeviceGetClockInfo", 2},
    {Kind::VIDEO_CLOCK, "nvmlDeviceGetClockInfo", 3},       {Kind::GRAPHICS_CLOCK_MAX, "nvmlDeviceGetMaxClockInfo", 0},
    {Kind::SM_CLOCK_MAX, "nvmlDeviceGetMaxClockInfo", 1},   {Kind::MEMORY_CLOCK_MAX, "nvmlDeviceGetMaxClockInfo", 2},
    {Kind::VIDEO_CLOCK_MAX, "nvmlDeviceGetMaxClockInfo", 3}};
// Those with two numbers as their answer; of the last two the second is a time.
struct Pair {
  Kind first;
  std::optional<Kind> second;
  const char* function;
};
constexpr Pair pairs[] = {{Kind::GPU_UTILISATION, Kind::MEMORY_UTILISATION, "nvmlDeviceGetUtilizationRates"},
                          {Kind::ENCODER_UTILISATION, std::nullopt, "nvmlDeviceGetEncoderUtilization"},
                          {Kind::DECODER_UTILISATION, std::nullopt, "nvmlDeviceGetDecoderUtilization"},
                          {Kind::ECC_MODE, Kind::ECC_MODE_PENDING, "nvmlDeviceGetEccMode"}};
constexpr const char* struct_answer = "nvmlDeviceGetUtilizationRates";  // both in one struct

constexpr unsigned memory_temperature_field = 82;  // NVML_FI_DEV_MEMORY_TEMP
struct FieldValue {
  unsigned field;
  unsigned scope;
  long long timestamp;
  long long latency;
  int type;
  int result;
  union {
    unsigned number;
    unsigned long long bytes;
  } value;
};

std::string name_of(capnp::Data::Reader uuid) {
  if (uuid.size() != 16) return "";
  std::string text = "GPU-";
  for (unsigned i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

}  // namespace

template <class Function>
Function* HostNvml::function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library_, name));
}

bool HostNvml::ready() {
  if (started_ || path_.empty()) return started_;
  const auto now = std::chrono::steady_clock::now();
  if (tried_at_ && now - *tried_at_ < retry_after) return false;
  tried_at_ = now;
  if (!library_) library_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) return false;
  auto* const start = function<int()>("nvmlInit_v2");
  const int result = start ? start() : -1;
  started_ = result == 0;
  if (!started_) EventLog::warn("NVML does not start", {{"library", path_}, {"result", result}});
  return started_;
}

HostNvml::Device* HostNvml::find(capnp::Data::Reader uuid) {
  if (!ready()) return nullptr;
  const std::string name = name_of(uuid);
  const auto [found, added] = devices_.try_emplace(name);
  if (added) {
    auto* const look = function<int(const char*, Handle*)>("nvmlDeviceGetHandleByUUID");
    if (!look || look(name.c_str(), &found->second.handle) != 0) found->second.handle = nullptr;
  }
  return found->second.handle ? &found->second : nullptr;
}

std::vector<HostNvml::Reading> HostNvml::read_now(const Device& device) {
  std::vector<Reading> readings;
  const auto add = [&](Kind kind, std::uint64_t value) {
    readings.push_back({kind, static_cast<std::int64_t>(value)});
  };
  for (const Question& question : questions) {
    unsigned value = 0;
    auto* const ask = function<int(Handle, unsigned*)>(question.function);
    if (ask && ask(device.handle, &value) == 0) add(question.kind, value);
  }
  for (const Question& question : long_questions) {
    unsigned long long value = 0;
    auto* const ask = function<int(Handle, unsigned long long*)>(question.function);
    if (ask && ask(device.handle, &value) == 0) add(question.kind, value);
  }
  for (const QuestionWith& question : questions_with) {
    unsigned value = 0;
    auto* const ask = function<int(Handle, unsigned, unsigned*)>(question.function);
    if (ask && ask(device.handle, question.argument, &value) == 0) add(question.kind, value);
  }
  for (const Pair& pair : pairs) {
    unsigned values[2] = {};
    int result = -1;
    if (pair.function == struct_answer) {
      if (auto* const ask = function<int(Handle, unsigned*)>(pair.function)) result = ask(device.handle, values);
    } else if (auto* const ask = function<int(Handle, unsigned*, unsigned*)>(pair.function)) {
      result = ask(device.handle, &values[0], &values[1]);
    }
    if (result != 0) continue;
    add(pair.first, values[0]);
    if (pair.second) add(*pair.second, values[1]);
  }
  FieldValue field{.field = memory_temperature_field};
  auto* const ask = function<int(Handle, int, FieldValue*)>("nvmlDeviceGetFieldValues");
  if (ask && ask(device.handle, 1, &field) == 0 && field.result == 0) add(Kind::MEMORY_TEMPERATURE, field.value.number);
  return readings;
}

std::vector<HostNvml::Reading> HostNvml::read(capnp::Data::Reader uuid) {
  Device* const device = find(uuid);
  return device ? read_now(*device) : std::vector<Reading>{};
}

std::map<unsigned, std::uint64_t> HostNvml::process_bytes(capnp::Data::Reader uuid) {
  struct Process {  // nvmlProcessInfo_t
    unsigned process;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
  };
  constexpr unsigned processes_max = 4096;
  constexpr int too_many = 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  Device* const device = find(uuid);
  auto* const ask =
      device ? function<int(Handle, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3") : nullptr;
  std::map<unsigned, std::uint64_t> result;
  if (!ask) return result;
  std::vector<Process> processes(64);
  auto count = static_cast<unsigned>(processes.size());
  int outcome = ask(device->handle, &count, processes.data());
  if (outcome == too_many) {
    processes.resize(processes_max);
    count = processes_max;
    outcome = ask(device->handle, &count, processes.data());
  }
  if (outcome != 0) return result;
  processes.resize(std::min<std::size_t>(count, processes.size()));
  for (const Process& process : processes)
    if (process.bytes != ~0ull) result[process.process] = process.bytes;  // the most of all: not known
  return result;
}

std::optional<HostNvml::Distance> HostNvml::distance(capnp::Data::Reader from, capnp::Data::Reader to) {
  constexpr unsigned peer_kinds = 5;  // of nvmlGpuP2PCapsIndex_t
  Device* const one = find(from);
  Device* const other = find(to);
  if (!one || !other || one == other) return std::nullopt;
  const auto [found, added] = distances_.try_emplace({one->handle, other->handle});
  if (!added) return found->second;
  Distance distance;
  auto* const ask = function<int(Handle, Handle, unsigned*)>("nvmlDeviceGetTopologyCommonAncestor");
  if (!ask || ask(one->handle, other->handle, &distance.level) != 0) return std::nullopt;
  auto* const ask_peer = function<int(Handle, Handle, unsigned, unsigned*)>("nvmlDeviceGetP2PStatus");
  for (unsigned kind = 0; ask_peer && kind < peer_kinds; ++kind) {
    unsigned status = 0;
    if (ask_peer(one->handle, other->handle, kind, &status) != 0) break;
    distance.peer_status.push_back(static_cast<std::uint8_t>(status));
  }
  found->second = std::move(distance);
  return found->second;
}

std::vector<HostNvml::Link> HostNvml::links(capnp::Data::Reader uuid) {
  struct Pci {  // nvmlPciInfo_t
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
  };
  constexpr unsigned links_max = 18, capabilities_max = 6;  // NVML_NVLINK_MAX_LINKS, NVML_NVLINK_CAP_COUNT
  Device* const device = find(uuid);
  if (!device) return {};
  const auto [found, added] = links_.try_emplace(device->handle);
  if (!added) return found->second;
  using Ask = int(Handle, unsigned, unsigned*);
  auto* const state = function<Ask>("nvmlDeviceGetNvLinkState");
  auto* const version = function<Ask>("nvmlDeviceGetNvLinkVersion");
  auto* const type = function<Ask>("nvmlDeviceGetNvLinkRemoteDeviceType");
  auto* const capability = function<int(Handle, unsigned, unsigned, unsigned*)>("nvmlDeviceGetNvLinkCapability");
  auto* const remote = function<int(Handle, unsigned, Pci*)>("nvmlDeviceGetNvLinkRemotePciInfo_v2");
  for (unsigned number = 0; state && remote && number < links_max; ++number) {
    unsigned active = 0;
    Pci pci{};
    if (state(device->handle, number, &active) != 0 || active == 0 || remote(device->handle, number, &pci) != 0)
      continue;
    Link link{.number = number,
              .remote_type = 255,  // NVML_NVLINK_DEVICE_TYPE_UNKNOWN
              .remote_domain = pci.domain,
              .remote_bus = pci.bus,
              .remote_pci_device = pci.device,
              .remote_pci_device_id = pci.device_id,
              .remote_bus_id = {pci.bus_id, ::strnlen(pci.bus_id, sizeof(pci.bus_id))},
              .remote_bus_id_legacy = {pci.bus_id_legacy, ::strnlen(pci.bus_id_legacy, sizeof(pci.bus_id_legacy))}};
    if (version) (void)version(device->handle, number, &link.version);
    if (type) (void)type(device->handle, number, &link.remote_type);
    for (unsigned kind = 0; capability && kind < capabilities_max; ++kind) {
      unsigned has = 0;
      if (capability(device->handle, number, kind, &has) == 0 && has != 0) link.capabilities |= 1u << kind;
    }
    found->second.push_back(std::move(link));
  }
  return found->second;
}

}  // namespace fargpu::server
