#pragma once
// From a client's attach message to a running session.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "protocol/channel.h"
#include "protocol/limits.h"
#include "session.h"

namespace fargpu::server {

struct AttachOptions {
  std::uint64_t session_id = 0;
  std::vector<int> devices;  ///< the driver's ordinals
  std::vector<std::uint64_t> memory_limits;
  std::optional<AccountPlace> account_place;
  std::filesystem::path image_folder;
  std::uint64_t image_bytes_max = 8ull << 30;
  std::uint64_t host_bytes_max = 0;
  std::size_t output_bytes_max = SessionOptions().output_bytes_max;  ///< as in SessionOptions
  std::chrono::nanoseconds spin{0};
  unsigned launch_threads = 0;
  std::chrono::milliseconds silence = limits::silence_timeout;
  /// Addresses where the driver places what it places by itself; empty if that is nowhere in particular.
  Window driver_band;
  /// Client and worker are in one process and share its reservations (tests).
  bool one_process = false;
  PrintedByKernels* printed = nullptr;
  Exchange* exchange = nullptr;
  std::vector<std::byte> lane_key;  ///< by which the client's further connections are let in; empty for none
  TurnOptions turns;
  bool scrub = false;                             ///< as in SessionOptions
  std::vector<std::vector<CUdevResource>> parts;  ///< as in SessionOptions
  std::function<void(const SessionUsage&)> report;
  /// Told of the session while it runs, so that it can be stopped from another thread.
  std::function<void(Session*)> running;
};

/// Answers the attach message and serves the session. Returns why it ended, for the log. Never throws for what a client does.
std::string serve_session(Channel& channel, std::span<const std::byte> attach_message, DriverTable& driver, const AttachOptions& options);

/// Whether this frame, the first on a connection, asks to be a bulk lane by this key.
bool asks_for_lane(std::span<const std::byte> lane_message, std::span<const std::byte> key) noexcept;
/// Answers it, and gives the connection to the session if it is known and the session (null: there is none yet) has room.
void take_lane(Session* session, std::unique_ptr<Channel> channel, bool known) noexcept;

/// The server's end of a connection that goes on with TLS by a key that its client was given, under this name. Throws as accept_tls().
std::unique_ptr<Channel> accept_by_key(int descriptor, const std::string& peer, std::span<const std::byte> name,
                                       std::span<const std::byte> secret);

/// Where mappings of this process begin to be placed, downwards, as a band to reserve; empty unless the process was displaced.
Window displaced_band();

}  // namespace fargpu::server
