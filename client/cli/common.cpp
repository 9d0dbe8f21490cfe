#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "commands.h"
#include "protocol/nearest.h"
#include "protocol/text.h"
#include "variables.h"

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

std::string StrangeVariable::text() const {
  return printable(name) + " is no variable of fargpu; it counts for nothing" +
         (meant.empty() ? "" : "; perhaps " + meant + " is meant");
}

std::vector<StrangeVariable> strange_variables() {
  constexpr std::string_view prefix = "FARGPU_", of_software_gpu = "FARGPU_SOFTGPU_";
  std::vector<std::string> known;
  for (const Variable& variable : variables())
    known.emplace_back(std::string_view(variable.name).substr(prefix.size()));
  std::vector<StrangeVariable> strange;
  for (char** variable = environ; *variable; ++variable) {
    std::string_view name(*variable);
    name = name.substr(0, name.find('='));
    if (!name.starts_with(prefix) || name.starts_with(of_software_gpu)) continue;
    const std::string own(name.substr(prefix.size()));
    if (std::find(known.begin(), known.end(), own) != known.end()) continue;
    const std::string meant = nearest(own, known);
    strange.push_back({std::string(name), meant.empty() ? "" : std::string(prefix) + meant});
  }
  return strange;
}

std::string memory_text(std::uint64_t bytes) {
  constexpr std::uint64_t gib = 1u << 30;
  return bytes < gib ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / gib);
}

}  // namespace fargpu::client::cli
