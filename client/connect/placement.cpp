#include "placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "client/base/log.h"
#include "protocol/limits.h"
#include "protocol/text.h"

namespace fargpu::client {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t parts_max = 8, name_bytes_max = 64, address_bytes_max = 300;

DialError another_host_at(const PoolHost& host) {
  DialError error(CUDA_ERROR_SYSTEM_NOT_READY, "another host answers at " + address_text(host));
  error.another_host = true;
  return error;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

std::optional<PoolHost> told_host(const std::string& address, const ControlConnection& by, std::string& why) {
  std::string error;
  const auto hosts =
      address.size() > address_bytes_max ? std::vector<PoolHost>() : parse_pool(address, error, "the pool");
  if (hosts.size() != 1 || !hosts[0].socket.empty()) why = "is no address of a host";
  else if (by.far_encrypted() && hosts[0].transport == PoolHost::Transport::tcp && !is_loopback(hosts[0].host))
    why = "is without TLS, while this one is reached by TLS; its pool_address should have tls://";
  else return hosts[0];
  return std::nullopt;
}

std::optional<Placement> read_placement(wire::LeaseAnswer::Reader answer, const ControlConnection& broker,
                                        const LeaseOptions& wish) {
  const auto places = answer.getPlaces();
  if (places.size() == 0) return std::nullopt;
  const auto complain = [&](const std::string& what) {
    return DialError(CUDA_ERROR_NOT_PERMITTED, broker.name() + " sends this program to other hosts, of which " + what,
                     wire::Failure::Reason::BAD_REQUEST);
  };
  Placement placement;
  std::uint64_t gpus = 0;
  placement.name = answer.getPlacement().cStr();
  const auto job = answer.getPlacementJob();
  if (places.size() > parts_max || placement.name.empty() || placement.name.size() > name_bytes_max ||
      job.size() != placement.job.size())
    throw complain("it does not say what a client needs to know");
  std::memcpy(placement.job.data(), job.begin(), job.size());
  for (const auto place : places) {
    const std::string address = place.getAddress().cStr();
    const std::string shown = "'" + printable(address, address_bytes_max) + "'";
    std::string why;
    const auto host = told_host(address, broker, why);
    if (!host) throw complain(shown + " " + why);
    if (place.getGpus() == 0 || place.getGpus() > limits::devices_max)
      throw complain(shown + " is to give no number of GPUs that there is");
    const std::string name = place.getHost().cStr();
    placement.parts.push_back(
        {*host, place.getGpus(), name.size() <= name_bytes_max ? printable(name) : "", place.getIdentity().cStr()});
    gpus += place.getGpus();
  }
  if ((wish.gpus != 0 && gpus != wish.gpus) || placement.parts.size() > std::max(wish.hosts, 1u))
    throw complain(fmt::format("{} have {} for it, and {} of at most {} were asked for",
                               so_many(placement.parts.size(), "host"), so_many(gpus, "GPU"),
                               wish.gpus == 0 ? "those" : so_many(wish.gpus, "GPU"),
                               so_many(std::max(wish.hosts, 1u), "host")));
  return placement;
}

std::unique_ptr<ControlConnection> connect_to_part(const Placement::Part& part, ControlConnection::For whom) {
  auto broker = std::make_unique<ControlConnection>(part.host, whom);
  if (!part.identity.empty() && !broker->host_identity().empty() && broker->host_identity() != part.identity)
    throw another_host_at(part.host);
  return broker;
}

void give_up(const PoolHost& member, const std::string& placement) noexcept try {
  ControlConnection broker(member);
  broker.ask([&](wire::Control::Builder control) { control.setGiveUp(placement); }, wire::Control::GIVEN_UP,
             [](wire::Control::Reader) {});
} catch (const std::exception& failure) {
  log::debug("a placement is not given up: {}", failure.what());
}

std::string unreached_repair(const DialError& error) {
  if (error.another_host) return "have its pool_address corrected";
  if (error.unknown_name) return "have its pool_address corrected, or that name made known to this machine";
  if (error.tls)
    return "have its certificate or its pool_address corrected (tcp:// in front where no TLS is spoken), or set "
           "FARGPU_CA "
           "to the authority of its certificate";
  return "start its fargpud, open that port for this machine, or have its pool_address corrected";
}

DialError placed_there(const PoolHost& host, const DialError& error, const std::string& name) {
  const std::string address = address_text(host);
  std::string_view what = error.what();
  const bool silent = error.result == CUDA_ERROR_SYSTEM_NOT_READY && error.reason == wire::Failure::Reason::NONE;
  if ((silent || error.tls) && !name.empty()) {
    // What else it says is for somebody who has named that host.
    DialError unreached(CUDA_ERROR_SYSTEM_NOT_READY,
                        fmt::format("the pool has placed this job at {}, but in vain: {}; {}", name,
                                    what.substr(0, what.find("; ")), unreached_repair(error)));
    unreached.unreached = name;
    return unreached;
  }
  const bool says = what.starts_with(address + ": ");
  if (says) what.remove_prefix(address.size() + 2);
  return error.told_as(fmt::format("the pool has placed this job at {}, but {}: {}", address,
                                   says && error.reason != wire::Failure::Reason::NONE ? "that host says" : "in vain",
                                   what));
}

DialError told_with(const std::optional<DialError>& before, const DialError& error) {
  const std::string_view last = error.what();
  if (!before || last == before->what()) return error;
  std::string_view first = before->what();
  if (first.ends_with(doctor_hint)) first.remove_suffix(doctor_hint.size());
  return error.told_as(fmt::format("{}; before that, {}", last, first));
}

DialError no_other_host(const std::optional<DialError>& before, const DialError& refusal) {
  if (!before || before->unreached.empty() || refusal.reason != wire::Failure::Reason::DENIED) return refusal;
  return before->told_as(fmt::format("{} (no other host of the pool could ever serve it)", before->what()));
}

DialError told_of_outage(const PoolHost& member, const LeaseOptions& wish, const DialError& error) {
  if (error.reason != wire::Failure::Reason::DENIED || wish.gpus == 0) return error;
  std::string pool, trouble;
  std::size_t fit = 0;
  try {
    ControlConnection broker(member, ControlConnection::For::host);  // a job is told of its host alone
    broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
               [&](wire::Control::Reader control) {
                 const auto status = control.getStatus();
                 pool = printable(status.getPool().getName().cStr());
                 trouble = printable(status.getPool().getTrouble().cStr(), 512);
                 for (const auto device : status.getDevices()) fit += device.getMemoryBytes() >= wish.memory_bytes;
               });
  } catch (const DialError&) {  // the refusal is what counts
    return error;
  }
  if (trouble.empty() || fit >= wish.gpus) return error;
  DialError later(CUDA_ERROR_SYSTEM_NOT_READY,
                  fmt::format("{}; the registry of pool '{}' is away, so only this host can serve now ({}): ask for no "
                              "more than it has, or try later",
                              error.what(), pool, trouble),
                  wire::Failure::Reason::NO_CAPACITY);
  return later;
}

// A dead host is none of the pool any more after ten seconds.
bool place_again(const DialError& error, int placements) {
  if (error.result != CUDA_ERROR_SYSTEM_NOT_READY || placements >= placements_max) return false;
  log::info("{}; the pool is asked again", error.what());
  if (!error.unreached.empty()) return true;
  const bool answered = error.reason == wire::Failure::Reason::NO_CAPACITY;
  std::this_thread::sleep_for(answered ? 100ms : 1000ms * placements);
  return true;
}

}  // namespace fargpu::client
