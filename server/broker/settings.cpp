#include "settings.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <variant>

#include "protocol/host_name.h"
#include "protocol/limits.h"
#include "protocol/own_executable.h"
#include "protocol/rdma/devices.h"
#include "protocol/rdma/networks.h"
#include "protocol/text.h"
#include "server/pool/records.h"
#include "server/scheduler/policy.h"
#include "settings_file.h"

namespace fargpu::server {
namespace {

constexpr double oversubscription_max = 16;

// Below the prefix that fargpud lies in, which need not be the one that the build was configured with; packages have
// /usr and /etc.
std::string default_file() {
  const std::filesystem::path folder = own_executable().parent_path();
  std::filesystem::path etc = FARGPU_SYSCONFDIR;
  if (folder == "/usr/bin") etc = "/etc";
  else if (folder.filename() == "bin") etc = folder.parent_path() / "etc";
  return etc / "fargpu" / "fargpud.toml";
}

/// One setting: its name in the file (the flag is --name with dashes, the variable FARGPUD_NAME), where it goes, its
/// default and what it means.
struct Entry {
  const char* name;
  std::variant<std::string Settings::*, std::uint64_t Settings::*, bool Settings::*> field;
  std::string standard;
  const char* help;
  /// What a text names: files in the settings file count from its folder. A library may also be one that the loader
  /// finds, without a slash.
  enum class Names { nothing, path, library } names = Names::nothing;

