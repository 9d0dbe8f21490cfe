#include "settings_checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/limits.h"
#include "protocol/rdma/devices.h"
#include "protocol/rdma/networks.h"
#include "server/pool/records.h"
#include "server/scheduler/policy.h"

namespace fargpu::server {
namespace {

constexpr double oversubscription_max = 16;

bool is_number(std::string_view text, std::uint16_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number != 0;
}

bool is_loopback(std::string_view host) { return host == "localhost" || host.starts_with("127.") || host == "[::1]"; }

void check_registry(const Settings& settings) {
  std::set<std::string> schemes;
  std::stringstream items(settings.pool_registry);
  for (std::string item; std::getline(items, item, ',');) {
    const auto complain = [&](const std::string& why) {
      throw SettingsError("pool_registry is '" + settings.pool_registry + "': '" + item + "' " + why);
    };
    const std::size_t behind = item.find("://");
    const std::string scheme = behind == std::string::npos ? "" : item.substr(0, behind);
    if (scheme != "https" && scheme != "http") complain("has no https:// in front; write https://host:2379");
    const std::string address = item.substr(behind + 3);
    const std::size_t colon = address.rfind(':');
    std::uint16_t port = 0;
    if (colon == std::string::npos || colon == 0 || !is_number(std::string_view(address).substr(colon + 1), port) ||
        address.find_first_of(" /@") != std::string::npos)
      complain("is not " + scheme + "://host:port; etcd's port for clients is 2379");
    if (scheme == "http" && !settings.insecure && !is_loopback(address.substr(0, colon)))
      complain(
          "is another machine, and http:// is neither encrypted nor authenticated: a machine that reaches it can give "
          "the pool's GPUs away; write https://, or accept the risk with insecure");
    schemes.insert(scheme);
  }
  if (schemes.empty())
    throw SettingsError("pool is '" + settings.pool +
                        "', and pool_registry is empty; give the addresses of the pool's etcd, such as "
                        "https://etcd1:2379,https://etcd2:2379,https://etcd3:2379");
  if (schemes.size() > 1)
    throw SettingsError("pool_registry is '" + settings.pool_registry +
                        "', of which some speak TLS and some do not; write https:// for all of them");
  const bool plain = schemes.contains("http");
  for (const auto& [name, file] :
       {std::pair("pool_ca", settings.pool_ca), std::pair("pool_certificate", settings.pool_certificate),
        std::pair("pool_key", settings.pool_key)}) {
    if (file.empty()) continue;
    if (plain)
      throw SettingsError(std::string(name) + " is set, and pool_registry is '" + settings.pool_registry +
                          "', where no TLS is spoken; write https://");
    if (!std::ifstream(file))
      throw SettingsError(std::string(name) + " is '" + file + "', which cannot be read (" + std::strerror(errno) +
                          ")");
  }
  if (!plain && settings.pool_ca.empty())
    throw SettingsError("pool_registry is '" + settings.pool_registry +
                        "', and pool_ca is empty; name the certificate of the authority that signs etcd's");
  if (settings.pool_certificate.empty() != settings.pool_key.empty())
    throw SettingsError("pool_certificate and pool_key go together; give both or none");
}

// The first at which clients are heard; the usual one where there is none.
std::string port_of(const std::string& listen) {
  for (const ListenAddress& address : parse_listen(listen))
    if (address.socket.empty() && address.port != 0) return std::to_string(address.port);
  return "8470";
}

void require_one_of(const std::string& name, const std::string& value, const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) != choices.end()) return;
  const std::vector<std::string> first(choices.begin(), choices.end() - 1);
  throw SettingsError(fmt::format("{} is '{}'; use {} or {}", name, value, fmt::join(first, ", "), choices.back()));
}

void check_pool(const Settings& settings) {
  require_one_of("pool_outage", settings.pool_outage, {"refuse", "local"});
  if (settings.pool.empty()) {
    if (!settings.pool_registry.empty())
      throw SettingsError("pool_registry is set, and pool is not; give the pool a name, the same at all its hosts");
    return;
  }
  const std::string wanted = "; a name has up to 64 characters, without spaces and slashes";
  if (!pool::is_name(settings.pool)) throw SettingsError("pool is '" + settings.pool + "'" + wanted);
  if (!pool::is_name(settings.name_in_pool()))
    throw SettingsError("pool_host is '" + settings.name_in_pool() + "'" + wanted);
  check_registry(settings);
  if (settings.pool_address.empty()) return;
  std::string address = settings.pool_address;
  for (const char* const scheme : {"tls://", "tcp://", "rdma://"})
    if (address.starts_with(scheme)) address.erase(0, std::strlen(scheme));
  // Of an IPv6 address, in brackets, the colons are none before a port.
  const std::size_t colon = address.ends_with(']') ? std::string::npos : address.rfind(':');
  std::uint16_t port = 0;
  if (address.find_first_of(" ,/") != std::string::npos || colon == 0 || address.empty() || address.size() > 256)
    throw SettingsError("pool_address is '" + settings.pool_address +
                        "'; give host:port as clients write it, such as tls://gpu1.example.org:8470");
  if (colon == std::string::npos || !is_number(std::string_view(address).substr(colon + 1), port))
    throw SettingsError("pool_address is '" + settings.pool_address +
                        "', which names no port; HOST:PORT is needed, such as " +
                        settings.pool_address.substr(0, settings.pool_address.size() - address.size()) +
                        address.substr(0, colon) + ":" + port_of(settings.listen));
  if (!parse_listen(address, "pool_address").front().socket.empty())
    throw SettingsError("pool_address is '" + settings.pool_address + "', a socket of this machine; give host:port");
}

}  // namespace

