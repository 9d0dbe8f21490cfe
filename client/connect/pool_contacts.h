#pragma once
// The hosts of a pool, in the order in which a session is asked of them. A silent host is not waited for while another
// one answers. One that is named twice is used once.

#include <memory>
#include <optional>
#include <vector>

#include "control_connection.h"
#include "offer.h"

namespace fargpu::client {

/// What is said, once, of an address in FARGPU_POOL that leads to a host which another one names already.
void warn_of_twin(const std::string& address, const std::string& other) noexcept;

/// Says hello to a pool.
class PoolContacts {
 public:
  enum class Order {
    /// That of FARGPU_POOL. A host has a head start before the next one is called, so that a pool whose first host
    /// answers costs one connection. Programs that do not belong to a job come to the same host in this way, where they
    /// can share memory.
    pool,
    /// The best offer first, of the hosts that answer within a head start after the first answer. All are called at
    /// once.
    load,
  };
  explicit PoolContacts(std::vector<PoolHost> hosts, Order order = Order::pool);
  ~PoolContacts();
  PoolContacts(const PoolContacts&) = delete;
  PoolContacts& operator=(const PoolContacts&) = delete;

  struct Contact {
    std::unique_ptr<ControlConnection> broker;
    PoolHost host;
    std::size_t place;  ///< of the host in the pool
    Offer offer;        ///< in the order of load
  };
  /// The next host that has answered; of several, the first in the order. Nothing once all have been given or have
  /// failed.
  std::optional<Contact> next();
  /// All hosts that have answered and were not given, the best offer first; silent ones are waited for no longer than
  /// next() does.
  std::vector<Contact> all();
  /// A host that was silent, once it answers. Calls it again, unless that is under way; does not wait.
  std::optional<Contact> again(std::size_t place);
  /// Those that FARGPU_POOL names, each once.
  std::size_t hosts() const;
  /// The host of this place serves no session, although it has answered.
  void failed(std::size_t place, DialError error);
  /// Places of those that were called and do not answer.
  std::vector<std::size_t> silent() const;
  /// What was wrong with each host, in the order of the pool; one that was called and is silent until now is among
  /// them.
  std::vector<DialError> errors() const;

 private:
  struct State;
  void call(std::size_t place);
  void call_by_thread(std::size_t place);
  Contact give(std::size_t place);
  void wait_for_offers();

  const std::vector<PoolHost> hosts_;
  const Order order_;
  std::size_t called_ = 0;
  std::shared_ptr<State> state_;  // threads that still wait for a silent host have it too
};

}  // namespace fargpu::client
