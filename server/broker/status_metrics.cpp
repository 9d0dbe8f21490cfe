#include <fmt/format.h>
#include <unistd.h>

#include "metrics.h"
#include "status.h"

namespace fargpu::server {

// Series by session cost whoever keeps them; where there are many, only sums are told.
std::string HostStatus::metrics(const std::map<std::string, std::uint64_t>& admissions) const {
  constexpr std::size_t by_session_max = 64;
  MetricsText text;
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  const std::string host = name;
  text.add("fargpu_build_info", "gauge", "What runs here.",
           {{"Hostname", host}, {"version", FARGPU_VERSION}, {"policy", workers_.scheduling().rules().policy}}, 1);
  for (const char* result : {"granted", "refused"}) {
    const auto found = admissions.find(result);
    text.add("fargpu_admission_total", "counter", "Requests for sessions.", {{"Hostname", host}, {"result", result}},
             found == admissions.end() ? 0 : static_cast<double>(found->second));
  }
  text.add("fargpu_worker_restarts_total", "counter", "Workers that ended by a fault.", {{"Hostname", host}},
           static_cast<double>(workers_.faults()));
  const auto facts = workers_.facts();
  const auto uuid_of = [&](unsigned place) {
    std::string uuid = "GPU";
    unsigned i = 0;
    for (const auto byte : facts->getDevices()[place].getUuid()) {
      if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
      uuid += fmt::format("{:02x}", byte);
      ++i;
    }
    return uuid;
  };
  if (facts) {
    for (unsigned place = 0; place < facts->getDevices().size(); ++place) {
      std::uint64_t used = 0;
      for (const Worker& worker : workers_.all())
        if (worker.state == Worker::State::session) used += worker.used_bytes(place);
      const MetricsText::Labels labels{{"Hostname", host}, {"gpu", std::to_string(place)}, {"UUID", uuid_of(place)}};
      text.add("fargpu_device_memory_bytes", "gauge", "Memory that the device has.", labels,
               static_cast<double>(facts->getDevices()[place].getMemoryBytes()));
      text.add("fargpu_device_memory_used_bytes", "gauge", "Memory that sessions hold.", labels, static_cast<double>(used));
    }
  }
  std::size_t sessions = 0;
  double busy_all = 0, waited_all = 0;
  const bool by_session = workers_.sessions() <= by_session_max;
  for (const Worker& worker : workers_.all()) {
    if (worker.state != Worker::State::session) continue;
    ++sessions;
    const Lease& lease = worker.lease->lease();
    waited_all += static_cast<double>(worker.waited_ns) / 1e9;
    for (const std::uint64_t busy : worker.busy_ns) busy_all += static_cast<double>(busy) / 1e9;
    if (!by_session || !facts) continue;
    const MetricsText::Labels labels{
        {"Hostname", host}, {"session", std::to_string(worker.session)}, {"lease", std::to_string(lease.id)}, {"tenant", lease.tenant}};
    for (std::size_t i = 0; i < lease.devices.size(); ++i) {
      MetricsText::Labels on = labels;
      on.emplace_back("gpu", std::to_string(lease.devices[i]));
      on.emplace_back("UUID", uuid_of(lease.devices[i]));
      text.add("fargpu_session_memory_bytes", "gauge", "Device memory that a session holds.", on,
               static_cast<double>(worker.used_bytes(lease.devices[i])));
      text.add("fargpu_session_memory_limit_bytes", "gauge", "Device memory that its lease may hold; 0 is no limit of its own.", on,
               static_cast<double>(lease.memory_bytes));
      text.add("fargpu_session_compute_seconds_total", "counter", "Seconds for which the device had work of the session.", on,
               i < worker.busy_ns.size() ? static_cast<double>(worker.busy_ns[i]) / 1e9 : 0);
    }
    if (const auto view = workers_.scheduling().view(worker.session)) {
      text.add("fargpu_session_compute_share_ratio", "gauge", "Part of a device that its lease may use at most, under the policy fixed.",
               labels, view->share.percent / 100.0);
      text.add("fargpu_session_turns_total", "counter", "Turns of its lease.", labels, static_cast<double>(view->turns));
    }
    TenantAccount& account = *lease.account;
    text.add("fargpu_session_network_bytes_total", "counter", "Bytes that a session has sent and received over the network.", labels,
             static_cast<double>(account.slot(worker.lease->slot()).moved));
    if (account.bandwidth() != TenantAccount::no_limit)
      text.add("fargpu_session_network_limit_bytes_per_second", "gauge", "What the sessions of its lease may move together.", labels,
               static_cast<double>(account.bandwidth()));
    MetricsText::Labels turn = labels;
    turn.emplace_back("reason", "turn");
    text.add("fargpu_throttle_seconds_total", "counter", "Seconds for which a session had work that had to wait.", turn,
             static_cast<double>(worker.waited_ns) / 1e9);
  }
  text.add("fargpu_session_active", "gauge", "Sessions that run.", {{"Hostname", host}}, static_cast<double>(sessions));
  if (!by_session) {
    text.add("fargpu_session_compute_seconds_total", "counter", "Seconds for which devices had work of sessions that run.",
             {{"Hostname", host}}, busy_all);
    text.add("fargpu_throttle_seconds_total", "counter", "Seconds for which sessions had work that had to wait.",
             {{"Hostname", host}, {"reason", "turn"}}, waited_all);
  }
  return text.text();
}

}  // namespace fargpu::server
