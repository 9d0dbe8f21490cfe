#include "pool_dial.h"

#include <sys/random.h>

#include <stdexcept>
#include <utility>

#include "client/connect/gang.h"
#include "dial.h"

namespace fargpu::client {
namespace {

// A job of this process alone, whose leases its sessions come under.
LeaseOptions::Job own_job() {
  LeaseOptions::Job job;
  if (::getrandom(job.data(), job.size(), 0) != static_cast<ssize_t>(job.size()))
    throw std::runtime_error("no random numbers");
  return job;
}

}  // namespace

std::unique_ptr<Pool> find_pool(const Config& config) {
  if (config.lease.hosts <= 1 && config.lease.split.size() <= 1) return nullptr;
  if (!config.number_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.number_error);
  require_pool(config);
  const bool joins = config.lease.split.size() > 1;
  if (config.lease.job && !joins) return nullptr;  // the job has the GPUs of one host
  if (joins && config.lease.split.size() != config.hosts.size())
    throw DialError(CUDA_ERROR_NO_DEVICE,
                    "FARGPU_SPLIT and FARGPU_POOL do not tell of the same hosts; `fargpu run` sets "
                    "both, so leave them alone within a job");
  LeaseOptions wish = config.lease;
  if (!wish.job) wish.job = own_job();
  const auto check = [&](ControlConnection& broker) { require_transport(config, broker); };
  auto members = joins ? join_gang(config.hosts, wish, check) : take_gang(config.hosts, wish, check);
  wish.wait = {};
  std::vector<Pool::Host> hosts;
  for (GangMember& member : members) {
    LeaseOptions of_host = wish;
    of_host.gpus = member.gpus;
    hosts.push_back({.name = member.broker->name(),
                     .facts = std::move(member.facts),
                     .begin = [&config, of_host,
                               host = member.host](const Place& place) { return dial(config, host, of_host, place); },
                     .lease = std::move(member.broker)});
  }
  return std::make_unique<Pool>(std::move(hosts),
                                config.visible_set ? std::optional(config.visible_devices) : std::nullopt);
}

}  // namespace fargpu::client
