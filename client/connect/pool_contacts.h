#pragma once
// The hosts of a pool, in the order in which a session is asked of them: that of FARGPU_POOL, except that a silent host
// is not waited for while another one answers.

#include <memory>
#include <optional>
#include <vector>

#include "control_connection.h"

namespace fargpu::client {

/// Says hello to a pool. A host has a head start before the next one is called, so that a pool whose first host answers
/// costs one connection.
class PoolContacts {
 public:
  explicit PoolContacts(std::vector<PoolHost> hosts, ControlConnection::For whom = ControlConnection::For::job);
  ~PoolContacts();
  PoolContacts(const PoolContacts&) = delete;
  PoolContacts& operator=(const PoolContacts&) = delete;

  struct Contact {
    std::unique_ptr<ControlConnection> broker;
    PoolHost host;
    std::size_t place;  ///< of the host in the pool
  };
  /// The next host that has answered; of several, the first in the pool. Nothing once all have been given or have
  /// failed.
  std::optional<Contact> next();
  /// The host of this place serves no session, although it has answered.
  void failed(std::size_t place, DialError error);
  /// Of each host what was wrong, in the order of the pool.
  std::vector<DialError> errors() const;

 private:
  struct State;
  void call(std::size_t place);

  const std::vector<PoolHost> hosts_;
  const ControlConnection::For whom_;
  std::size_t called_ = 0;
  std::shared_ptr<State> state_;  // threads that still wait for a silent host have it too
};

}  // namespace fargpu::client
