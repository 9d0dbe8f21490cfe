#pragma once
// The life of a worker's process:
//
//   confine            gives up privileges and, in the sandbox, what neither worker nor driver needs
//   load_driver        loads and initialises the driver; finds the devices and the session's part of each
//   introduce          tells the broker what the devices are. From here on the process is warm: it waits for a session
//   receive_session    the broker hands over the tenant's account, then the session with the client's connection
//   serve              the session's loop, until the client leaves or is lost or the broker says stop. Beside it, each
//   on its own thread:
//     hear_broker        turns, bulk lanes, what other sessions share, the word to stop; meet_next_broker, when that
//                        broker is gone
//     watch              ends the process if a call to the driver does not come back
//   end                tells the broker why the session is over; then _Exit, after which the kernel frees what the
//   driver holds
//
// Until there is a session the process ends with its broker. From then on it belongs to its client: if the broker dies,
// the session goes on, and the host's next broker finds it at its door. Without a door nothing but the client ends it.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker_door.h"
#include "driver_table.h"
#include "encrypted_lanes.h"
#include "link_exchange.h"
#include "next_broker.h"
#include "protocol/channel.h"
#include "rdma_host.h"
#include "running_session.h"
#include "server/exchange.h"
#include "server/quota/bandwidth.h"
#include "server/worker/call/captured_output.h"
#include "server/worker/session/attach.h"
#include "server/worker/session/resumption.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

struct WorkerOptions {
  std::string driver;
  int link = -1;
  int door = -1;
  std::string devices;
  std::string sm_groups;
  std::string user;
  bool sandbox = false;
  bool warm_context = false;
  std::uint64_t image_bytes_max = 8ull << 30;
  std::uint64_t content_bytes_max = 0;
  std::uint64_t host_bytes_max = 0;
  long spin_us = 0;
  unsigned launch_threads = 0;
  unsigned silence_seconds = 30;
  std::string rdma_networks = "none";
  std::string rdma_transports = "cards";
  std::string gpudirect = "off";
};

/// Never destroyed: its threads run until the process exits.
class WorkerProcess {
 public:
  explicit WorkerProcess(WorkerOptions options);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  /// Returns the process's exit status.
  int run();

 private:
  int live();
  void confine();
  void load_driver();
  void choose_parts();
  bool introduce();
  /// False if there is none: the broker is gone, ends this process, or handed over a client that did not come.
  bool receive_session();
  bool receive_account();
  void take_session(wire::Session::Reader session);
  std::shared_ptr<GpuDirect> gpu_direct();
  bool take_connection(wire::Session::Reader session, int descriptor);
  void serve();
  void complete_options();
  void tell_usage(const SessionUsage& used);
  void tell_activity(const scheduler::Activity& activity, std::uint64_t number, scheduler::Time since);
  void tell_residency(const ResidencyNews& news);
  void want_room(const RoomWish& wish);
  void end(const std::string& why);

  /// Runs on a thread of its own. Receives one message of the broker; false when the broker is gone.
  bool hear_broker();
  /// Runs on that thread too: waits for the next broker, and tells it of the session. False if none can come.
  bool meet_next_broker();
  bool recount_to(int next) const;
  void hear(wire::WorkerMessage::Reader message, Descriptor descriptor);
  void hear_lane(std::span<const std::byte> lane_message, Descriptor descriptor);
  void meet_peer(Descriptor descriptor, const PeerWish& wish);
  /// The devices by which a link's connection may go on; null: by none.
  std::shared_ptr<rdma::OpenedDevices> rdma_of_link(int connection) const;
  void give_lane(std::unique_ptr<Channel> lane, const LaneWish& wish);
  std::unique_ptr<Channel> paced(std::unique_ptr<Channel> lane, const LaneWish& wish);
  void tell_resuming(const Resumption::Break* what, const std::string& peer);
  void describe_absence(wire::Resuming::Builder told) const;
  /// Runs on a thread of its own. Never returns.
  [[noreturn]] void watch();

  const WorkerOptions options_;
  DriverTable driver_{};
  std::vector<int> devices_;  // the driver's ordinals
  std::vector<std::vector<CUdevResource>> parts_;
  std::optional<RdmaHost> rdma_;
  bool introduced_ = false;  // to the broker, to which it is a session's end then that nothing goes on here

  // Of the session.
  std::optional<PrintedByKernels> printed_;
  std::shared_ptr<TenantAccount> account_;
  std::shared_ptr<Bandwidth> bandwidth_;
  std::unique_ptr<Channel> channel_;  // to its client
  std::vector<std::byte> attach_message_;
  AttachOptions attach_;
  std::optional<EncryptedLanes> encrypted_lanes_;  // if the session speaks TLS
  NextBroker next_broker_;
  std::vector<std::byte> record_;  // of the session, for the next broker
  static constexpr std::chrono::steady_clock::time_point broker_there{};
  std::atomic<std::chrono::steady_clock::time_point> broker_away_since_{broker_there};
  struct ClientAway {
    std::uint64_t since = 0;  // Unix time
    std::string why;
  };
  std::mutex away_mutex_;
  std::optional<ClientAway> client_away_;  // while its connection is broken
  LinkExchange exchange_;
  BrokerDoor door_;
  std::atomic<unsigned> peers_met_{0};  // connections of links with other hosts, just now
  RunningSession running_;
  std::atomic<unsigned> lanes_met_{0};  // connections of the session that are not taken yet, just now
};

}  // namespace fargpu::server
