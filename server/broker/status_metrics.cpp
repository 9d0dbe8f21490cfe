#include <fmt/format.h>

#include <algorithm>

#include "contents.h"
#include "metrics.h"
#include "process_memory.h"
#include "protocol/host_name.h"
#include "status.h"

namespace fargpu::server {
namespace {

const char* text_of(wire::Failure::Reason reason) {
  switch (reason) {
    case wire::Failure::Reason::NO_CAPACITY: return "no_capacity";
    case wire::Failure::Reason::DENIED: return "denied";
    case wire::Failure::Reason::BAD_REQUEST: return "bad_request";
    case wire::Failure::Reason::DRAINING: return "draining";
    default: return "host_error";
  }
}

constexpr wire::Failure::Reason reasons[] = {wire::Failure::Reason::NO_CAPACITY, wire::Failure::Reason::DENIED,
                                             wire::Failure::Reason::BAD_REQUEST, wire::Failure::Reason::DRAINING,
                                             wire::Failure::Reason::HOST_ERROR};

double seconds_of(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

std::string uuid_of(wire::HostFacts::Reader facts, unsigned place) {
  std::string uuid = "GPU";
  unsigned i = 0;
  for (const auto byte : facts.getDevices()[place].getUuid()) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    uuid += fmt::format("{:02x}", byte);
    ++i;
  }
  return uuid;
}

}  // namespace

void Admissions::waited(std::chrono::steady_clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  waited_seconds += seconds;
  ++waits[static_cast<std::size_t>(std::lower_bound(wait_bounds.begin(), wait_bounds.end(), seconds) -
                                   wait_bounds.begin())];
}

std::string HostStatus::metrics(const ServiceFacts& service) const {
  MetricsText text;
  const std::string host = host_name();
  add_host(text, host, service);
  add_devices(text, host);
  add_tenants(text, host);
  add_sessions(text, host);
  return text.text();
}

void HostStatus::add_host(MetricsText& text, const std::string& host, const ServiceFacts& service) const {
  const auto now = std::chrono::system_clock::now();
  const MetricsText::Labels of_host{{"Hostname", host}};
  text.add("fargpu_build_info", "gauge", "What runs here; always 1.", {{"Hostname", host}, {"version", FARGPU_VERSION}},
           1);
  text.add("fargpu_policy_info", "gauge", "How devices are shared; always 1.",
           {{"Hostname", host}, {"policy", workers_.scheduling().rules().policy}}, 1);
  text.add("fargpu_start_time_seconds", "gauge", "Unix time at which fargpud began.", of_host,
           static_cast<double>(std::chrono::system_clock::to_time_t(started_)));
  text.add("fargpu_draining", "gauge", "1 while no new sessions are taken, because the host is drained or shuts down.",
           of_host, service.state.serves(now) ? 0 : 1);
  text.add("fargpu_last_reload_successful", "gauge",
           "0 if the settings could not be read again when that was last asked for.", of_host,
           service.reloaded ? 1 : 0);
  for (const ExpiryWatch::Certificate& one : service.certificates)
    text.add("fargpu_certificate_expiry_timestamp_seconds", "gauge",
             "Unix time at which the certificate of this setting ends.", {{"Hostname", host}, {"setting", one.setting}},
             static_cast<double>(one.expires.time_since_epoch().count()));
  for (const site::TokenEntry& one : service.tokens)
    text.add("fargpu_token_expiry_timestamp_seconds", "gauge",
             "Unix time at which the token ends; of the 64 tokens that end next.",
             {{"Hostname", host}, {"token", one.name}, {"tenant", one.tenant}},
             static_cast<double>(one.expires->time_since_epoch().count()));

  if (service.pool) service.pool(text);
  const Admissions& admissions = service.admissions;
  const auto add_admissions = [&](const char* result, const char* reason, std::uint64_t count) {
    text.add("fargpu_admissions_total", "counter", "Requests for sessions, by result and, of refused ones, reason.",
             {{"Hostname", host}, {"result", result}, {"reason", reason}}, static_cast<double>(count));
  };
  add_admissions("granted", "", admissions.granted);
  for (const wire::Failure::Reason reason : reasons) {
    const auto found = admissions.refused.find(reason);
    add_admissions("refused", text_of(reason), found == admissions.refused.end() ? 0 : found->second);
  }
  text.add_histogram("fargpu_lease_wait_seconds", "Seconds from a request for a lease until it was granted.", of_host,
                     Admissions::wait_bounds, admissions.waits, admissions.waited_seconds);
  text.add("fargpu_worker_failures_total", "counter", "Workers that ended by a fault.", of_host,
           static_cast<double>(workers_.faults()));
  text.add("fargpu_links_refused_total", "counter",
           "Connections to other hosts that sessions wanted and `peers` does not allow.", of_host,
           static_cast<double>(workers_.dials().refused()));
  text.add("fargpu_evictions_total", "counter",
           "Times that device memory of a session, all of it or a part, went to the host's memory or disk.", of_host,
           static_cast<double>(workers_.evictions().evicted()));
  text.add("fargpu_returns_total", "counter", "Times that a session's device memory came back.", of_host,
           static_cast<double>(workers_.evictions().returned()));
  text.add("fargpu_evicted_host_bytes", "gauge", "Bytes of the host's memory that hold evicted device memory.", of_host,
           static_cast<double>(workers_.evictions().host_bytes()));
  text.add("fargpu_evicted_disk_bytes", "gauge", "Bytes of the host's disk that hold evicted device memory.", of_host,
           static_cast<double>(workers_.evictions().disk_bytes()));
  text.add("fargpu_workers_warm", "gauge", "Workers that are ready for a session.", of_host,
           static_cast<double>(std::count_if(workers_.all().begin(), workers_.all().end(), [](const Worker& worker) {
             return worker.state == Worker::State::ready;
           })));
  text.add("fargpu_sessions_max", "gauge", "Sessions that the host runs at once at most.", of_host,
           static_cast<double>(settings_.sessions_max));
}

void HostStatus::add_devices(MetricsText& text, const std::string& host) const {
  const auto facts = workers_.facts();
  if (!facts) return;
  for (unsigned place = 0; place < facts->getDevices().size(); ++place) {
    std::uint64_t used = 0;
    for (const Worker& worker : workers_.all())
      if (worker.state == Worker::State::session) used += worker.there_bytes(place);
    const MetricsText::Labels labels{
        {"Hostname", host}, {"gpu", std::to_string(place)}, {"UUID", uuid_of(*facts, place)}};
    text.add("fargpu_device_memory_bytes", "gauge", "Memory that the device has.", labels,
             static_cast<double>(facts->getDevices()[place].getMemoryBytes()));
    text.add("fargpu_device_memory_used_bytes", "gauge", "Memory that sessions hold there.", labels,
             static_cast<double>(used));
  }
}

void HostStatus::add_tenants(MetricsText& text, const std::string& host) const {
  for (const auto& [tenant_name, tenant] : leases_.tenants().all()) {
    const MetricsText::Labels labels{{"Hostname", host}, {"tenant", tenant_name}};
    const TenantUse use = leases_.use_of(tenant_name);
    const auto known = workers_.totals().find(tenant_name);
    const TenantTotals totals = known == workers_.totals().end() ? TenantTotals{} : known->second;
    std::uint64_t moved = totals.moved, sessions = 0, resuming = 0, evicted = 0, host_bytes = 0;
    for (const Worker& worker : workers_.all()) {
      if (worker.state != Worker::State::session || worker.lease->lease().tenant != tenant_name) continue;
      ++sessions;
      if (worker.resuming_since != 0) ++resuming;
      if (workers_.evictions().view(worker.session).away != 0) ++evicted;
      moved += worker.slot().moved;
      host_bytes += private_bytes(worker.process);
    }
    text.add("fargpu_sessions", "gauge", "Sessions that run.", labels, static_cast<double>(sessions));
    text.add("fargpu_sessions_resuming", "gauge", "Of these, those that wait for their client to come back.", labels,
             static_cast<double>(resuming));
    text.add("fargpu_sessions_evicted", "gauge", "Of these, those whose device memory is evicted.", labels,
             static_cast<double>(evicted));
    text.add("fargpu_sessions_host_bytes", "gauge",
             "Bytes of the host's memory that only the workers of these sessions have.", labels,
             static_cast<double>(host_bytes));
    text.add("fargpu_sessions_resumed_total", "counter", "Times that a client has come back.", labels,
             static_cast<double>(totals.resumed));
    text.add("fargpu_sessions_started_total", "counter", "Sessions that have begun.", labels,
             static_cast<double>(totals.started));
    for (const SessionEnd end : session_ends) {
      MetricsText::Labels by = labels;
      by.emplace_back("reason", server::text_of(end));
      text.add("fargpu_sessions_ended_total", "counter",
               "Sessions that have ended: by their client, stopped by the host, or by a fault of their worker.", by,
               static_cast<double>(totals.ended_by(end)));
    }
    text.add("fargpu_leases", "gauge", "Leases that are held.", labels, static_cast<double>(use.leases));
    text.add("fargpu_leases_waiting", "gauge", "Requests for leases that wait.", labels,
             static_cast<double>(std::count_if(leases_.waiting().begin(), leases_.waiting().end(),
                                               [&](const Waiter* waiter) { return waiter->tenant == tenant.name; })));
    text.add("fargpu_tenant_memory_bytes", "gauge",
             "Device memory that is kept for leases of the tenant, or used by them.", labels,
             static_cast<double>(use.memory_bytes));
    if (tenant.memory_bytes != 0)
      text.add("fargpu_tenant_memory_limit_bytes", "gauge",
               "Device memory that the tenant may have, if there is a limit.", labels,
               static_cast<double>(tenant.memory_bytes));
    text.add("fargpu_tenant_compute_ratio", "gauge",
             "Shares of devices that leases of the tenant have, 1 for each device.", labels,
             static_cast<double>(use.compute) / 10'000);
    if (tenant.compute_percent != 0)
      text.add("fargpu_tenant_compute_limit_ratio", "gauge",
               "Shares of devices that the tenant may have, if there is a limit.", labels,
               tenant.compute_percent / 100.0);
    if (tenant.sessions_max != 0)
      text.add("fargpu_tenant_sessions_limit", "gauge",
               "Sessions that the tenant may have at once, if there is a limit.", labels,
               static_cast<double>(tenant.sessions_max));
    text.add("fargpu_tenant_compute_seconds_total", "counter",
             "Seconds for which devices had work of the tenant's sessions.", labels, seconds_of(totals.busy_ns));
    text.add("fargpu_tenant_throttled_seconds_total", "counter",
             "Seconds for which the tenant's sessions had work and no turn.", labels, seconds_of(totals.waited_ns));
    text.add("fargpu_tenant_contents_bytes", "gauge", "Contents of memory that the host keeps of the tenant.", labels,
             static_cast<double>(kept_contents(content_folder(settings_, tenant_name)).bytes));
    text.add("fargpu_tenant_contents_known_bytes_total", "counter",
             "Bytes that the tenant's sessions did not send, because the host had them.", labels,
             static_cast<double>(totals.known_bytes));
    text.add("fargpu_tenant_contents_kept_bytes_total", "counter",
             "Bytes that the tenant's sessions have sent and the host has kept.", labels,
             static_cast<double>(totals.kept_bytes));
    text.add("fargpu_tenant_network_bytes_total", "counter", "Bytes that the tenant's sessions have sent and received.",
             labels, static_cast<double>(moved));
  }
}

// Series by session cost the monitoring system storage; where there are many, only those by tenant are told.
void HostStatus::add_sessions(MetricsText& text, const std::string& host) const {
  constexpr std::size_t by_session_max = 64;
  const auto facts = workers_.facts();
  if (!facts || workers_.sessions() > by_session_max) return;
  for (const Worker& worker : workers_.all()) {
    if (worker.state != Worker::State::session) continue;
    const Lease& lease = worker.lease->lease();
    const MetricsText::Labels labels{{"Hostname", host},
                                     {"session", std::to_string(worker.session)},
                                     {"lease", std::to_string(lease.id)},
                                     {"tenant", lease.tenant}};
    for (std::size_t i = 0; i < lease.devices.size(); ++i) {
      MetricsText::Labels on = labels;
      on.emplace_back("gpu", std::to_string(lease.devices[i]));
      on.emplace_back("UUID", uuid_of(*facts, lease.devices[i]));
      text.add("fargpu_session_memory_bytes", "gauge", "Device memory that a session holds.", on,
               static_cast<double>(worker.used_bytes(lease.devices[i])));
      if (lease.memory_bytes != 0)
        text.add("fargpu_session_memory_limit_bytes", "gauge",
                 "Device memory that its lease may hold, if it has a limit of its own.", on,
                 static_cast<double>(lease.memory_bytes));
      text.add("fargpu_session_compute_seconds_total", "counter",
               "Seconds for which the device had work of the session.", on,
               i < worker.busy_ns.size() ? seconds_of(worker.busy_ns[i]) : 0);
    }
    if (const auto view = workers_.scheduling().view(worker.session)) {
      text.add("fargpu_session_compute_share_ratio", "gauge",
               "Part of a device that its lease may use at most, under the policy fixed.", labels,
               view->share.percent / 100.0);
      text.add("fargpu_session_turns_total", "counter", "Turns of its lease.", labels,
               static_cast<double>(view->turns));
    }
    TenantAccount& account = *lease.account;
    text.add("fargpu_session_network_bytes_total", "counter",
             "Bytes that a session has sent and received over the network.", labels,
             static_cast<double>(worker.slot().moved));
    if (account.bandwidth() != TenantAccount::no_limit)
      text.add("fargpu_session_network_limit_bytes_per_second", "gauge",
               "What the sessions of its lease may move together.", labels, static_cast<double>(account.bandwidth()));
    text.add("fargpu_session_throttled_seconds_total", "counter", "Seconds for which a session had work and no turn.",
             labels, seconds_of(worker.waited_ns));
  }
}

}  // namespace fargpu::server
