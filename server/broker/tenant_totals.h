#pragma once
// What sessions of a tenant have had, the ended ones too.

#include <array>
#include <cstddef>
#include <cstdint>

namespace fargpu::server {

/// Why a session ended.
enum class SessionEnd { client, stopped, fault };
constexpr std::array session_ends{SessionEnd::client, SessionEnd::stopped, SessionEnd::fault};
inline const char* text_of(SessionEnd end) {
  switch (end) {
    case SessionEnd::client: return "client";
    case SessionEnd::stopped: return "stopped";
    default: return "fault";
  }
}

/// Each only grows while the broker runs.
struct TenantTotals {
  std::uint64_t busy_ns = 0;      ///< for which devices had work of its sessions
  std::uint64_t waited_ns = 0;    ///< for which its sessions had work and no turn
  std::uint64_t known_bytes = 0;  ///< of contents that the host had, and its sessions did not send
  std::uint64_t kept_bytes = 0;   ///< of those that they sent and the host has kept
  std::uint64_t moved = 0;        ///< bytes over the network, of ended sessions
  std::uint64_t started = 0;      ///< sessions
  std::uint64_t resumed = 0;      ///< times that a client came back whose connection had broken
  std::array<std::uint64_t, session_ends.size()> ended{};

  std::uint64_t& ended_by(SessionEnd end) { return ended[static_cast<std::size_t>(end)]; }
  std::uint64_t ended_by(SessionEnd end) const { return ended[static_cast<std::size_t>(end)]; }
};

}  // namespace fargpu::server