void check_settings(const Settings& settings) {
  require_one_of("log_level", settings.log_level, {"error", "warn", "info", "debug"});
  require_one_of("log_format", settings.log_format, {"text", "json"});
  const auto require = [](const char* name, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    if (value < least || value > most) {
      throw SettingsError(std::string(name) + " is " + std::to_string(value) + "; give a number from " +
                          std::to_string(least) + " to " + std::to_string(most));
    }
  };
  require("sessions_max", settings.sessions_max, 1, 100'000);
  require("warm_workers", settings.warm_workers, 0, 1000);
  require("spin_us", settings.spin_us, 0, 1'000'000);
  require("launch_threads", settings.launch_threads, 0, 64);
  require("handshake_seconds", settings.handshake_seconds, 1, 3600);
  require("callers_per_address_max", settings.callers_per_address_max, 1, 100'000);
  require("refusals_per_address_max", settings.refusals_per_address_max, 1, 1'000'000);
  require("start_seconds", settings.start_seconds, 1, static_cast<std::uint64_t>(limits::worker_start_max.count()));
  require("silence_seconds", settings.silence_seconds, 1, 86'400);
  require("resume_seconds", settings.resume_seconds, 0, 86'400);
  require("drain_seconds", settings.drain_seconds, 0, 86'400);
  require("quantum_ms", settings.quantum_ms, 1, 60'000);
  require("grace_ms", settings.grace_ms, 0, 60'000);
  require("kernel_seconds_max", settings.kernel_seconds_max, 0, 86'400);
  require("evict_quantum_seconds", settings.evict_quantum_seconds, 0, 86'400);
  require("evict_idle_seconds", settings.evict_idle_seconds, 0, 86'400);
  if (const double factor = settings.oversubscription(); !(factor >= 1 && factor <= oversubscription_max))
    throw SettingsError("memory_oversubscription is '" + settings.memory_oversubscription +
                        "'; give a number from 1 to 16, for example 1.5");
  else if (factor > 1 && settings.evicted_bytes_max == 0 && settings.evicted_disk_bytes_max == 0)
    throw SettingsError("memory_oversubscription is " + settings.memory_oversubscription +
                        ", but evicted_bytes_max and evicted_disk_bytes_max are 0: what leases hold beyond a device "
                        "needs memory of this host, or its disk");
  if (settings.evicted_folder.empty() != (settings.evicted_disk_bytes_max == 0))
    throw SettingsError("evicted_folder and evicted_disk_bytes_max go together: set both, or none of them");
  require_one_of("scrub", settings.scrub, {"tenants", "always", "never"});
  require_one_of("policy", settings.policy, scheduler::policies());
  rdma::Networks networks;
  if (std::string error; !rdma::Networks::parse(settings.rdma_networks, networks, error))
    throw SettingsError("rdma_networks is '" + settings.rdma_networks + "': " + error);
  if (std::string error; !rdma::Networks::parse(settings.peers, networks, error))
    throw SettingsError("peers is '" + settings.peers + "': " + error);
  auto transports = rdma::Transports::cards;
  if (!rdma::parse_transports(settings.rdma_transports, transports))
    throw SettingsError("rdma_transports is '" + settings.rdma_transports + "'; use cards, tcp or memory");
  if (transports != rdma::Transports::cards && settings.sandbox)
    throw SettingsError(
        "rdma_transports is '" + settings.rdma_transports +
        "', which is for trials and which the sandbox of workers forbids; set sandbox to false for one");
  require_one_of("gpudirect", settings.gpudirect, {"auto", "on", "off"});
  parse_listen(settings.listen);
  if (!settings.metrics_listen.empty()) parse_listen(settings.metrics_listen, "metrics_listen");
  parse_devices(settings.devices);
  check_pool(settings);
}

}  // namespace fargpu::server
