#pragma once
// What the driver takes of the devices' memory by itself.

#include <asio.hpp>

#include "device_watch.h"
#include "settings.h"
#include "workers.h"

namespace fargpu::server {

/// Charges sessions, every now and then, for what the driver has taken for itself: what NVML sees more than they were
/// charged for. Ends those for which it has taken too much (driver_bytes_max). Used by the broker's one thread.
class MemoryWatch {
 public:
  MemoryWatch(asio::io_context& io, const Settings& settings, Workers& workers, DeviceWatch& devices)
      : io_(io), settings_(settings), workers_(workers), devices_(devices) {}
  /// For ever.
  asio::awaitable<void> run();

 private:
  bool anything_new();
  asio::awaitable<void> look();

  asio::io_context& io_;
  const Settings& settings_;
  Workers& workers_;
  DeviceWatch& devices_;
  std::uint64_t calls_then_ = 0;
};

}  // namespace fargpu::server
