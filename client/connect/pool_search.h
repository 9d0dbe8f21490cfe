#pragma once
// The search for a lease in a pool: which host is asked, and what happens while all are full.

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement.h"
#include "pool_contacts.h"

namespace fargpu::client {

class PoolSearch {
 public:
  /// What is done with a host before it is asked for a lease. Throws DialError if the host will not do.
  using Check = std::function<void(ControlConnection&)>;
  /// `hold`: the connection holds the lease, which is not for a session.
  PoolSearch(std::vector<PoolHost> hosts, PoolContacts::Order order, bool hold, Check check,
             LeaseOptions wish = config().lease);

  struct Found {
    std::unique_ptr<ControlConnection> broker;
    PoolHost host;      ///< that has the lease
    std::size_t place;  ///< in the pool, of the host that was asked
    Ticket ticket;      ///< for a session
    bool placed;        ///< by the pool, whichever host was asked
  };
  /// The next host that gives a lease. Of a pool with a registry one member is asked, which answers for all of them.
  /// While all hosts are full, the search waits as long as the wish says: it stands in the queue of one host
  /// and looks at the others. Nothing once no host is left: errors() says why.
  std::optional<Found> next();
  /// The lease of this host is of no use.
  void failed(std::size_t place, DialError error) { contacts_.failed(place, std::move(error)); }
  /// What was wrong with each host, in the order of the pool.
  std::vector<DialError> errors() const { return contacts_.errors(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Full {
    std::size_t place;
    Offer offer;
  };

  std::optional<Found> ask(PoolContacts::Contact contact, std::chrono::milliseconds wait,
                           const ControlConnection::Meanwhile& meanwhile);
  std::optional<Found> ask_once(PoolContacts::Contact& contact, std::chrono::milliseconds wait,
                                const ControlConnection::Meanwhile& meanwhile);
  Found go_to(const Placement& placement, std::size_t place);
  std::optional<Found> queue();
  std::optional<Found> look_at(std::size_t place);
  std::optional<Found> call_again(std::size_t place);
  std::unique_ptr<ControlConnection> connect(std::size_t place);
  void forget(std::size_t place);

  const std::vector<PoolHost> hosts_;
  const LeaseOptions wish_;
  const PoolContacts::Order order_;
  const bool hold_;
  const Check check_;
  const Clock::time_point give_up_;
  PoolContacts contacts_;
  bool answered_ = false;                                      // the host that was asked last has, and not by a lease
  bool out_of_reach_ = false;                                  // it was none but hosts that do not answer
  std::vector<Full> full_;                                     // hosts that may have room later
  std::vector<std::size_t> away_;                              // places of hosts that did not answer
  std::map<std::string, std::vector<std::string>> unreached_;  // by pool, hosts that it named and that did not answer
  std::map<std::string, std::vector<Full>> others_;            // members of pools of which one was asked
};

}  // namespace fargpu::client
