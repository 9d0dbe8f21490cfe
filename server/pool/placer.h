#pragma once
// Places the leases of a whole pool, while its host is the elected placer.

#include <asio.hpp>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "placement.h"
#include "records.h"
#include "registry.h"

namespace fargpu::server::pool {

/// For the log: an event, and what belongs to it.
using Log = std::function<void(bool warning, const std::string& event,
                               const std::vector<std::pair<std::string, std::string>>&)>;

/// Reads the whole pool, follows its changes, and commits decisions in rounds. A transaction of its names the revision
/// by which it was elected, so that nothing of it takes place once another one is.
class Placer : public std::enable_shared_from_this<Placer> {
 public:
  Placer(asio::io_context& io, Registry& registry, Keys keys, std::int64_t elected, Log log);

  /// Until it is not the placer any more, or stop(). Throws RegistryError.
  asio::awaitable<void> run();
  void stop();
  const PlacerCounts& counts() const { return counts_; }

 private:
  using Clock = Placement::Clock;

  void apply(const Change& change);
  void enter(const Entry& entry);
  void forget(const std::string& key);
  asio::awaitable<void> follow(std::int64_t after);
  asio::awaitable<void> decide();
  /// False: nothing has changed.
  asio::awaitable<bool> commit(std::span<const Placement::Decision> decisions);
  asio::awaitable<void> commit_each(std::vector<Placement::Decision> decisions);
  asio::awaitable<void> doubt_hosts(const Placement::Decision& decision);
  void entered(const Placement::Decision& decision, std::int64_t revision);
  asio::awaitable<void> pause(std::chrono::milliseconds most);
  void poke();
  void fail(std::exception_ptr failure);

  asio::io_context& io_;
  Registry& registry_;
  const Keys keys_;
  const std::int64_t elected_;
  const Log log_;
  Placement placement_;
  PlacerCounts counts_;
  asio::steady_timer wake_;
  std::int64_t followed_ = 0;  // all changes up to this revision are known
  bool poked_ = false;
  bool over_ = false;
  std::exception_ptr failure_;
};

}  // namespace fargpu::server::pool
