#pragma once
// What fargpud is told: flags over environment over file over default. One table in settings_table.cpp says all of it.

#include <cstdint>
#include <string>
#include <vector>

#include "settings_error.h"

namespace fargpu::server {

struct Settings {
  std::string listen;     ///< addresses host:port or unix:/path, comma-separated
  bool insecure = false;  ///< allow addresses other than loopback, where nothing is encrypted or authenticated
  std::string tls_certificate, tls_key;  ///< the host's own, as files of PEM
  std::string tls_client_ca;             ///< of the authority that signs clients' certificates
  std::string psk_file;                  ///< keys that tenants and this host share
  std::string token_file;                ///< what is needed to know tokens again
  bool shared_memory = false;            ///< with clients on this machine that came by TCP
  std::string driver;                    ///< driver library, by path or name
  std::string nvml;                      ///< the host's libnvidia-ml, by path or name; empty for none
  std::string devices;                   ///< the driver's ordinals to offer, comma-separated; empty for all
  std::uint64_t sessions_max = 0;
  std::uint64_t warm_workers = 0;
  bool warm_context = false;
  std::string image_folder;
  std::uint64_t image_bytes_max = 0;
  std::string content_folder;  ///< empty: below image_folder
  std::uint64_t content_bytes_max = 0;
  std::uint64_t host_bytes_max = 0;
  std::uint64_t driver_bytes_max = 0;
  std::uint64_t evicted_bytes_max = 0;  ///< of this host's memory, for sessions that are evicted
  std::string evicted_folder;           ///< for those that find no room there; empty: none
  std::uint64_t evicted_disk_bytes_max = 0;
  std::uint64_t evict_quantum_seconds = 0;
  std::uint64_t evict_idle_seconds = 0;  ///< 0: idle sessions stay until somebody wants the room
  std::string memory_oversubscription;
  std::uint64_t spin_us = 0;
  std::uint64_t launch_threads = 0;
  std::uint64_t handshake_seconds = 0;
  std::uint64_t callers_per_address_max = 0;  ///< connections that have no session yet
  /// In a minute; then its connections are closed unheard until that is over.
  std::uint64_t refusals_per_address_max = 0;
  std::uint64_t start_seconds = 0;
  std::uint64_t silence_seconds = 0;
  std::uint64_t resume_seconds = 60;
  std::uint64_t drain_seconds = 0;
  std::string policy;  ///< how devices are divided: see server/scheduler
  std::uint64_t quantum_ms = 0;
  std::uint64_t grace_ms = 0;
  std::uint64_t kernel_seconds_max = 0;
  std::string scrub;           ///< when memory becomes zeros before a session sees it: tenants, always or never
  std::string metrics_listen;  ///< host:port for Prometheus; empty for none
  bool sandbox = false;        ///< workers give up what they do not need
  std::string worker_user;     ///< whom workers run as; empty: as the broker
  std::string worker;          ///< path of fargpu-worker
  std::string runtime_folder;  ///< for the host's next broker; empty: it takes over nothing
  std::string log_level;
  std::string log_format;                           ///< text or json
  std::string peers;                                ///< networks of other hosts to which workers may have links
  std::string rdma_networks;                        ///< to whose clients workers offer RDMA
  std::string rdma_transports;                      ///< cards, tcp or memory
  std::string gpudirect;                            ///< whether cards reach GPUs' memory: auto, on or off
  std::string pool;                                 ///< of which this host is a member, by its registry; empty: of none
  std::string pool_registry;                        ///< addresses of etcd, comma-separated
  std::string pool_ca, pool_certificate, pool_key;  ///< for TLS with it, files of PEM
  std::string pool_host;                            ///< this host's name in the pool; empty: its host name
  std::string pool_address;  ///< of this host, as in FARGPU_POOL; empty: made of what it listens at
  std::string pool_outage;   ///< of new leases while the registry is away: refuse or local
  bool pool_placer = true;   ///< this host may be the one that places leases

  struct Origin {
    std::string name;
    std::string value;
    std::string from;  ///< "flag --x", "environment variable X", "file PATH" or "default"
  };
  std::string file;                            ///< the settings file; empty if there is none
  std::vector<std::string> arguments;          ///< of the command line, to read all of it again
  std::vector<Origin> origins;                 ///< for --show-config
  std::vector<std::string> unknown_variables;  ///< misspelt perhaps: they have no effect

  /// How many times the memory of a device leases may have of it together.
  double oversubscription() const;
  /// `resume_seconds` for a client that comes by the loopback, or not. A connection by the loopback breaks with its
  /// process alone, or with a tunnel that ends here, so that the default does not count for it.
  std::uint64_t resume_seconds_of(bool by_loopback) const;
  /// This host's name in its pool.
  std::string name_in_pool() const;
};

/// What the command line decides besides settings.
enum class Command { serve, show_config, check, done };

/// Reads everything. On Command::done help or version was printed and `exit_code` is set. Throws SettingsError.
Command read_settings(int argc, char** argv, Settings& settings, int& exit_code);

/// A settings file in which every setting is explained, with its default, and commented out.
std::string sample_file();
/// As a settings file, which says the same; where each value came from stands behind it.
std::string settings_text(const Settings& settings);
/// The settings in which two readings differ; without tenants.
std::vector<std::string> changed_settings(const Settings& one, const Settings& other);

/// One address to listen on.
struct ListenAddress {
  /// `usual`: TLS, except on the loopback.
  enum class Transport { usual, tcp, tls } transport = Transport::usual;
  std::string host;
  std::uint16_t port = 0;
  std::string socket;  ///< instead: the path of a Unix socket
};
/// `setting`: whose value it is, for words about it.
std::vector<ListenAddress> parse_listen(const std::string& text, const std::string& setting = "listen");
std::vector<int> parse_devices(const std::string& text);
/// Whether the host has a setting of that name.
bool is_setting(const std::string& name);

}  // namespace fargpu::server
