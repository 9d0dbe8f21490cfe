#include "lease_options.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "environment.h"
#include "protocol/data.h"
#include "protocol/handle.h"
#include "protocol/limits.h"
#include "protocol/text.h"

namespace fargpu::client {
namespace {

// As many as handles tell apart (protocol/handle.h).
constexpr std::uint32_t hosts_of_process_max = Handle::origin_max + 1;
constexpr std::uint64_t least_bytes = 1u << 20;

std::string variable(const char* name) {
  const char* const value = environment_variable(name);
  return value ? value : "";
}

std::optional<LeaseOptions::Job> parse_job(const std::string& text) {
  LeaseOptions::Job job;
  if (text.size() != 2 * job.size()) return std::nullopt;
  for (std::size_t i = 0; i < job.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    if (error != std::errc{} || end != begin + 2) return std::nullopt;
    job[i] = std::byte{byte};
  }
  return job;
}

// Numbers with commas between them.
std::optional<std::vector<std::uint32_t>> parse_split(const std::string& text) {
  std::vector<std::uint32_t> shares;
  const char* at = text.data();
  const char* const behind = at + text.size();
  while (true) {
    std::uint32_t share = 0;
    const auto [end, failed] = std::from_chars(at, behind, share);
    if (failed != std::errc{} || share == 0 || share > limits::devices_max || shares.size() == hosts_of_process_max)
      return std::nullopt;
    shares.push_back(share);
    if (end == behind) return shares;
    if (*end != ',') return std::nullopt;
    at = end + 1;
  }
}

}  // namespace

std::optional<std::uint64_t> parse_memory(const std::string& text) {
  const auto bytes = parse_bytes(text);
  return bytes && *bytes >= least_bytes ? bytes : std::nullopt;
}

LeaseOptions read_lease_options(std::string& error) {
  LeaseOptions options;
  const auto complain = [&](const char* name, const std::string& value, const std::string& wanted) {
    error = std::string(name) + " is '" + value + "'; " + wanted;
  };
  if (const std::string gpus = variable("FARGPU_GPUS"); !gpus.empty()) {
    const auto [end, failed] = std::from_chars(gpus.data(), gpus.data() + gpus.size(), options.gpus);
    if (failed != std::errc{} || end != gpus.data() + gpus.size() || options.gpus == 0 ||
        options.gpus > limits::devices_max)
      complain("FARGPU_GPUS", gpus, "give a number of GPUs from 1 to " + std::to_string(limits::devices_max));
  }
  if (const std::string hosts = variable("FARGPU_HOSTS"); !hosts.empty()) {
    const auto [end, failed] = std::from_chars(hosts.data(), hosts.data() + hosts.size(), options.hosts);
    if (failed != std::errc{} || end != hosts.data() + hosts.size() || options.hosts == 0 ||
        options.hosts > hosts_of_process_max)
      complain("FARGPU_HOSTS", hosts, "give a number of hosts from 1 to " + std::to_string(hosts_of_process_max));
  }
  if (const std::string split = variable("FARGPU_SPLIT"); !split.empty()) {
    if (const auto shares = parse_split(split)) options.split = *shares;
    else complain("FARGPU_SPLIT", split, "it is set by `fargpu run`; leave it alone or unset it");
  }
  if (const std::string memory = variable("FARGPU_MEM"); !memory.empty()) {
    if (const auto bytes = parse_memory(memory)) options.memory_bytes = *bytes;
    else complain("FARGPU_MEM", memory, memory_wanted);
  }
  if (const std::string compute = variable("FARGPU_COMPUTE"); !compute.empty()) {
    const auto percent = parse_percent(compute);
    if (!percent || *percent == 0) complain("FARGPU_COMPUTE", compute, "give a share of each GPU from 1% to 100%");
    else options.compute_percent = *percent;
  }
  if (const std::string priority = variable("FARGPU_PRIORITY"); !priority.empty()) {
    if (priority == "latency-critical") options.priority = wire::Priority::LATENCY_CRITICAL;
    else if (priority == "best-effort") options.priority = wire::Priority::BEST_EFFORT;
    else if (priority == "normal") options.priority = wire::Priority::NORMAL;
    else complain("FARGPU_PRIORITY", priority, "give latency-critical, normal or best-effort");
  }
  if (const std::string wait = variable("FARGPU_WAIT"); !wait.empty()) {
    const auto seconds = parse_duration(wait);
    if (!seconds || *seconds > limits::lease_wait_max)
      complain("FARGPU_WAIT", wait, "give a time up to 7d, for example 10min");
    else options.wait = *seconds;
  }
  if (const std::string job = variable("FARGPU_JOB"); !job.empty()) {
    options.job = parse_job(job);
    if (!options.job)
      complain("FARGPU_JOB", job, "it is set by `fargpu run`, to 32 hexadecimal digits; leave it alone or unset it");
  }
  return options;
}

void write_lease_options(const LeaseOptions& options, wire::LeaseRequest::Builder request) {
  request.setGpus(options.gpus);
  request.setMemoryBytes(options.memory_bytes);
  request.setComputePercent(options.compute_percent);
  request.setPriority(options.priority.value_or(wire::Priority::NORMAL));
  request.setPriorityAsked(options.priority.has_value());
  request.setWaitMs(static_cast<std::uint32_t>(options.wait.count()));
  request.setFollowsPlaces(options.follows);
  request.setHosts(options.hosts);
  if (!options.placement.empty()) request.setPlacement(options.placement);
  auto unreached = request.initUnreached(static_cast<unsigned>(options.unreached.size()));
  for (unsigned i = 0; i < unreached.size(); ++i) unreached.set(i, options.unreached[i]);
  if (options.job) request.setJob(data_of(*options.job));
}

}  // namespace fargpu::client
