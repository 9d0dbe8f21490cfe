#pragma once
// What sessions of this host share with each other, by the keys that their programs know.

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "count.h"
#include "server/worker/exchange.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

/// Used by the broker's one thread.
class Shares {
 public:
  /// `most`: of all workers together, because each may hold a descriptor of this process.
  explicit Shares(std::size_t most) : room_(most) {}

  /// From a worker, with its descriptor, which this takes. Throws ProtocolError if it makes no sense. False if it is too much: then
  /// nothing is shared by the key, as whoever asks for it is told.
  bool add(pid_t worker, const std::string& tenant, wire::Share::Reader share, Descriptor descriptor);
  void remove(pid_t worker, capnp::Data::Reader key);
  /// Everything of a worker.
  void remove_all(pid_t worker);
  /// Null if nothing is shared by this key, or not by a worker that `may` share with the one who asks.
  const SharedThing* find(capnp::Data::Reader key, const std::function<bool(pid_t worker)>& may) const;

 private:
  struct Share {
    pid_t worker = -1;
    Count::Part room;
    SharedThing thing;
  };
  Count room_;
  std::map<ShareKey, Share> shares_;
  std::map<pid_t, std::size_t> counts_;
};

}  // namespace fargpu::server
