#include "settings_table.h"

#include <algorithm>
#include <cstdlib>

#include "protocol/own_executable.h"
#include "protocol/rdma/networks.h"

namespace fargpu::server {
namespace {

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

}  // namespace

const std::vector<Setting>& settings_table() {
  static const std::vector<Setting> all{
      {"listen", &Settings::listen, "127.0.0.1:8470",
       "Addresses to listen on, [tls://|tcp://]host:port[,...]. An address without a prefix has TLS, except on the "
       "loopback. Port 0 takes any free one. unix:/path is a Unix socket for clients on this machine"},
      {"insecure", &Settings::insecure, "false",
       "Serve other machines without TLS at addresses without tls://. Every machine that reaches the port can then use "
       "the GPUs and read all traffic"},
      {"tls_certificate", &Settings::tls_certificate, "",
       "This host's certificate with its chain, PEM; `fargpu pki` makes one", Setting::Names::path},
      {"tls_key", &Settings::tls_key, "", "Its key, PEM", Setting::Names::path},
      {"tls_client_ca", &Settings::tls_client_ca, "",
       "Certificate of the authority that signs certificates of clients, PEM", Setting::Names::path},
      {"psk_file", &Settings::psk_file, "",
       "Keys shared with tenants, a line TENANT:HEXDIGITS each; they replace certificates", Setting::Names::path},
      {"token_file", &Settings::token_file, "",
       "Tokens of clients; `fargpu token` makes them. Changes take effect at once", Setting::Names::path},
      {"shared_memory", &Settings::shared_memory, "true",
       "Let clients on this machine that come by TCP share memory with their workers instead"},
      {"driver", &Settings::driver, "libcuda.so.1", "Driver library that workers load, by path or name",
       Setting::Names::library},
      {"nvml", &Settings::nvml, "libnvidia-ml.so.1",
       "NVML library of this host, for clocks, temperatures and utilisation; empty for none", Setting::Names::library},
      {"devices", &Settings::devices, "", "Devices to offer, by the driver's numbers, comma-separated (default: all)"},
      {"sessions_max", &Settings::sessions_max, "256", "Sessions at once"},
      {"warm_workers", &Settings::warm_workers, "1", "Workers kept ready, with the driver initialised"},
      {"warm_context", &Settings::warm_context, "true",
       "Have warm workers create the first device's context; costs its device memory each (about 515 MiB on an H200)"},
      {"image_folder", &Settings::image_folder, default_image_folder(),
       "Folder for GPU code by content; empty for none", Setting::Names::path},
      {"image_bytes_max", &Settings::image_bytes_max, "8589934592", "Bytes kept in that folder"},
      {"content_folder", &Settings::content_folder, "",
       "Folder for contents of memory that programs have sent, so that they need not send them again; may be on a "
       "tmpfs, to be kept in memory only. Empty: below image_folder, and none without that",
       Setting::Names::path},
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
       Setting::Names::path},
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
       "Certificate of the authority that signs etcd's certificates, PEM; needed with https://", Setting::Names::path},
      {"pool_certificate", &Settings::pool_certificate, "", "Certificate that this host shows to etcd, PEM",
       Setting::Names::path},
      {"pool_key", &Settings::pool_key, "", "Its key, PEM", Setting::Names::path},
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
      {"worker", &Settings::worker, default_worker(), "Path of fargpu-worker", Setting::Names::path},
      {"runtime_folder", &Settings::runtime_folder, default_runtime_folder(),
       "Folder, of this user alone, in which a fargpud leaves what the next one needs to take over its sessions: after "
       "its death, and after SIGUSR1, by which it ends for that. Each fargpud needs one of its own; at most 80 bytes "
       "of path. Empty: sessions go on without, and are in nobody's books",
       Setting::Names::path},
      {"log_level", &Settings::log_level, "info", "error, warn, info or debug"},
      {"log_format", &Settings::log_format, "text", "text or json"},
  };
  return all;
}

std::string from_folder(const std::filesystem::path& folder, const Setting& entry, const std::string& value) {
  const bool a_path = entry.names == Setting::Names::path ||
                      (entry.names == Setting::Names::library && value.find('/') != std::string::npos);
  return a_path && !value.empty() ? (folder / value).lexically_normal().string() : value;
}

bool is_setting(const std::string& name) {
  return std::any_of(settings_table().begin(), settings_table().end(),
                     [&](const Setting& entry) { return entry.name == name; });
}

std::vector<std::string> changed_settings(const Settings& one, const Settings& other) {
  std::vector<std::string> names;
  for (const Setting& entry : settings_table())
    if (std::string_view(entry.name) != "drain_seconds" &&  // in use at once
        std::visit([&](const auto field) { return one.*field != other.*field; }, entry.field))
      names.emplace_back(entry.name);
  return names;
}

}  // namespace fargpu::server
