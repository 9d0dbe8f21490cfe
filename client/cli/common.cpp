#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <stdexcept>

#include "commands.h"

namespace fargpu::client::cli {

std::vector<PoolHost> pool_hosts(const std::string& pool) {
  const char* const variable = std::getenv("FARGPU_POOL");
  const std::string text = !pool.empty() ? pool : variable ? variable : "";
  if (text.empty()) {
    throw std::runtime_error("no pool is named; set FARGPU_POOL=host[:port][,host...] or give --pool");
  }
  if (text == "none") throw std::runtime_error("FARGPU_POOL=none: no GPU is to be used");
  std::string error;
  std::vector<PoolHost> hosts = parse_pool(text, error, pool.empty() ? "FARGPU_POOL" : "--pool");
  if (!error.empty()) throw std::runtime_error(error);
  return hosts;
}

std::string memory_text(std::uint64_t bytes) {
  constexpr std::uint64_t gib = 1u << 30;
  return bytes < gib ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / gib);
}

std::string age_text(std::uint64_t since) {
  const auto seconds =
      static_cast<std::uint64_t>(std::max<std::time_t>(0, std::time(nullptr) - static_cast<std::time_t>(since)));
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} h", seconds / 3600);
}

}  // namespace fargpu::client::cli