  /// A number that may be given with a unit, such as 4GiB.
  bool in_bytes() const { return std::string_view(name).ends_with("_bytes_max"); }
};

std::string default_image_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::string(cache) + "/fargpu/images";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/fargpu/images";
  return "";
}

// Below the one that systemd makes for the service, of which the rest is for clients.
std::string default_runtime_folder() {
  const char* const made = std::getenv("RUNTIME_DIRECTORY");
  const std::string first = made ? std::string(made).substr(0, std::string_view(made).find(':')) : "";
  return first.empty() ? "" : first + "/sessions";
}

// fargpud and fargpu-worker lie side by side in the build tree, and apart once installed; an installation may have been
// moved.
std::string default_worker() {
  std::error_code error;
  const std::filesystem::path folder = own_executable().parent_path();
  for (const std::filesystem::path& path :
       {folder / "fargpu-worker", folder.parent_path() / FARGPU_LIBEXECDIR_NAME / "fargpu" / "fargpu-worker"})
    if (std::filesystem::exists(path, error)) return path;
  return FARGPU_LIBEXECDIR "/fargpu/fargpu-worker";
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all{
      {"listen", &Settings::listen, "127.0.0.1:8470",
       "Addresses to listen on, [tls://|tcp://]host:port[,...]. An address without a prefix has TLS, except on the "
       "loopback. Port 0 takes any free one. unix:/path is a Unix socket for clients on this machine"},
      {"insecure", &Settings::insecure, "false",
       "Serve other machines without TLS at addresses without tls://. Every machine that reaches the port can then use "
       "the GPUs and read all traffic"},
      {"tls_certificate", &Settings::tls_certificate, "",
       "This host's certificate with its chain, PEM; `fargpu pki` makes one", Entry::Names::path},
      {"tls_key", &Settings::tls_key, "", "Its key, PEM", Entry::Names::path},
      {"tls_client_ca", &Settings::tls_client_ca, "",
       "Certificate of the authority that signs certificates of clients, PEM", Entry::Names::path},
      {"psk_file", &Settings::psk_file, "",
       "Keys shared with tenants, a line TENANT:HEXDIGITS each; they replace certificates", Entry::Names::path},
      {"token_file", &Settings::token_file, "",
       "Tokens of clients; `fargpu token` makes them. Changes take effect at once", Entry::Names::path},
      {"shared_memory", &Settings::shared_memory, "true",
       "Let clients on this machine that come by TCP share memory with their workers instead"},
      {"driver", &Settings::driver, "libcuda.so.1", "Driver library that workers load, by path or name",
       Entry::Names::library},
      {"nvml", &Settings::nvml, "libnvidia-ml.so.1",
       "NVML library of this host, for clocks, temperatures and utilisation; empty for none", Entry::Names::library},
      {"devices", &Settings::devices, "", "Devices to offer, by the driver's numbers, comma-separated (default: all)"},
      {"sessions_max", &Settings::sessions_max, "256", "Sessions at once"},
      {"warm_workers", &Settings::warm_workers, "1", "Workers kept ready, with the driver initialised"},
      {"warm_context", &Settings::warm_context, "true",
       "Have warm workers create the first device's context; costs its device memory each (about 515 MiB on an H200)"},
      {"image_folder", &Settings::image_folder, default_image_folder(),
       "Folder for GPU code by content; empty for none", Entry::Names::path},
      {"image_bytes_max", &Settings::image_bytes_max, "8589934592", "Bytes kept in that folder"},
      {"content_folder", &Settings::content_folder, "",
       "Folder for contents of memory that programs have sent, so that they need not send them again; may be on a "
       "tmpfs, to be kept in memory only. Empty: below image_folder, and none without that",
       Entry::Names::path},
      {"content_bytes_max", &Settings::content_bytes_max, "34359738368",
       "Bytes kept there of each tenant; those used longest ago go first, and a tenth of the disk stays free. 0: "
       "nothing is kept"},
      {"host_bytes_max", &Settings::host_bytes_max, "0",
       "Bytes of this host's memory that a session may take, for work that waits, GPU code and copies of pinned "
       "memory. 0 means half of the memory of the host"},
      {"driver_bytes_max", &Settings::driver_bytes_max, "4294967296",
       "Bytes of a device that the driver may take by itself for a session (its context, code, variables). If the "
       "driver takes more, and the session is beyond its limit then, the session ends. 0 for no limit"},
      {"evicted_bytes_max", &Settings::evicted_bytes_max, "0",
       "Bytes of this host's memory for the device memory of sessions that are evicted: where memory of a device is "
       "wanted that is not there, sessions that do not work make room, and come back at their next call. 0: none are, "
       "but to evicted_folder"},
      {"evicted_folder", &Settings::evicted_folder, "",
       "Folder on a fast disk for the device memory of sessions that are evicted, where evicted_bytes_max has no room "
       "for it; files in it have no names, and go with their sessions. Empty for none",
       Entry::Names::path},
      {"evicted_disk_bytes_max", &Settings::evicted_disk_bytes_max, "0", "Bytes that may be there"},
      {"evict_quantum_seconds", &Settings::evict_quantum_seconds, "5",
       "Seconds for which a session that works has its memory before it makes room for another one"},
      {"evict_idle_seconds", &Settings::evict_idle_seconds, "0",
       "Seconds without work after which a session is evicted though nobody wants the room. 0: it stays until then"},
      {"memory_oversubscription", &Settings::memory_oversubscription, "1",
       "How many times the memory of a device leases may have of it together, 1 to 16, for example 1.5. What they hold "
       "beyond the device is evicted in turns, so that evicted_bytes_max, or evicted_folder, must be set"},
      {"spin_us", &Settings::spin_us, "500",
       "Microseconds that a worker polls before it sleeps, while its client is active and processors are idle"},
      {"launch_threads", &Settings::launch_threads, "6",
       "Threads of a worker that give kernels to the driver while many arrive, at most three eighths of the "
       "processors. With 0, the thread that reads the calls does it"},
      {"handshake_seconds", &Settings::handshake_seconds, "10",
       "Seconds in which a client must say hello, and attach with its ticket"},
      {"callers_per_address_max", &Settings::callers_per_address_max, "512",
       "Connections without a session that one address may have open. A further one closes the one that has been "
       "silent longest"},
      {"refusals_per_address_max", &Settings::refusals_per_address_max, "1000",
       "Failed connections (refused, cut off, silent) in a minute that one address, or one user of this machine, may "
       "have. Its further connections are refused until the minute is over"},
      {"start_seconds", &Settings::start_seconds, "60",
       "Seconds that a worker may take to initialise the driver; at most 60"},
      {"silence_seconds", &Settings::silence_seconds, "30",
       "Seconds of silence after which a worker takes its connection for broken, and a client its own. A worker that "
       "does not run at all (stopped, or in a frozen cgroup) is killed this long and handshake_seconds later"},
      {"resume_seconds", &Settings::resume_seconds, "60",
       "Seconds for which a session waits for its client when their connection has broken, 5 at most if the connection "
       "was closed in order, as by the end of the client; 0: the session ends with its connection, as it does for "
       "clients that come by the loopback unless this is set. Tenants may have their own"},
      {"drain_seconds", &Settings::drain_seconds, "30",
       "On SIGTERM: seconds that running sessions may go on. Read again on SIGHUP"},
      {"policy", &Settings::policy, "free",
       "How sessions share a device: free (all at once), fair (turns, by weight), fixed (turns, at most each lease's "
       "percentage) or exclusive (turns, one lease after the other)"},
      {"quantum_ms", &Settings::quantum_ms, "10", "Milliseconds of a turn while other sessions wait"},
      {"grace_ms", &Settings::grace_ms, "50",
       "Milliseconds that work may go on after its turn before the next turn begins; longer than most kernels take"},
      {"kernel_seconds_max", &Settings::kernel_seconds_max, "0",
       "Seconds for which the GPU may complete nothing of a session before the session ends; 0 for no limit. Tenants "
       "may have their own"},
      {"scrub", &Settings::scrub, "tenants",
       "When memory that others may have used becomes zeros before a session sees it: tenants (where there are any), "
       "always or never"},
      {"metrics_listen", &Settings::metrics_listen, "",
       "Address at which Prometheus reads metrics, by HTTP at /metrics; empty for none"},
      {"sandbox", &Settings::sandbox, "true",
       "Restrict workers: they start no programs, trace no processes, and have no networks, mounts or new privileges"},
      {"peers", &Settings::peers, "none",
       "Networks of other GPU hosts that this one may connect to, for copies and waits between them: addresses such as "
       "10.1.0.0/16,fd00:1::/32, none or all. A program names the hosts, so name no network whose machines are not to "
       "be tried from here. With none, contents go through the program's process; a fargpud that listens on the "
       "loopback alone connects there in any case"},
      {"rdma_networks", &Settings::rdma_networks, rdma::Networks::usual,
       "Networks on which clients may use RDMA, which is not encrypted: addresses such as 10.1.0.0/16,fd00:1::/32, "
       "none or all. Machines that can listen there can read all calls and memory. Needs the plugin fargpu-ucx, and a "
       "card in an interface with an address in one of them"},
      {"rdma_transports", &Settings::rdma_transports, "cards",
       "What RDMA goes by: cards, or, to try it without, tcp or memory, by UCX itself. These two need sockets or "
       "shared memory that the sandbox forbids"},
      {"gpudirect", &Settings::gpudirect, "auto",
       "Whether cards read and write the GPU's memory, so that contents of memory do not pass through the host's: auto "
       "(where a trial at the session's first lane is not slower), on (however slow it is) or off"},
      {"pool", &Settings::pool, "",
       "Pool of hosts that this one belongs to, by name; its members find each other by pool_registry, and a client "
       "that names one of them is served by any. Empty: none"},
      {"pool_registry", &Settings::pool_registry, "",
       "Addresses of the pool's etcd, https://host:2379[,...]; http:// for one on this machine, or with insecure. "
       "Needs the plugin fargpu-etcd"},
      {"pool_ca", &Settings::pool_ca, "",
       "Certificate of the authority that signs etcd's certificates, PEM; needed with https://", Entry::Names::path},
      {"pool_certificate", &Settings::pool_certificate, "", "Certificate that this host shows to etcd, PEM",
       Entry::Names::path},
      {"pool_key", &Settings::pool_key, "", "Its key, PEM", Entry::Names::path},
      {"pool_host", &Settings::pool_host, "", "Name of this host in the pool. Empty: the machine's host name"},
      {"pool_address", &Settings::pool_address, "",
       "Where clients reach this host, as they write it in FARGPU_POOL. Empty: the host name and the first port of "
       "listen"},
      {"pool_outage", &Settings::pool_outage, "refuse",
       "New leases while the registry cannot be reached: refuse, or local, which gives them by this host's own limits "
       "alone"},
      {"pool_placer", &Settings::pool_placer, "true",
       "Let this host be the one that decides for the pool, if it comes to that. At least one member must"},
      {"worker_user", &Settings::worker_user, "",
       "User that workers run as, where fargpud runs as root (the installed service does not); empty: the user of "
       "fargpud. image_folder and MPS daemons must belong to it"},
      {"worker", &Settings::worker, default_worker(), "Path of fargpu-worker", Entry::Names::path},
      {"runtime_folder", &Settings::runtime_folder, default_runtime_folder(),
       "Folder, of this user alone, in which a fargpud leaves what the next one needs to take over its sessions: after "
       "its death, and after SIGUSR1, by which it ends for that. Each fargpud needs one of its own; at most 80 bytes "
       "of path. Empty: sessions go on without, and are in nobody's books",
       Entry::Names::path},
      {"log_level", &Settings::log_level, "info", "error, warn, info or debug"},
      {"log_format", &Settings::log_format, "text", "text or json"},
  };
  return all;
}

std::string flag_of(const Entry& entry) {
  std::string flag = std::string("--") + entry.name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// What a value is, in the help.
const char* kind_of(const Entry& entry) {
  const std::string_view name = entry.name;
  if (entry.in_bytes()) return "BYTES";
  if (std::holds_alternative<std::uint64_t Settings::*>(entry.field))
    return name.ends_with("_ms")               ? "MILLISECONDS"
           : name.ends_with("_us")             ? "MICROSECONDS"
           : name.find("seconds") != name.npos ? "SECONDS"
                                               : "COUNT";
  if (name.ends_with("folder")) return "FOLDER";
  if (entry.names != Entry::Names::nothing) return "FILE";
  if (name.ends_with("listen") || name == "pool_registry") return "ADDRESSES";
  if (name == "pool_address") return "ADDRESS";
  if (name.ends_with("networks")) return "NETWORKS";
  if (name.ends_with("user")) return "USER";
  return name == "devices" ? "NUMBERS" : "WORD";
}

std::string variable_of(const Entry& entry) {
  std::string variable = std::string("FARGPUD_") + entry.name;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  return variable;
}

// Not refused: Kubernetes gives variables of such names to a pod beside a service called fargpud.
std::vector<std::string> unknown_variables() {
  std::vector<std::string> unknown;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view name = std::string_view(*variable).substr(0, std::string_view(*variable).find('='));
    if (name.starts_with("FARGPUD_") && std::none_of(entries().begin(), entries().end(),
                                                     [&](const Entry& entry) { return name == variable_of(entry); }))
      unknown.emplace_back(name);
  }
  return unknown;
}

void store(Settings& settings, const Entry& entry, const std::string& value, const std::string& from) {
  const auto complain = [&](const std::string& wanted) {
    throw SettingsError(std::string(entry.name) + " is '" + value + "' (" + from + "); " + wanted);
  };
  if (const auto* text = std::get_if<std::string Settings::*>(&entry.field)) {
    settings.*(*text) = value;
  } else if (const auto* number = std::get_if<std::uint64_t Settings::*>(&entry.field)) {
    std::uint64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    const bool whole = error == std::errc{} && end == value.data() + value.size() && !value.empty();
    const auto bytes = entry.in_bytes() && !whole ? parse_bytes(value) : std::nullopt;
    if (!whole && !bytes)
      complain(entry.in_bytes() ? "an amount is wanted, for example 4GiB" : "a whole number is wanted");
    settings.*(*number) = bytes.value_or(parsed);
  } else {
    const bool yes = value == "true" || value == "1" || value == "yes";
    if (!yes && value != "false" && value != "0" && value != "no") complain("true or false is wanted");
    settings.*std::get<bool Settings::*>(entry.field) = yes;
  }
  settings.origins.push_back({entry.name, value, from});
}

std::string from_folder(const std::filesystem::path& folder, const Entry& entry, const std::string& value) {
  const bool a_path = entry.names == Entry::Names::path ||
                      (entry.names == Entry::Names::library && value.find('/') != std::string::npos);
  return a_path && !value.empty() ? (folder / value).lexically_normal().string() : value;
}

// A value of the file, as flags and variables have it.
std::string text_of(const std::string& file, const Entry& entry, const toml::node& node) {
  const auto complain = [&](const std::string& wanted) -> std::string {
    throw SettingsError(place_of(file, node) + ": " + entry.name + " is " + what_is(node) + "; " + wanted);
  };
  if (std::holds_alternative<std::uint64_t Settings::*>(entry.field)) {
    const auto* const value = node.as_integer();
    if (const auto* const amount = node.as_string(); entry.in_bytes()) {
      if (amount && parse_bytes(amount->get())) return amount->get();
      if (!value || value->get() < 0)
        complain(std::string("an amount is wanted, for example ") + entry.name + " = \"4GiB\"");
    }
    return value && value->get() >= 0
               ? std::to_string(value->get())
               : complain(std::string("a whole number is wanted, for example ") + entry.name + " = " + entry.standard);
  }
  if (std::holds_alternative<bool Settings::*>(entry.field)) {
    const auto* const value = node.as_boolean();
    return value ? (value->get() ? "true" : "false") : complain("true or false is wanted, without quotes");
  }
  const auto item = [&](const toml::node& one) -> std::string {
    if (const auto* value = one.as_string()) return value->get();
    if (const auto* value = one.as_integer(); value && entry.field == decltype(entry.field)(&Settings::devices))
      return std::to_string(value->get());
    if (entry.field == decltype(entry.field)(&Settings::memory_oversubscription) && one.is_number())
      return fmt::format("{}", *one.value<double>());
    return complain("a text in quotes is wanted, or a list of what `fargpud --help` separates by commas");
  };
  const auto* const list = node.as_array();
  if (!list)
    return from_folder(std::filesystem::absolute(file).parent_path(), entry,
                       item(node));  // wherever fargpud is started
  std::string joined;
  for (const auto& one : *list) joined += (joined.empty() ? "" : ",") + item(one);
  return joined;
}

// Every setting with what it means and its default, commented out.
std::string sample_file() {
  std::string text =
      "# Settings of fargpud. What is commented out has its default: the value shown, where the words do not say "
      "otherwise.\n";
  for (const Entry& entry : entries()) {
    const bool quoted = std::holds_alternative<std::string Settings::*>(entry.field);
    // What depends on the machine and the user is shown by an example.
    std::string value = entry.standard, note;
    if (entry.field == decltype(entry.field)(&Settings::image_folder)) {
      value = "/var/cache/fargpu/images";
      note = " Default: .cache/fargpu/images in the user's home";
    } else if (entry.field == decltype(entry.field)(&Settings::worker)) {
      value = "/usr/local/libexec/fargpu/fargpu-worker";
      note = " Default: the one that was installed with fargpud";
    } else if (entry.field == decltype(entry.field)(&Settings::runtime_folder)) {
      value = "/run/fargpu/sessions";
      note = " Default: this one for the installed service, else none";
    }
    text += std::string("\n# ") + entry.help + "." + note + (note.empty() ? "" : ".") + "\n# " + entry.name + " = " +
            (quoted ? "\"" + value + "\"" : value) + "\n";
  }
  text +=
      "\n# Tenants of this host and their limits, a table each. Without any table there is one tenant, default, "
      "without limits. SIGHUP reads the tables again.\n"
      "# [tenant.lab]\n"
      "# memory = \"40GiB\"           # on all devices together\n"
      "# compute = \"150%\"           # of all devices together, 100% for each\n"
      "# sessions = 16              # at once\n"
      "# host_memory = \"16GiB\"      # of this host's memory, that the sessions of one lease may take together\n"
      "# bandwidth = \"100MB\"        # a second, that the sessions of one lease may move over the network together\n"
      "# kernel_seconds_max = 60    # instead of the host's\n"
      "# resume_seconds = 10        # instead of the host's\n"
      "# mps = \"/run/mps-lab\"       # folder of the pipes of the MPS daemon of the tenant, whose programs then run "
      "on a device at the same time\n"
      "# sm_partitions = false      # whether each lease has multiprocessors of its own, by its percentage; needs mps\n"
      "# administrator = false      # whether the tenant is an administrator: it sees all sessions, and may use "
      "`fargpu end`, `drain`, `policy`, `quota`\n"
      "# weight = 200               # against other tenants, for all its leases that have work; 100 by default\n"
      "# devices = [0, 1]           # that it may use, by their places in `devices`; all by default\n"
      "# priority = \"normal\"        # the highest that it may ask for: best-effort, normal or latency-critical\n"
      "# certificates = [\"node1\"]   # common names of client certificates, besides its own name\n"
      "# users = [1000]             # users of this machine, by number, that connect by its Unix socket\n";
  return text;
}

// Names that there are not, of which one may be meant.
void check_names(const std::string& file, const toml::table& table) {
  std::vector<std::string> known{"tenant"};  // read apart, and again when they change
  for (const Entry& entry : entries()) known.emplace_back(entry.name);
  for (const auto& [key, value] : table) {
    const std::string written(key.str());
    if (std::find(known.begin(), known.end(), written) != known.end()) continue;
    const std::string what = place_of(file, key) + ": there is no setting '" + written + "'";
    if (const auto* const inner = value.as_table()) {
      if (nearest(written, known) == "tenant") {
        const std::string name =
            inner->empty() || !inner->begin()->second.is_table() ? "NAME" : printable(inner->begin()->first.str(), 64);
        throw SettingsError(what + "; did you mean [tenant." + name + "]?");
      }
      throw SettingsError(what + "; the only tables are [tenant.NAME]");
    }
    throw SettingsError(what + perhaps(written, known) + "; `fargpud --help` lists them all");
  }
}

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

void check(const Settings& settings) {
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

}  // namespace

std::string Settings::name_in_pool() const { return pool_host.empty() ? host_name() : pool_host; }

std::string settings_text(const Settings& settings) {
  std::string text;
  for (const Entry& entry : entries()) {
    std::string value;
    if (const auto* words = std::get_if<std::string Settings::*>(&entry.field))
      value = quoted(from_folder(std::filesystem::current_path(), entry, settings.*(*words)));
    else if (const auto* number = std::get_if<std::uint64_t Settings::*>(&entry.field))
      value = std::to_string(settings.*(*number));
    else value = settings.*std::get<bool Settings::*>(entry.field) ? "true" : "false";
    const auto origin = std::find_if(settings.origins.begin(), settings.origins.end(),
                                     [&](const auto& one) { return one.name == entry.name; });
    text += std::string(entry.name) + " = " + value + "   # " + printable(origin->from, 512) + "\n";
  }
  if (settings.file.empty()) return text;
  const toml::table table = read_toml(settings.file);
  const toml::node* const tenants = table.get("tenant");
  if (!tenants) return text;
  std::ostringstream words;
  words << "\n" << toml::toml_formatter(toml::table{{"tenant", *tenants->as_table()}}) << "\n";
  return text + words.str();
}

std::vector<std::string> changed_settings(const Settings& one, const Settings& other) {
  std::vector<std::string> names;
  for (const Entry& entry : entries())
    if (std::string_view(entry.name) != "drain_seconds" &&  // in use at once
        std::visit([&](const auto field) { return one.*field != other.*field; }, entry.field))
      names.emplace_back(entry.name);
  return names;
}

Command read_settings(int argc, char** argv, Settings& settings, int& exit_code) {
  settings.arguments.assign(argv, argv + argc);
  CLI::App app("fargpud lets other machines use the GPUs of this one.", "fargpud");
  app.set_version_flag("--version", "fargpud " FARGPU_VERSION);
  std::string file;
  bool show_config = false, only_check = false;
  app.add_option("--config", file,
                 std::string("Settings file, TOML (default: ") + default_file() + ", if there is one)")
      ->type_name("FILE");
  app.add_flag("--show-config", show_config, "Print every setting and where it came from, and end");
  app.add_flag("--check", only_check,
               "Find all that a start would, and end: settings, tenants, certificates, keys, tokens, addresses and the "
               "driver. 0 if all is in order, 2 if a setting is wrong, 1 if the driver does not work. The log warns of "
               "what ends within 30 days");
  app.add_flag_callback(
      "--sample-config",
      [] {
        std::cout << sample_file();
        throw CLI::Success();
      },
      "Print a settings file with every setting explained, and end");
  std::map<std::string, std::string> given;
  for (const Entry& entry : entries()) {
    const std::string help = std::string(entry.help) + " [" + (entry.standard.empty() ? "-" : entry.standard) + ", " +
                             variable_of(entry) + "]";
    if (std::holds_alternative<bool Settings::*>(entry.field)) {
      const std::string no = "--no-" + flag_of(entry).substr(2);
      app.add_flag_callback(
          flag_of(entry), [&given, &entry] { given[entry.name] = "true"; }, help + "; " + no + " for not");
      app.add_flag_callback(no, [&given, &entry] { given[entry.name] = "false"; })->group("");  // told with the other
    } else {
      app.add_option_function<std::string>(
             flag_of(entry), [&given, &entry](const std::string& value) { given[entry.name] = value; }, help)
          ->type_name(kind_of(entry));
    }
  }
  app.footer(
      "Example:\n"
      "  fargpud --listen tls://0.0.0.0:8470 --psk-file shared.key\n"
      "Each setting can also be given by its environment variable or in the settings file, under its name with "
      "underscores.\n"
      "Flags count more than variables, variables more than the file. Bytes may have a unit, such as 4GiB.\n"
      "Paths in the file count from its folder, others from the one in which fargpud is started.\n"
      "Exit codes:\n"
      "  0   it was asked to end\n"
      "  1   it cannot go on, as without a driver, or while another process has its address\n"
      "  2   a setting is wrong");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      exit_code = app.exit(error);
      return Command::done;
    }
    const std::vector<std::string> unknown = app.remaining();
    if (unknown.empty()) throw SettingsError(std::string(error.what()) + "; see `fargpud --help`");
    std::vector<std::string> names;
    for (const CLI::Option* const option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    throw SettingsError("there is no option '" + unknown[0] + "'" +
                        perhaps(unknown[0].substr(0, unknown[0].find('=')), names) + "; see `fargpud --help`");
  }
  settings.unknown_variables = unknown_variables();

