// `fargpu policy` and `fargpu quota`: how a host's devices are shared.

#include <fmt/format.h>

#include <iostream>

#include "client/connect/control_connection.h"
#include "commands.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

PoolHost one_host(const std::string& text) {
  const auto hosts = pool_hosts(text);
  if (hosts.size() != 1)
    throw std::runtime_error("name one GPU host with --host, such as 127.0.0.1:8470: this is about one, and the pool has several");
  return hosts.front();
}

/// `show` tells what holds when it is done.
int change(const std::string& host, const std::function<void(wire::SchedulingRequest::Builder)>& fill,
           const std::function<void(wire::Status::Reader)>& show) {
  int code = 0;
  ControlConnection broker(one_host(host), ControlConnection::For::host);
  broker.ask([&](wire::Control::Builder control) { fill(control.initSchedulingRequest()); }, wire::Control::SCHEDULING_ANSWER,
             [&](wire::Control::Reader control) {
               const auto failure = control.getSchedulingAnswer().getFailure();
               if (failure.getReason() == wire::Failure::Reason::NONE) return;
               std::cerr << "fargpu: " << printable(failure.getText().cStr(), 512) << "\n";
               code = failure.getReason() == wire::Failure::Reason::DENIED ? exit_denied : exit_own_error;
             });
  if (code != 0) return code;
  broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [&](wire::Control::Reader control) { show(control.getStatus()); });
  return 0;
}

void show_policy(wire::Status::Reader status) {
  std::cout << fmt::format("{}, turns of {} ms, grace {} ms\n", printable(status.getPolicy().cStr()), status.getQuantumMs(),
                           status.getGraceMs());
}

// What a session's lease has now; of another tenant's only that it was changed is known.
void show_share(wire::Status::Reader status, std::uint64_t number) {
  for (const auto session : status.getSessions()) {
    if (session.getId() != number) continue;
    for (const auto lease : status.getLeases()) {
      if (lease.getId() != session.getLease()) continue;
      std::cout << fmt::format(
          "lease {} of session {}: at most {}% of each device (under the policy fixed), weight {} (under fair); the policy is {}\n",
          lease.getId(), number, lease.getSharePercent(), lease.getWeight(), printable(status.getPolicy().cStr()));
      return;
    }
  }
  std::cout << fmt::format("the lease of session {} is changed\n", number);
}

}  // namespace

int policy(const PolicyOptions& options) {
  if (!options.policy.empty())
    return change(
        options.host, [&](wire::SchedulingRequest::Builder request) { request.setPolicy(options.policy); }, show_policy);
  ControlConnection broker(one_host(options.host), ControlConnection::For::host);
  broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [](wire::Control::Reader control) { show_policy(control.getStatus()); });
  return 0;
}

int quota(const QuotaOptions& options) {
  if (options.percent == 0 && options.weight == 0) throw std::runtime_error("say what of it is to change: --percent or --weight");
  return change(
      options.host,
      [&](wire::SchedulingRequest::Builder request) {
        auto share = request.initShare();
        share.setSession(options.session);
        share.setComputePercent(options.percent);
        share.setWeight(options.weight);
      },
      [&](wire::Status::Reader status) { show_share(status, options.session); });
}

}  // namespace fargpu::client::cli
