#pragma once
// The exchange between sessions by way of the broker, to which the link goes.

#include <condition_variable>
#include <mutex>

#include "server/exchange.h"
#include "server/worker_link.h"

namespace fargpu::server {

class LinkExchange final : public Exchange {
 public:
  explicit LinkExchange(int link) : link_(link) {}

  bool share(const ShareKey& key, const SharedThing& thing, const ShareKey* came_by) override;
  void unshare_event(const ShareKey& key) override { give_back({key, true}); }
  /// Waits for the broker.
  void unshare_memory(const ShareKey& key) override;
  /// Waits for the broker.
  std::optional<SharedThing> fetch(const ShareKey& key) override;
  void let_go(const ShareKey& key) override { give_back({key, false}); }

  /// What the broker answered. Any thread; takes the descriptor.
  void heard(wire::Fetched::Reader fetched, Descriptor descriptor);
  void heard_unshared(capnp::Data::Reader key);

 private:
  struct GivenBack {
    ShareKey key;
    bool own;  // what the session shared, rather than what it fetched
  };
  bool give_back(const GivenBack& what);
  bool send(const GivenBack& what);
  void flush();

  const int link_;
  std::vector<GivenBack> given_back_;  // that found no room in the link yet
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t request_ = 0;  // the latest
  bool answered_ = false;
  std::optional<SharedThing> answer_;
  std::optional<ShareKey> unshares_;  // and waits for the word that it is done
};

}  // namespace fargpu::server
