#pragma once
// Talking to a broker: connections, and requests with their answers. What is said is described in
// protocol/control.capnp.

#include <cuda.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "client/base/config.h"
#include "control.capnp.h"
#include "dial_error.h"
#include "protocol/channel.h"
#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::client {

/// What the loss of a connection to a fargpud means; not of one that has said nothing yet.
DialError::Line line_of(const ChannelClosed& error);

/// A connection to a host.
struct Line {
  std::unique_ptr<Channel> channel;
  bool encrypted = false;
  bool local = false;   ///< it does not leave this machine
  std::string address;  ///< that answered, of those of the host's name; empty: a Unix socket
};

/// Opens one for control messages. Throws DialError, after limits::connect_timeout at the latest.
Line connect_to(const PoolHost& host);

/// What a broker gave for one session: its connection is the bearer's.
struct Ticket {
  std::vector<std::byte> secret;
  std::vector<std::byte> name;  ///< of a ticket for a connection that speaks TLS; empty otherwise
};

Ticket read_ticket(wire::LeaseAnswer::Reader answer);

/// Opens a session's connection, up to where `attach` is sent. Throws the same.
std::unique_ptr<Channel> connect_session(const PoolHost& host, const Ticket& ticket);

/// What a further connection of a session is for: a bulk lane, or to take the place of one that broke.
struct LaneRequest {
  std::uint64_t session = 0;
  std::span<const std::byte> key;
  std::uint32_t channel = 0;  ///< its number; 0: the session's own connection, or a lane that cannot be resumed
  bool resumes = false;
};
/// Opens such a connection, up to where the worker answers. Throws the same.
std::unique_ptr<Channel> connect_lane(const PoolHost& host, bool encrypted, const LaneRequest& request);
/// Asks for that on a connection.
void ask_for_lane(Channel& channel, const LaneRequest& request);

/// One control connection: requests and answers in turn. Throws DialError on refusals, lost connections and silence.
class ControlConnection {
 public:
  /// The connection's owner: a process that may belong to a job, which then sees its lease, or an administrator of the
  /// host.
  enum class For { job, host };
  /// Connects and says hello.
  explicit ControlConnection(const PoolHost& host, For whom = For::job);

  /// Sends a request and calls `use` with the answer, whose kind must be `expected`.
  /// Waits for it no longer than `timeout`.
  void ask(const std::function<void(wire::Control::Builder)>& request, wire::Control::Which expected,
           const std::function<void(wire::Control::Reader)>& use,
           std::chrono::milliseconds timeout = limits::connect_timeout);

  /// What happens while a host lets a request wait: `go_on` is called at the latest after each interval, and says
  /// whether the answer is still wanted.
  struct Meanwhile {
    std::chrono::milliseconds interval{0};
    std::function<bool()> go_on;  ///< empty: nothing happens
  };
  /// Asks for a lease: for a session, or to be held by this connection. False if the answer is not wanted any more: the
  /// connection is good for nothing then.
  bool ask_for_lease(const LeaseOptions& wish, bool hold, const std::function<void(wire::LeaseAnswer::Reader)>& use,
                     const Meanwhile& meanwhile);
  /// Leaves the connection open to the programs that this process becomes or starts, for as long as any of them lives.
  void bequeath();

  /// Where a broker on another machine, or a socket of TLS, is spoken to in secret.
  bool encrypted() const { return encrypted_; }
  /// Whether it speaks TLS at the address that was configured.
  bool far_encrypted() const { return far_encrypted_; }
  const std::string& broker_version() const { return broker_version_; }
  /// The pool with a registry that the host is a member of: any member answers for all. Empty: of none.
  const std::string& pool() const { return pool_; }
  /// What tells the host from others, whatever the address. Empty: the broker is too old to say.
  const std::string& host_identity() const { return host_identity_; }
  const std::string& name() const { return name_; }
  /// Whether the connection has broken since its last answer, or the host's fargpud has ended.
  DialError::Line line();
  /// Where to open the session: at the address that answered, or at the broker's Unix socket, if it is on this machine
  /// and memory may be shared.
  const PoolHost& address() const { return address_; }

 private:
  /// How the broker is reached on this machine.
  struct Local {
    std::string socket;
    std::vector<std::byte> key, proof;
  };
  bool exchange(const std::function<void(wire::Control::Builder)>& request, wire::Control::Which expected,
                const std::function<void(wire::Control::Reader)>& use, std::chrono::milliseconds timeout,
                const Meanwhile& meanwhile);
  Local hello(std::span<const std::byte> key);
  void come_closer(const Local& local);

  std::string name_;
  PoolHost address_;
  For whom_;
  std::string token_;
  bool encrypted_ = false;
  bool far_encrypted_ = false;
  std::unique_ptr<Channel> channel_;
  std::uint32_t sequence_ = 0;
  std::string broker_version_;
  std::string pool_, host_identity_;
};

/// Throws DialError unless FARGPU_POOL names at least one host.
void require_pool(const Config& config);

/// The host's address, for messages.
std::string address_text(const PoolHost& host);

/// The host as FARGPU_POOL names it.
std::string pool_text(const PoolHost& host);

/// Throws DialError, with the host's name in front, unless the failure's reason is `none`.
void check_failure(wire::Failure::Reader failure, const std::string& host);

}  // namespace fargpu::client
