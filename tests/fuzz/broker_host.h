#pragma once
// A broker in this process, at a Unix socket, for the targets that talk to one. Its workers are pretended: no
// processes, only the ends of the links that they would have.

#include <sys/types.h>
#include <sys/un.h>

#include <asio.hpp>

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "server/broker/broker.h"
#include "worker_link.capnp.h"

namespace fargpu::fuzz {

/// What the broker takes for a process.
struct PretendedWorker {
  pid_t process = -1;
  int link = -1;
  bool ended = false;
};

/// A driver's facts as a worker says them first.
void say_ready(wire::WorkerMessage::Builder message);

class BrokerHost {
 public:
  /// The only one, made when it is first asked for with this text behind the settings; never destroyed, since it refers
  /// to itself in all that waits.
  static BrokerHost& instance(const std::string& settings = "");

  int connect();
  /// Until the broker has nothing to do now.
  void go_on();
  server::Workers& workers() { return broker_->workers(); }

  /// Those that the broker has started and not reaped, in that order.
  std::deque<PretendedWorker>& processes() { return processes_; }
  /// Is told of each one that the broker has started. (By default it says that it is ready.)
  std::function<void(PretendedWorker&)> on_start;
  /// The process ends by this signal, or by itself (0). (It ends by itself when the broker has closed its link.)
  void end(pid_t process, int signal);

 private:
  bool end_the_unlinked();
  explicit BrokerHost(const std::string& settings);

  std::filesystem::path folder_;
  asio::io_context io_;
  server::Settings settings_;
  std::deque<PretendedWorker> processes_;
  std::unique_ptr<server::Broker> broker_;
  sockaddr_un address_{};
};

/// One client's connection, whose answers must be frames.
class Caller {
 public:
  ~Caller() { close(); }
  /// As it is, or with a frame's head before it.
  void send(std::span<const std::uint8_t> bytes, bool with_head);
  void send(const std::function<void(wire::Control::Builder)>& fill);
  void close();
  /// Hears of every answer.
  std::function<void(wire::Control::Reader)> on_answer;

 private:
  void hear();

  int socket_ = -1;
  std::uint32_t sent_ = 0, heard_ = 0;
  std::vector<std::byte> answers_;
};

}  // namespace fargpu::fuzz
