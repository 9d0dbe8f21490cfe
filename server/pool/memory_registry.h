#pragma once
// A registry in the process, as etcd is one: for tests and simulations, with the faults that they want.

#include <asio.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "registry.h"

namespace fargpu::server::pool {

class MemoryWatch;
class MemoryRegistry;

/// What several registries, of one member each, have in common.
class MemoryStore {
 public:
  /// Without a word: as if its holder had been silent for too long. All its keys go as one change.
  void end_lifetime(std::int64_t id);
  /// Forgets changes up to this revision.
  void compact(std::int64_t revision);
  std::int64_t revision() const { return now_.revision; }
  std::size_t keys() const { return now_.entries.size(); }
  /// Of lifetimes that last.
  std::vector<std::int64_t> lifetimes() const;

  struct Copy {
    std::map<std::string, Entry> entries;
    std::map<std::int64_t, std::set<std::string>> lifetimes;  ///< with their keys
    std::int64_t revision = 1;
  };
  Copy copy() const { return now_; }
  /// The store as it was. Its name may be another one after that.
  void restore(Copy copy, bool renames = false);

 private:
  friend MemoryWatch;
  friend MemoryRegistry;
  /// Changes that are remembered for watches that begin in the past.
  static constexpr std::size_t past_max = 10'000;

  Outcome commit(const Transaction& transaction);
  void put(const Operation& operation, Changes& changes);
  void erase(const std::string& key, Changes& changes);
  void tell(Changes changes);
  std::int64_t begin_lifetime();
  void add(MemoryWatch& watch);
  void remove(MemoryWatch& watch);

  Copy now_;
  std::uint64_t name_ = 1;
  std::int64_t last_lifetime_ = 7'000'000;
  std::int64_t compacted_ = 0;
  std::uint64_t last_watch_ = 0;
  std::deque<Changes> past_;
  std::map<std::string, std::vector<MemoryWatch*>, std::less<>> watches_;  // by prefix
  std::map<std::size_t, std::size_t> prefix_sizes_;                        // with their watches
};

/// One member's way to the store.
class MemoryRegistry final : public Registry {
 public:
  explicit MemoryRegistry(asio::io_context& io, std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>());
  ~MemoryRegistry() override;
  MemoryStore& store() { return *store_; }

  /// Whether the store cannot be reached. Calls fail, watches end, and lifetimes are not confirmed; they last in the
  /// store until it is told to end them.
  void cut_off(bool is);
  /// So many reads were asked for.
  std::uint64_t reads() const { return reads_; }
  /// How long a call takes, and a change until it is seen.
  void delay(std::chrono::microseconds time) { delay_ = time; }
  /// So many of the next transactions take place, and nothing says so.
  void lose_answers(unsigned commits) { lost_answers_ = commits; }
  /// So many of the next calls fail in this way, and do nothing.
  void fail(RegistryError::Kind kind, unsigned calls) {
    failure_ = kind;
    failures_ = calls;
  }

  asio::awaitable<Snapshot> read(std::vector<std::string> prefixes) override;
  asio::awaitable<Outcome> commit(Transaction transaction) override;
  asio::awaitable<std::unique_ptr<Lifetime>> begin_lifetime(std::chrono::seconds seconds) override;
  std::unique_ptr<Watch> watch(std::string prefix, std::int64_t after) override;
  asio::awaitable<std::string> describe() override;
  asio::awaitable<std::string> identity() override;

 private:
  friend MemoryWatch;
  class OwnLifetime;
  struct Link {
    bool cut_off = false;
    std::chrono::steady_clock::time_point since;
  };

  asio::awaitable<void> pass();
  /// Throws if the store went back since it was last heard of.
  void look_back();

  asio::io_context& io_;
  const std::shared_ptr<MemoryStore> store_;
  const std::shared_ptr<Link> link_;
  std::chrono::microseconds delay_{0};
  unsigned lost_answers_ = 0, failures_ = 0;
  std::uint64_t reads_ = 0;
  RegistryError::Kind failure_ = RegistryError::Kind::unavailable;
  std::int64_t seen_ = 0;
  std::uint64_t name_seen_ = 0;
  std::set<MemoryWatch*> watches_;
};

}  // namespace fargpu::server::pool
