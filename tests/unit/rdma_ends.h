#pragma once
// Channels by RDMA between two ends in this process: by UCX, if the plugin is built, on its TCP or its shared memory.

#include <sys/socket.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "protocol/channel.h"
#include "protocol/errors.h"
#include "protocol/rdma/context.h"
#include "protocol/rdma/handover.h"

namespace fargpu::test {

/// Opened once.
inline std::shared_ptr<rdma::OpenedDevices> open_ucx(bool memory) {
  static const auto open = [](const char* devices, const char* transports) {
    return std::make_shared<rdma::OpenedDevices>(rdma::plugin(), devices, transports);
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
