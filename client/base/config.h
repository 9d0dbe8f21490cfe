#pragma once
// What the environment says, but for the log and the trace, when the library is first used, and again when its first
// session begins; nothing here connects or starts anything.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "content_cache.h"
#include "lease_options.h"
#include "protocol/compression.h"
#include "protocol/channel.h"

namespace fargpu::client {

struct PoolHost {
  /// `usual`: TLS, except to this machine itself. `rdma`: the same, and the session itself by RDMA.
  enum class Transport { usual, tcp, tls, rdma } transport = Transport::usual;
  std::string host;
  std::uint16_t port = 8470;
  std::string socket;  ///< instead: a Unix socket of this machine, by path or as @name in the abstract namespace
  /// Of the name's addresses the one that is to be used; empty: any that answers. Several may be those of several
  /// machines.
  std::string address;
};

enum class Transport {
  automatic,  ///< shared memory with a host on this machine, else RDMA where both have it and allow it, else TCP
  tcp,
  shm,   ///< nothing else will do
  rdma,  ///< nor here
};

struct Config {
  /// FARGPU_POOL as written; empty if unset.
  std::string pool;
  /// Its hosts, in order. Empty for "none".
  std::vector<PoolHost> hosts;
  /// Why FARGPU_POOL cannot be used; empty if it can.
  std::string pool_error;
  /// CUDA version that programs see, FARGPU_DRIVER_VERSION (for example 12080); at most the toolkit's.
  int driver_version = 0;
  LeaseOptions lease;
  std::string number_error;  ///< a variable that is not what it may be; empty if all are
  /// FARGPU_TRANSPORT.
  Transport transport = Transport::automatic;
  /// CUDA_VISIBLE_DEVICES; `visible_set` tells unset from empty.
  std::string visible_devices;
  bool visible_set = false;
  /// For how long a thread that waits for an answer looks for it before it sleeps (FARGPU_SPIN_US, microseconds).
  std::chrono::nanoseconds spin{0};
  /// Connections that large copies are divided among (FARGPU_LANES); 0 for the session's own alone. With one, only
  /// copies go by it that no thread waits for.
  unsigned lanes = 0;
  bool lanes_fixed = false;  ///< all of them are used, whatever the line carries: FARGPU_LANES says so
  /// FARGPU_COMPRESS.
  Compression compression = Compression::never;
  /// FARGPU_CONTENT_CACHE.
  ContentCache content_cache = ContentCache::never;
  /// CUDA_LAUNCH_BLOCKING=1: every launch is waited for.
  bool launch_blocking = false;
  /// Client and worker are in one process, whose memory each takes for its own (tests).
  bool one_process = false;
  /// Puts something between the session and the memory that it shares with the worker (tests).
  std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> wrap_shared;
  /// CUDA variables that the worker must know before it initialises its driver.
  std::vector<std::pair<std::string, std::string>> cuda_environment;
};

/// The process's configuration.
const Config& config();
/// Reads it anew: programs set variables after the library has been loaded and asked something. While there is no
/// session; what config() has returned stays as it is.
void read_config_again();

/// Parses "host[:port][,host...]"; "[v6]:port", "tls://", "tcp://" and "unix:path" are understood. On failure returns
/// nothing and says why, naming `source` as where the text is from.
std::vector<PoolHost> parse_pool(const std::string& text, std::string& error, const char* source = "FARGPU_POOL");

}  // namespace fargpu::client
