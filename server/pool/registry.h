#pragma once
// What a pool's members agree by: a small ordered store of keys whose changes all of them see, such as etcd. Revisions
// count its changes; a transaction is one change.

#include <asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fargpu::server::pool {

struct Entry {
  std::string key, value;
  std::int64_t created = 0;   ///< revision
  std::int64_t modified = 0;  ///< revision
  std::int64_t lifetime = 0;  ///< that it is bound to; 0: none
};

struct Snapshot {
  std::vector<Entry> entries;  ///< by key
  std::int64_t revision = 0;   ///< as of which all of them are
};

struct Change {
  bool deleted = false;
  Entry entry;  ///< of a deleted one: its key, and the revision of that as `modified`
};

/// All changes of one or several whole transactions, in their order.
struct Changes {
  std::vector<Change> changes;
  std::int64_t revision = 0;  ///< of the last of them
};

/// What must hold for a transaction to take place.
struct Condition {
  enum class What { created, modified };
  What what;
  std::string key;
  std::int64_t revision;  ///< 0: there is no such key
};

struct Operation {
  enum class What { put, erase };
  What what;
  std::string key;
  std::string value;
  std::int64_t lifetime = 0;  ///< that the key is bound to from now on; 0: none
};

/// At most `transaction_max` conditions and as many operations, each key in one operation.
struct Transaction {
  std::vector<Condition> conditions;
  std::vector<Operation> operations;

  void require_created(std::string key, std::int64_t revision) {
    conditions.push_back({Condition::What::created, std::move(key), revision});
  }
  void require_modified(std::string key, std::int64_t revision) {
    conditions.push_back({Condition::What::modified, std::move(key), revision});
  }
  void require_absent(std::string key) { require_created(std::move(key), 0); }
  void put(std::string key, std::string value, std::int64_t lifetime = 0) {
    operations.push_back({Operation::What::put, std::move(key), std::move(value), lifetime});
  }
  void erase(std::string key) { operations.push_back({Operation::What::erase, std::move(key), {}, 0}); }
};
inline constexpr std::size_t transaction_max = 128;

struct Outcome {
  bool committed = false;     ///< false: a condition did not hold, and nothing has changed
  std::int64_t revision = 0;  ///< of the change, or as of which the condition did not hold
};

struct RegistryError : std::runtime_error {
  enum class Kind {
    unavailable,    ///< nobody answers in time. A transaction may have taken place or not
    lifetime_over,  ///< a transaction names a lifetime that has ended; nothing has changed
    compacted,      ///< a watch asks for changes that are forgotten; read everything anew
    full,           ///< the store takes no more
    denied,         ///< wrong certificate, or a key that this user may not touch
    strange,        ///< the store answers what it should not
  };
  RegistryError(Kind kind, const std::string& what) : std::runtime_error(what), kind(kind) {}
  Kind kind;
};

/// Keys that are bound to it vanish when it ends: when this object goes, or some seconds after the store was last heard
/// of. The store is told again and again that it goes on.
class Lifetime {
 public:
  virtual ~Lifetime() = default;
  virtual std::int64_t id() const = 0;
  /// False once the store has said that it has ended, or has not confirmed it in time.
  virtual bool lasts() const = 0;
};

class Watch {
 public:
  virtual ~Watch() = default;
  /// Waits for changes, all of them in order. One caller at a time. Throws RegistryError when some may be missing.
  virtual asio::awaitable<Changes> next() = 0;
};

/// All functions are called, and go on, on the one thread of the io_context that it was made with. Those that wait
/// throw RegistryError, after a few seconds at the latest. What they return lives no longer than the registry.
class Registry {
 public:
  virtual ~Registry() = default;
  /// All keys that begin with one of these, as of one revision. Up to date when it is asked.
  virtual asio::awaitable<Snapshot> read(std::vector<std::string> prefixes) = 0;
  virtual asio::awaitable<Outcome> commit(Transaction transaction) = 0;
  /// `seconds`: without a word to the store, after which it ends.
  virtual asio::awaitable<std::unique_ptr<Lifetime>> begin_lifetime(std::chrono::seconds seconds) = 0;
  /// What changes after this revision among keys that begin so.
  virtual std::unique_ptr<Watch> watch(std::string prefix, std::int64_t after) = 0;
  /// Of the store, as for people: its product, version and number.
  virtual asio::awaitable<std::string> describe() = 0;
  /// Names the store: another one, also one that was set up again from a copy, has another name. (etcd: the cluster
  /// id.)
  virtual asio::awaitable<std::string> identity() = 0;
};

}  // namespace fargpu::server::pool