  toml::table table;
  const bool wanted = !file.empty();
  if (!wanted) file = default_file();
  if (wanted || std::filesystem::exists(file)) {
    if (!std::filesystem::exists(file)) throw SettingsError(file + ": there is no such file; name one with --config");
    if (std::filesystem::is_directory(file)) throw SettingsError(file + " is a folder; name a file with --config");
    table = read_toml(file);
    settings.file = file;
    check_names(file, table);
  }
  for (const Entry& entry : entries()) {
    const char* const variable = std::getenv(variable_of(entry).c_str());
    if (const auto flag = given.find(entry.name); flag != given.end())
      store(settings, entry, flag->second, "flag " + flag_of(entry));
    else if (variable) store(settings, entry, variable, "environment variable " + variable_of(entry));
    else if (const auto* node = table.get(entry.name))
      store(settings, entry, text_of(file, entry, *node), "file " + file);
    else store(settings, entry, entry.standard, "default");
  }
  check(settings);
  return show_config ? Command::show_config : only_check ? Command::check : Command::serve;
}

std::vector<ListenAddress> parse_listen(const std::string& text, const std::string& setting) {
  std::vector<ListenAddress> addresses;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    ListenAddress address;
    if (item.starts_with("unix:")) {
      address.socket = item.substr(5);
      if (!address.socket.starts_with('/') || address.socket.size() < 2 || address.socket.size() > 107)
        throw SettingsError(setting + " is '" + text + "': '" + item + "' names no Unix socket by its whole path");
      addresses.push_back(address);
      continue;
    }
    if (item.find(' ') != std::string::npos) throw SettingsError(setting + " is '" + text + "', which has a space");
    if (item.starts_with("tls://")) address.transport = ListenAddress::Transport::tls;
    if (item.starts_with("tcp://")) address.transport = ListenAddress::Transport::tcp;
    if (address.transport != ListenAddress::Transport::usual) item.erase(0, 6);
    if (const std::size_t other = item.find("://"); other != std::string::npos)
      throw SettingsError(setting + " is '" + text + "': '" + item.substr(0, other) +
                          "' is no transport; write tcp:// or tls://");
    const std::size_t colon = item.rfind(':');
    const std::string port = colon == std::string::npos ? "" : item.substr(colon + 1);
    address.host = item.substr(0, colon);
    if (address.host.starts_with('[') && address.host.ends_with(']'))
      address.host = address.host.substr(1, address.host.size() - 2);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (port.empty() || address.host.empty() || error != std::errc{} || end != port.data() + port.size())
      throw SettingsError(setting + " is '" + text + "': '" + item + "' is not host:port" +
                          (setting == "listen" ? " or unix:/path" : ""));
    addresses.push_back(address);
  }
  if (addresses.empty())
    throw SettingsError(setting + " is empty; give host:port" + (setting == "listen" ? " or unix:/path" : ""));
  return addresses;
}

