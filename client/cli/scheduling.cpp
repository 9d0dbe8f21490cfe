// `fargpu policy`, `fargpu quota` and `fargpu pool`: how the devices of a host, or of a pool, are shared.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>

#include "administration.h"
#include "client/base/lease_options.h"
#include "client/connect/control_connection.h"
#include "commands.h"
#include "pool_facts.h"
#include "protocol/text.h"
#include "statuses.h"
#include "tenant_facts.h"

namespace fargpu::client::cli {
namespace {

void show_policy(wire::Status::Reader status) {
  std::cout << fmt::format("{}, turns of {} ms, grace {} ms\n", printable(status.getPolicy().cStr()),
                           status.getQuantumMs(), status.getGraceMs());
}

// What a session's lease has now; of another tenant's only that it was changed is known.
void show_share(wire::Status::Reader status, std::uint64_t number) {
  for (const auto session : status.getSessions()) {
    if (session.getId() != number) continue;
    for (const auto lease : status.getLeases()) {
      if (lease.getId() != session.getLease()) continue;
      std::cout << fmt::format(
          "lease {} of session {}: at most {}% of each device (under the policy fixed), weight {} (under fair); the "
          "policy is {}\n",
          lease.getId(), number, lease.getSharePercent(), lease.getWeight(), printable(status.getPolicy().cStr()));
      return;
    }
  }
  std::cout << fmt::format("the lease of session {} is changed\n", number);
}

std::string of_limit(const std::string& used, bool limited, const std::string& limit) {
  return used + (limited ? " of " + limit : "");
}

nlohmann::ordered_json describe_tenants(const ControlConnection& broker, wire::Status::Reader status) {
  using Json = nlohmann::ordered_json;
  Json host{{"host", broker.name()}, {"tenants", Json::array()}};
  for (const auto tenant : status.getTenants()) host["tenants"].push_back(describe_tenant(tenant));
  if (Json pool = describe_pool(status, {}); !pool.is_null())
    for (const char* const key : {"name", "trouble", "age_seconds", "all_hosts", "away", "tenants"})
      host["pool"][key] = pool[key];
  return host;
}

void print_tenants(const nlohmann::ordered_json& host) {
  std::cout << host["host"].get<std::string>() << "\n";
  if (host.contains("error")) {
    std::cout << "  ! " << host["error"].get<std::string>() << "\n";
    return;
  }
  if (host["tenants"].empty()) {
    std::cout << "  no tenant here is yours\n";
    return;
  }
  std::cout << fmt::format("  {:<20} {:>22} {:>14} {:>12} {:>7} {:>8} {:>7}  {}\n", "tenant", "memory", "compute",
                           "sessions", "leases", "waiting", "weight", "priority up to");
  for (const auto& tenant : host["tenants"]) {
    const auto number = [&](const char* key) { return tenant[key].get<std::uint64_t>(); };
    const auto memory_limit = number("memory_limit_bytes"), compute_limit = number("compute_limit_percent");
    const auto sessions_limit = number("sessions_limit");
    std::cout << fmt::format(
        "  {:<20.20} {:>22} {:>14} {:>12} {:>7} {:>8} {:>7}  {}\n", tenant["name"].get<std::string>(),
        of_limit(memory_text(number("memory_bytes")), memory_limit != 0, memory_text(memory_limit)),
        of_limit(fmt::format("{}%", number("compute_percent")), compute_limit != 0, fmt::format("{}%", compute_limit)),
        of_limit(std::to_string(number("sessions")), sessions_limit != 0, std::to_string(sessions_limit)),
        number("leases"), number("waiting"), number("weight"), tenant["priority"].get<std::string>());
  }
}

// Of the whole pool: only its leases are counted, and what they keep.
void print_pool(const nlohmann::ordered_json& pool) {
  std::cout << fmt::format("pool {}, all hosts together\n", pool["name"].get<std::string>()) << pool_trouble(pool);
  if (pool["tenants"].empty()) {
    std::cout << "  no limits, and no leases\n";
    return;
  }
  std::cout << fmt::format("  {:<20} {:>22} {:>14} {:>12} {:>8} {:>7}\n", "tenant", "memory", "compute", "leases",
                           "waiting", "weight");
  for (const auto& tenant : pool["tenants"]) {
    const auto number = [&](const char* key) { return tenant[key].get<std::uint64_t>(); };
    const auto memory = number("memory_limit_bytes"), compute = number("compute_limit_percent"),
               leases = number("leases_limit");
    std::cout << fmt::format(
        "  {:<20.20} {:>22} {:>14} {:>12} {:>8} {:>7}\n", tenant["name"].get<std::string>(),
        of_limit(memory_text(number("memory_bytes")), memory != 0, memory_text(memory)),
        of_limit(fmt::format("{}%", number("compute_percent")), compute != 0, fmt::format("{}%", compute)),
        of_limit(std::to_string(number("leases")), leases != 0, std::to_string(leases)), number("waiting"),
        number("weight"));
  }
}

}  // namespace

int policy(const PolicyOptions& options) {
  if (!options.policy.empty())
    return administer(
        options.host, [&](wire::AdministrationRequest::Builder request) { request.setPolicy(options.policy); },
        show_policy);
  ControlConnection broker(one_host(options.host), ControlConnection::For::host);
  broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [](wire::Control::Reader control) { show_policy(control.getStatus()); });
  return 0;
}

