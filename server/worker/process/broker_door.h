#pragma once
// Links with other hosts by way of the broker, because a worker in its sandbox connects to nobody.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "protocol/rdma/context.h"
#include "server/exchange.h"
#include "server/peer_door.h"
#include "server/worker_link.h"

namespace fargpu::server {

class BrokerDoor final : public PeerDoor {
 public:
  /// Puts what paces a connection around it.
  using Wrap = std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)>;
  /// The devices by which a connection may go on by RDMA; null: by none.
  using Rdma = std::function<std::shared_ptr<rdma::OpenedDevices>(int connection)>;
  BrokerDoor(int link, Wrap wrap, Rdma rdma) : link_(link), wrap_(std::move(wrap)), rdma_(std::move(rdma)) {}

  /// The link stands still as long as this is held: the next broker takes the place of the present one.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  /// Tells the next broker, on a connection to it, who is let in. False if it is gone. While held.
  bool recount_to(int next) const;

  bool admit(std::span<const std::byte> key) override;
  void shut_out(std::span<const std::byte> key) override;
  PeerConnection connect(const PeerAddress& address, std::uint32_t channel) override;

  // What the broker answers.
  void heard_admitted(std::span<const std::byte> key);
  void heard(wire::Dialled::Reader dialled, Descriptor descriptor);

 private:
  struct Answer {
    std::string failure;
    Descriptor descriptor;
  };
  Descriptor dial(const PeerAddress& address);

  const int link_;
  const Wrap wrap_;
  const Rdma rdma_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t request_ = 0;
  std::map<std::uint64_t, std::optional<Answer>> dialling_;
  std::set<std::vector<std::byte>> admitting_;  // until the broker has said so
  std::set<std::vector<std::byte>> admitted_;   // from then on
};

}  // namespace fargpu::server
