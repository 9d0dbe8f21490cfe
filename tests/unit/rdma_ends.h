#pragma once
// Channels by RDMA between two ends in this process: by UCX, if the plugin is built, on its TCP or its shared memory.

#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "protocol/channel.h"
#include "protocol/errors.h"
#include "protocol/rdma/context.h"
#include "protocol/rdma/handover.h"

namespace fargpu::test {

/// While it is set, nothing comes or goes by UCX, and its lines fail when they are used.
inline std::atomic<bool> rail_is_down{false};
/// How often lines were armed.
inline std::atomic<unsigned> arms{0};

/// The plugin's functions, behind that rail.
inline const rdma::Interface& ucx_by_rail() {
  static const rdma::Interface& plugin = rdma::plugin();
  static const rdma::Interface by_rail = [] {
    rdma::Interface functions = plugin;
    functions.open_line = [](rdma::Context* context, std::size_t bytes, void* ring, const rdma::Events* events,
                             char* why) -> rdma::Line* {
      if (!rail_is_down) return plugin.open_line(context, bytes, ring, events, why);
      std::snprintf(why, rdma::why_bytes, "the rail is down");
      return nullptr;
    };
    functions.send = [](rdma::Line* line, const void* head, std::size_t head_bytes, const void* body,
                        std::size_t body_bytes) {
      return !rail_is_down && plugin.send(line, head, head_bytes, body, body_bytes);
    };
    functions.put = [](rdma::Line* line, std::uint64_t offset, const void* bytes, std::size_t size,
                       rdma::Memory* memory) { return !rail_is_down && plugin.put(line, offset, bytes, size, memory); };
    functions.flush = [](rdma::Line* line) { return !rail_is_down && plugin.flush(line); };
    functions.progress = [](rdma::Line* line) { return !rail_is_down && plugin.progress(line); };
    functions.arm = [](rdma::Line* line) {
      ++arms;
      return plugin.arm(line);
    };
    return functions;
  }();
  return by_rail;
}

/// Opened once.
inline std::shared_ptr<rdma::OpenedDevices> open_ucx(bool memory) {
  static const auto open = [](const char* devices, const char* transports) {
    return std::make_shared<rdma::OpenedDevices>(ucx_by_rail(), devices, transports);
  };
  static const auto tcp = open("lo", "tcp"), shared = open("all", "sysv");
  return memory ? shared : tcp;
}

/// Both ends of a connection, handed over.
inline std::pair<rdma::HandedOver, rdma::HandedOver> hand_both_over(
    Channel& left, Channel& right, const std::shared_ptr<rdma::OpenedDevices>& left_devices,
    const std::shared_ptr<rdma::OpenedDevices>& right_devices, const std::string& why_left = {},
    const std::string& why_right = {}) {
  auto other = std::async(std::launch::async, [&] { return rdma::hand_over(right, right_devices, why_right); });
  auto one = rdma::hand_over(left, left_devices, why_left);
  return {std::move(one), other.get()};
}

inline std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> socket_ends() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) throw SystemError("socketpair");
  return {make_socket_channel(sockets[0], "left"), make_socket_channel(sockets[1], "right")};
}

inline std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> rdma_channel(bool memory = false) {
  auto [near, far] = socket_ends();
  auto [left, right] = hand_both_over(*near, *far, open_ucx(memory), open_ucx(memory));
  if (!left.end || !right.end) throw rdma::RdmaError("no channel by UCX: " + left.text + "; " + right.text);
  return {std::move(*left.end).open(std::move(near)), std::move(*right.end).open(std::move(far))};
}

}  // namespace fargpu::test