namespace {

int show_quotas(const QuotaOptions& options) {
  const auto hosts = statuses(pool_hosts(options.host), describe_tenants);
  if (options.output == "json")
    std::cout << nlohmann::ordered_json(hosts).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  else
    for (const auto& host : hosts) print_tenants(host);
  if (options.output != "json")
    for (const auto* const pool : pools_of(hosts)) print_pool(*pool);
  return exit_code(hosts);
}

// By the host that is asked or, as hosts may name others, by what it has of the pool.
bool is_known(const std::string& tenant, wire::Status::Reader status, const nlohmann::ordered_json& pool) {
  for (const auto one : status.getTenants())
    if (tenant == one.getName().cStr()) return true;
  return std::any_of(pool["tenants"].begin(), pool["tenants"].end(), [&](const auto& one) {
    return one["name"] == tenant &&
           one["leases"].template get<std::uint64_t>() + one["waiting"].template get<std::uint64_t>() > 0;
  });
}

}  // namespace

int quota(const QuotaOptions& options) {
  if (options.session == 0 && (options.percent != 0 || options.weight != 0))
    throw std::runtime_error("say whose lease is to change: any session of it, as `fargpu ls` numbers it");
  if (options.session == 0) return show_quotas(options);
  if (options.percent == 0 && options.weight == 0)
    throw std::runtime_error("say what of it is to change: --percent or --weight");
  return administer(
      options.host,
      [&](wire::AdministrationRequest::Builder request) {
        auto share = request.initShare();
        share.setSession(options.session);
        share.setComputePercent(options.percent);
        share.setWeight(options.weight);
      },
      [&](wire::Status::Reader status) { show_share(status, options.session); });
}

int set_pool_tenant(const PoolTenantOptions& options) {
  const bool limits = !options.memory.empty() || !options.compute.empty() || options.leases || options.weight != 0;
  if (limits && options.forget)
    throw std::runtime_error(
        "--forget drops all limits of the tenant; leave out --mem, --compute, --leases and "
        "--weight, or --forget");
  if (!limits && !options.forget)
    throw std::runtime_error(
        "say what the tenant may have of the pool: --mem, --compute, --leases or --weight; or --forget");
  if (options.leases && *options.leases == 0)
    throw std::runtime_error("--leases is 0; give a number of leases from 1 on, or leave it out for no limit");
  const auto memory = options.memory.empty() ? std::uint64_t{0} : parse_memory(options.memory);
  if (!memory) throw std::runtime_error("--mem is '" + options.memory + "'; " + memory_wanted);
  std::string percent = options.compute;
  if (percent.ends_with('%')) percent.pop_back();
  std::uint32_t compute = 0;
  const auto [end, failed] = std::from_chars(percent.data(), percent.data() + percent.size(), compute);
  if (!options.compute.empty() && (failed != std::errc{} || end != percent.data() + percent.size() || compute == 0))
    throw std::runtime_error("--compute is '" + options.compute +
                             "'; give percent of all GPUs together, for example 400%");
  return administer(
      options.host,
      [&](wire::AdministrationRequest::Builder request) {
        auto tenant = request.initPoolTenant();
        tenant.setName(options.tenant);
        tenant.setMemoryBytes(*memory);
        tenant.setComputePercent(compute);
        tenant.setLeases(options.leases.value_or(0));
        tenant.setWeight(options.weight);
        tenant.setForget(options.forget);
      },
      [&](wire::Status::Reader status) {
        const auto pool = describe_pool(status, {});
        if (pool.is_null()) return;
        print_pool(pool);
        if (!options.forget && !is_known(options.tenant, status, pool))
          std::cerr << fmt::format(
              "fargpu: warning: the settings of {} name no tenant '{}'; is it the right name? Limits are set all the "
              "same, and `fargpu pool set {} --forget` drops them\n",
              address_text(one_host(options.host)), options.tenant, options.tenant);
      });
}

}  // namespace fargpu::client::cli
