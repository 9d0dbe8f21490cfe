// `fargpu end`, `evict`, `drain` and `resume`: what runs on a host, and whether more may begin.

#include "administration.h"

#include <fmt/format.h>

#include <iostream>

#include "client/connect/placement.h"
#include "client/connect/pool_contacts.h"
#include "commands.h"
#include "pool_members.h"
#include "protocol/site/tokens.h"
#include "protocol/text.h"

namespace fargpu::client::cli {

namespace {

// What the pool of this member says of a host of that name; nothing if it knows none.
std::optional<PoolHost> known_to(ControlConnection& member, const std::string& name) {
  std::optional<PoolMember> found;
  member.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [&](wire::Control::Reader control) {
               const auto pool = control.getStatus().getPool();
               for (const auto hosts : {pool.getAway(), pool.getHosts()})  // one that is away may still answer people
                 for (const auto host : hosts) {
                   if (host.getName() == name.c_str()) found = read_member(host, member);
                 }
             });
  if (!found) return std::nullopt;
  if (!found->host) throw std::runtime_error(fmt::format("host '{}' of the pool: {}", name, found->unfit));
  try {
    connect_to(*found);
  } catch (const DialError& error) {
    if (error.another_host)
      throw std::runtime_error(
          fmt::format("host '{}' of the pool is not reached: {}; {}", name, error.what(), unreached_repair(error)));
  }
  return found->host;
}

// A host that `fargpu ls` shows under this name, as one of the pool that FARGPU_POOL names; nothing if it shows none.
std::optional<PoolHost> host_in_pool(const std::string& name) {
  if (name.empty() || name.find_first_of(":/,") != std::string::npos || config().hosts.empty()) return std::nullopt;
  PoolContacts contacts(config().hosts);
  while (const auto member = contacts.next()) {
    if (member->broker->pool().empty()) continue;
    try {
      return known_to(*member->broker, name);
    } catch (const DialError&) {  // another member may answer
    }
  }
  return std::nullopt;
}

}  // namespace

PoolHost one_host(const std::string& text) {
  if (const auto host = host_in_pool(text)) return *host;
  const auto hosts = pool_hosts(text);
  if (hosts.size() != 1)
    throw std::runtime_error(
        "name one GPU host with --host, such as 127.0.0.1:8470: this is about one, and the pool has several");
  return hosts.front();
}

int administer(const std::string& host, const std::function<void(wire::AdministrationRequest::Builder)>& fill,
               const std::function<void(wire::Status::Reader)>& show, std::chrono::milliseconds timeout) {
  int code = 0;
  ControlConnection broker(one_host(host), ControlConnection::For::host);
  broker.ask([&](wire::Control::Builder control) { fill(control.initAdministrationRequest()); },
             wire::Control::ADMINISTRATION_ANSWER,
             [&](wire::Control::Reader control) {
               const auto failure = control.getAdministrationAnswer().getFailure();
               if (failure.getReason() == wire::Failure::Reason::NONE) return;
               std::cerr << "fargpu: " << printable(failure.getText().cStr(), 512) << "\n";
               code = failure.getReason() == wire::Failure::Reason::DENIED ? exit_denied : exit_own_error;
             },
             timeout);
  if (code != 0) return code;
  broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [&](wire::Control::Reader control) { show(control.getStatus()); });
  return 0;
}

namespace {

void show_state(wire::Status::Reader status) {
  const std::string running = so_many(status.getSessionsTaken(), "session");
  if (!status.getDraining()) {
    std::cout << "the host takes new sessions; " << running << " of at most " << status.getSessionsMax() << " taken\n";
    return;
  }
  const std::string end =
      status.getStateUntil() == 0
          ? "until `fargpu resume`"
          : "until " + site::time_text(std::chrono::sys_seconds(std::chrono::seconds(status.getStateUntil())));
  std::cout << "the host takes no new sessions " << end << "; " << running << " of it may go on\n";
}

}  // namespace

int end_session(const EndOptions& options) {
  return administer(
      options.host, [&](wire::AdministrationRequest::Builder request) { request.setEndSession(options.session); },
      [&](wire::Status::Reader) {
        std::cout << "session " << options.session << " ends; a second time kills its worker\n";
      });
}

// Its work is waited for, and all of its memory copied.
int evict_session(const EndOptions& options) {
  constexpr auto patience = std::chrono::minutes(15);
  return administer(
      options.host, [&](wire::AdministrationRequest::Builder request) { request.setEvict(options.session); },
      [&](wire::Status::Reader status) {
        std::uint64_t away = 0;
        const char* where = "in the host's memory";
        for (const auto session : status.getSessions()) {
          if (session.getId() != options.session) continue;
          away = session.getAwayBytes();
          if (session.getAwayDiskBytes() != 0) where = "on the host's disk";
        }
        std::cout << fmt::format(
            "session {} is evicted{}\n", options.session,
            away == 0 ? ", and back already: its program has gone on" : ": " + bytes_text(away) + " lie " + where);
      },
      patience);
}

int drain(const DrainOptions& options) {
  std::uint64_t seconds = 0;
  if (!options.time.empty()) {
    const auto time = parse_duration(options.time);
    if (!time || time->count() <= 0)
      throw std::runtime_error("--for is '" + options.time + "'; give a time with its unit, for example 2h");
    seconds = static_cast<std::uint64_t>(time->count());
  }
  return administer(
      options.host, [&](wire::AdministrationRequest::Builder request) { request.setDrain(seconds); }, show_state);
}

int resume(const DrainOptions& options) {
  return administer(
      options.host, [](wire::AdministrationRequest::Builder request) { request.setResume(); }, show_state);
}

}  // namespace fargpu::client::cli
