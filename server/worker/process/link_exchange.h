#pragma once
// The exchange between sessions by way of the broker, to which the link goes.

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "server/exchange.h"
#include "server/worker_link.h"

namespace fargpu::server {

class LinkExchange final : public Exchange {
 public:
  /// `remembers`: a next broker may come, and hears of all that there is then. Until it does, what is shared counts as
  /// kept.
  LinkExchange(int link, bool remembers) : link_(link), remembers_(remembers) {}

  bool share(const ShareKey& key, const SharedThing& thing, const ShareKey* came_by) override;
  void unshare_event(const ShareKey& key) override;
  /// Waits for the broker.
  void unshare_memory(const ShareKey& key) override;
  /// Waits for the broker, and for the next one.
  std::optional<SharedThing> fetch(const ShareKey& key) override;
  void let_go(const ShareKey& key) override;

  /// What the broker answered. Any thread; takes the descriptor.
  void heard(wire::Fetched::Reader fetched, Descriptor descriptor);
  void heard_unshared(capnp::Data::Reader key);

  /// The link stands still as long as this is held: the next broker takes the place of the present one.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  /// Tells the next broker, on a connection to it, what the session shares and holds. False if it is gone. While held.
  bool recount_to(int next) const;
  /// It has the link from now on. While held.
  void link_changed();

 private:
  struct GivenBack {
    ShareKey key;
    bool own;  // what the session shared, rather than what it fetched
  };
  /// What the session shares, and has not taken back.
  struct Own {
    SharedThing thing;
    std::optional<ShareKey> came_by;
  };
  /// Memory of another session.
  struct Loan {
    int device = -1;
    std::uint64_t bytes = 0;
    std::uint32_t times = 0;
  };
  bool give_back(const GivenBack& what);
  bool send(const GivenBack& what);
  bool broker_gone() const;
  void flush();

  const int link_;
  const bool remembers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GivenBack> given_back_;  // that found no room in the link yet
  std::uint64_t links_ = 0;            // so often the link was changed
  std::uint64_t request_ = 0;          // the latest
  bool answered_ = false;
  std::optional<SharedThing> answer_;
  std::optional<ShareKey> unshares_;  // and waits for the word that it is done
  // Where a next broker may come.
  std::map<ShareKey, Own> shared_;
  std::map<ShareKey, Loan> loans_;
};

}  // namespace fargpu::server
