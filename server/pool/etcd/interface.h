#pragma once
// What the plugin libfargpu-etcd.so offers to the broker that loads it: etcd by gRPC. The plugin and its user may be of
// different builds, and have C++ libraries of their own, so only plain data and functions without exceptions cross
// here.
//
// Threads: a store's functions may be called by any, and return at once, but for open() and close(). Events come on the
// store's own thread. What they are given is valid during the call. Functions that are called there must return soon,
// and must not close the store.

#include <cstddef>
#include <cstdint>

namespace fargpu::etcd {

inline constexpr std::uint32_t interface_version = 1;
inline constexpr std::size_t why_bytes = 1024;  ///< of a text that says why something failed

struct Store;   ///< the members of one etcd, of which one is used at a time
struct Keeper;  ///< a lifetime, etcd's lease, that is kept alive
struct Watch;

struct Bytes {
  const char* at;
  std::size_t size;
};

enum class Failure : std::uint32_t { none, unavailable, lifetime_over, compacted, full, denied, strange };

struct Settings {
  const char* endpoints;     ///< host, host:port, http://host:port or https://host:port; separated by commas
  const char* ca;            ///< file of certificates in PEM form; empty: connections are not encrypted
  const char* certificate;   ///< file of this member's; may be empty
  const char* key;           ///< its key's file
  std::uint32_t timeout_ms;  ///< after which a call has failed
};

struct Entry {
  Bytes key, value;
  std::int64_t created, modified, lifetime;
};

struct Change {
  std::uint32_t deleted;  ///< 1: of the entry, only key and `modified` are told
  Entry entry;
};

struct Condition {
  std::uint32_t modified;  ///< 1: the revision is of the last change, 0: of the creation
  Bytes key;
  std::int64_t revision;
};

struct Operation {
  std::uint32_t erase;  ///< 1, or 0 to put
  Bytes key, value;
  std::int64_t lifetime;
};

/// Of a call. What the call is not about is 0.
struct Answer {
  Failure failure;
  const char* why;        ///< of a failure: with the endpoint
  std::int64_t revision;  ///< of a read or a transaction
  std::uint32_t committed;
  std::int64_t lifetime;  ///< that was begun
  std::uint32_t seconds;  ///< that the store gives it
  std::int64_t asked_ns;  ///< steady clock, when it was asked for
  const Entry* entries;   ///< of a read
  std::size_t count;
  const char* text;       ///< that describes the store
  std::uint64_t cluster;  ///< names the store
};

/// Comes once, also if the store is closed meanwhile.
struct Done {
  void* owner;
  void (*call)(void* owner, const Answer* answer);
};

struct KeeperEvents {
  void* owner;
  /// The lifetime lasts at least until this time of the steady clock. 0: it has ended, and nothing more comes.
  void (*lasts)(void* owner, std::int64_t until_ns);
  void (*freed)(void* owner);  ///< the last event, after stop_keeping() or as the store is closed
};

struct WatchEvents {
  void* owner;
  /// All changes of one or several whole transactions, in their order; the last one's revision.
  void (*changes)(void* owner, const Change* changes, std::size_t count, std::int64_t revision);
  /// No changes come any more.
  void (*failed)(void* owner, Failure failure, const char* why);
  void (*freed)(void* owner);  ///< the last event, after stop_watching() or as the store is closed
};

struct Interface {
  std::uint32_t version;     ///< interface_version of the plugin; the rest of this is that version's
  const char* release;       ///< of fargpu, that the plugin was built with
  const char* (*library)();  ///< gRPC and its version

  /// Connects when there is something to do. Null, with `why`, for settings that can never work.
  Store* (*open)(const Settings* settings, char* why);
  /// Lifetimes that were ended just before are still told of, if the store answers within moments. Calls that wait
  /// fail. No event comes any more.
  void (*close)(Store* store);

  /// All keys that begin with one of the prefixes, by prefix and key, as of one revision.
  void (*read)(Store* store, const Bytes* prefixes, std::size_t count, Done done);
  void (*commit)(Store* store, const Condition* conditions, std::size_t condition_count, const Operation* operations,
                 std::size_t operation_count, Done done);
  void (*describe)(Store* store, Done done);

  void (*begin_lifetime)(Store* store, std::uint32_t seconds, Done done);
  void (*end_lifetime)(Store* store, std::int64_t lifetime);
  /// The answer's lifetime, seconds and asked_ns.
  Keeper* (*keep)(Store* store, std::int64_t lifetime, std::uint32_t seconds, std::int64_t asked_ns,
                  KeeperEvents events);
  void (*stop_keeping)(Store* store, Keeper* keeper);

  Watch* (*watch)(Store* store, Bytes prefix, std::int64_t after, WatchEvents events);
  void (*stop_watching)(Store* store, Watch* watch);
};

/// The one function of the plugin, by this name.
inline constexpr const char* entry_name = "fargpu_etcd_interface";
using EntryPoint = const Interface* (*)();

}  // namespace fargpu::etcd
