#pragma once
// Connections whose clients have asked for no session yet. The broker does not know them, so that what they can cost is
// bounded.

#include <cstddef>
#include <list>
#include <string>

#include "connection_failures.h"
#include "settings.h"

namespace fargpu::server {

class PendingConnection {
 public:
  /// Where it is from, by which connections are counted: an address, or a user of this machine.
  virtual const std::string& source() const = 0;
  /// Closes it.
  virtual void cut(const std::string& why) = 0;

 protected:
  ~PendingConnection() = default;
};

/// Where there are too many, in all or of one source, the one that has said nothing for the longest makes room. Used by
/// the broker's one thread.
class PendingConnections {
 public:
  using Place = std::list<PendingConnection*>::iterator;
  explicit PendingConnections(const Settings& settings);

  /// How many there may be at once.
  std::size_t most() const { return most_; }
  /// Whether connections from there are not heard at present, because too many came to nothing.
  bool shut_out(const std::string& source) const;
  void make_room();
  /// Makes room for one more connection from this source.
  void make_room_for(const std::string& source);

  Place add(PendingConnection& connection) { return pending_.insert(pending_.end(), &connection); }
  void spoke(Place place) { pending_.splice(pending_.end(), pending_, place); }
  void remove(Place place) { pending_.erase(place); }
  bool none() const { return pending_.empty(); }

  /// A connection came to nothing: says so in the log, unless that is full of its source already.
  void failed(const char* event, const std::string& peer, const std::string& source, const std::string& reason);

 private:
  const Settings& settings_;
  const std::size_t most_;
  ConnectionFailures failures_;
  std::list<PendingConnection*> pending_;  // the one that spoke last is last
};

}  // namespace fargpu::server