// 0 for what is no number.
double Settings::oversubscription() const {
  double factor = 0;
  const char* const end = memory_oversubscription.data() + memory_oversubscription.size();
  const auto [parsed, error] = std::from_chars(memory_oversubscription.data(), end, factor);
  return error == std::errc{} && parsed == end ? factor : 0;
}

std::uint64_t Settings::resume_seconds_of(bool by_loopback) const {
  const bool standard = std::any_of(origins.begin(), origins.end(), [](const Origin& origin) {
    return origin.name == "resume_seconds" && origin.from == "default";
  });
  return by_loopback && standard ? 0 : resume_seconds;
}

bool is_setting(const std::string& name) {
  return std::any_of(entries().begin(), entries().end(), [&](const Entry& entry) { return entry.name == name; });
}

std::vector<int> parse_devices(const std::string& text) {
  std::vector<int> devices;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    int device = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), device);
    if (error != std::errc{} || end != item.data() + item.size() || device < 0)
      throw SettingsError("devices is '" + text + "': '" + item + "' is no device number");
    if (std::find(devices.begin(), devices.end(), device) != devices.end())
      throw SettingsError("devices is '" + text + "': it names device " + item + " twice; name each once");
    devices.push_back(device);
  }
  return devices;
}

}  // namespace fargpu::server
