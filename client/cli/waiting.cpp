#include "waiting.h"

#include <fmt/format.h>

#include "commands.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string wish_text(const Json& waiter) {
  const auto number = [&](const char* key) { return waiter[key].get<std::uint64_t>(); };
  std::string text = number("gpus") == 0 ? "all GPUs of a host" : so_many(number("gpus"), "GPU");
  if (const auto bytes = number("memory_bytes"); bytes != 0) text += ", " + memory_text(bytes) + " of each";
  if (const auto percent = number("compute_percent"); percent != 0) text += fmt::format(", {}%", percent);
  return text;
}

}  // namespace

Json describe_waiting(capnp::List<wire::WaiterStatus>::Reader waiting, const Filter& filter) {
  Json all = Json::array();
  for (const auto waiter : waiting) {
    const std::string tenant = printable(waiter.getTenant().cStr());
    if (!filter.shows_tenant(tenant)) continue;
    all.push_back({{"tenant", tenant},
                   {"program", printable(waiter.getProgram().cStr())},
                   {"client", printable(waiter.getHostName().cStr())},
                   {"pid", waiter.getProcessId()},
                   {"since", waiter.getSinceSeconds()},
                   {"gpus", waiter.getGpus()},
                   {"memory_bytes", waiter.getMemoryBytes()},
                   {"compute_percent", waiter.getComputePercent()},
                   {"reason", printable(waiter.getReason().cStr(), 512)}});
  }
  return all;
}

std::string waiting_text(const Json& waiting, Wishes wishes) {
  std::string text;
  for (const Json& waiter : waiting)
    text +=
        fmt::format("  waiting since {}: {}, {} of {} on {}: {}{}\n", age_text(waiter["since"].get<std::uint64_t>()),
                    waiter["tenant"].get<std::string>(), waiter["program"].get<std::string>(),
                    waiter["pid"].get<unsigned>(), waiter["client"].get<std::string>(),
                    wishes == Wishes::told ? wish_text(waiter) + ", " : "", waiter["reason"].get<std::string>());
  return text;
}

}  // namespace fargpu::client::cli
