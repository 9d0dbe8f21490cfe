#pragma once
// The exchange between sessions by way of the broker, to which the link goes.

#include <condition_variable>
#include <mutex>

#include "exchange.h"
#include "server/worker_link.h"

namespace fargpu::server {

class LinkExchange final : public Exchange {
 public:
  explicit LinkExchange(int link) : link_(link) {}

  bool share(const ShareKey& key, const SharedThing& thing) override;
  void unshare(const ShareKey& key) override;
  /// Waits for the broker.
  std::optional<SharedThing> fetch(const ShareKey& key) override;

  /// What the broker answered. Any thread; takes the descriptor.
  void heard(wire::Fetched::Reader fetched, Descriptor descriptor);

 private:
  void flush();

  const int link_;
  std::vector<ShareKey> unshares_;  // that found no room in the link yet
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t request_ = 0;  // the latest
  bool answered_ = false;
  std::optional<SharedThing> answer_;
};

}  // namespace fargpu::server
