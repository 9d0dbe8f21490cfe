#include "driver/configuration.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "common/log.h"

namespace fargpu::softgpu {
namespace {

constexpr int device_count_max = 64;
constexpr int multiprocessor_count_max = 1024;
constexpr uint64_t memory_bytes_min = uint64_t{64} << 20;
constexpr uint64_t memory_bytes_max = uint64_t{4} << 40;

std::optional<uint64_t> parse_number(std::string_view text, std::string_view& rest) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

std::optional<uint64_t> parse_count(std::string_view text) {
  std::string_view rest;
  auto value = parse_number(text, rest);
  return rest.empty() ? value : std::nullopt;
}

/// 4GiB, 512MiB, 4G, 512M, 1073741824.
std::optional<uint64_t> parse_bytes(std::string_view text) {
  std::string_view unit;
  auto value = parse_number(text, unit);
  if (!value) return std::nullopt;
  int shift = 0;
  if (unit == "KiB" || unit == "K") shift = 10;
  else if (unit == "MiB" || unit == "M") shift = 20;
  else if (unit == "GiB" || unit == "G") shift = 30;
  else if (unit == "TiB" || unit == "T") shift = 40;
  else if (!unit.empty() && unit != "B") return std::nullopt;
  if (*value > UINT64_MAX >> shift) return std::nullopt;
  return *value << shift;
}

template <class Parse>
uint64_t read(const char* name, Parse parse, uint64_t least, uint64_t most, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  std::optional<uint64_t> value = parse(text);
  if (value && *value >= least && *value <= most) return *value;
  log_line(std::string(name) + " is '" + text + "', which is not usable; using the default");
  return otherwise;
}

std::vector<int> visible_devices(int count) {
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  // As CUDA does: the list counts up to its first entry that names no device.
  std::string_view rest = text;
  while (!rest.empty()) {
    size_t comma = std::min(rest.find(','), rest.size());
    auto number = parse_count(rest.substr(0, comma));
    bool is_known = number && *number < static_cast<uint64_t>(count);
    if (!is_known || std::find(visible.begin(), visible.end(), static_cast<int>(*number)) != visible.end()) break;
    visible.push_back(static_cast<int>(*number));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return visible;
}

}  // namespace

Configuration Configuration::from_environment() {
  Configuration result;
  result.device_count =
      static_cast<int>(read("FARGPU_SOFTGPU_DEVICES", parse_count, 0, device_count_max, result.device_count));
  result.memory_bytes =
      read("FARGPU_SOFTGPU_MEMORY", parse_bytes, memory_bytes_min, memory_bytes_max, result.memory_bytes);
  // Whole pages, so that all of it can be allocated.
  result.memory_bytes -= result.memory_bytes % (uint64_t{2} << 20);
  if (const char* path = std::getenv("FARGPU_SOFTGPU_SHARED")) result.shared_use = path;
  result.multiprocessor_count = static_cast<int>(
      read("FARGPU_SOFTGPU_SMS", parse_count, 1, multiprocessor_count_max, result.multiprocessor_count));
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  result.launch_blocking = blocking != nullptr && std::strcmp(blocking, "1") == 0;
  result.visible = visible_devices(result.device_count);
  return result;
}

}  // namespace fargpu::softgpu
