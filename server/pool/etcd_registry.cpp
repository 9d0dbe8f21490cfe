#include "etcd_registry.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "etcd/interface.h"
#include "protocol/plugin_folders.h"
#include "protocol/text.h"
#include "protocol/version.h"

namespace fargpu::server::pool {
namespace {

using Kind = RegistryError::Kind;

constexpr const char* file_name = "libfargpu-etcd.so";
// Changes that wait for a reader who is too slow; it reads everything anew.
constexpr std::size_t waiting_bytes_max = 64 << 20;

std::filesystem::path find_plugin() {
  std::error_code error;
  for (const std::filesystem::path& folder : plugin_folders())
    if (std::filesystem::exists(folder / file_name, error)) return folder / file_name;
  throw std::runtime_error(fmt::format("the plugin {} is missing; install the package fargpu-etcd", file_name));
}

const etcd::Interface& load(const std::filesystem::path& path) {
  static std::mutex mutex;
  static std::map<std::string, const etcd::Interface*> loaded;
  const std::lock_guard lock(mutex);
  const etcd::Interface*& functions = loaded[path];
  if (functions) return *functions;
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const error = ::dlerror();
    throw std::runtime_error("the plugin for etcd cannot be loaded: " + printable(error ? error : "?", 512));
  }
  const auto entry = reinterpret_cast<etcd::EntryPoint>(::dlsym(library, etcd::entry_name));
  if (!entry) throw std::runtime_error(path.string() + " is no plugin of fargpu for etcd");
  const etcd::Interface* const found = entry();
  if (found->version != etcd::interface_version || found->release != std::string(our_release)) {
    throw std::runtime_error(fmt::format(
        "{} is of fargpu {}, and this is {}; install fargpu-etcd of this release", path.string(),
        found->version == etcd::interface_version ? printable(found->release, 64) : "of other versions", our_release));
  }
  functions = found;
  return *functions;
}

etcd::Bytes bytes(const std::string& text) { return {text.data(), text.size()}; }
std::string text(const etcd::Bytes& bytes) {
  return bytes.size == 0 ? std::string() : std::string(bytes.at, bytes.size);
}

Entry entry(const etcd::Entry& from) {
  return {text(from.key), text(from.value), from.created, from.modified, from.lifetime};
}

Kind kind(etcd::Failure failure) {
  switch (failure) {
    case etcd::Failure::unavailable: return Kind::unavailable;
    case etcd::Failure::lifetime_over: return Kind::lifetime_over;
    case etcd::Failure::compacted: return Kind::compacted;
    case etcd::Failure::full: return Kind::full;
    case etcd::Failure::denied: return Kind::denied;
    default: return Kind::strange;
  }
}

std::string reason(const char* why) { return printable(why ? why : "etcd does not say why", etcd::why_bytes); }

// Waits are timers that never end, which are cancelled when there is something.
void prepare(asio::steady_timer& timer) { timer.expires_at(asio::steady_timer::time_point::max()); }

asio::awaitable<void> wait(asio::steady_timer& timer) {
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

}  // namespace

// The store, as long as the registry has it. Used on the thread of the io_context.
struct EtcdRegistry::Link {
  const etcd::Interface& functions;
  etcd::Store* store = nullptr;

  etcd::Store* open() const {
    if (!store) throw RegistryError(Kind::unavailable, "etcd is not used any more");
    return store;
  }
};

// --- calls ----------------------------------------------------------------------------------------------------------

class EtcdRegistry::Call : public std::enable_shared_from_this<Call> {
 public:
  struct Result {
    std::optional<RegistryError> failure;
    etcd::Answer answer{};  // without what it points to
    std::vector<Entry> entries;
    std::string text;
  };

  explicit Call(asio::io_context& io) : io_(io), done_(io) { prepare(done_); }

  etcd::Done to_tell() { return {new std::shared_ptr<Call>(shared_from_this()), told}; }

  static asio::awaitable<Result> result(std::shared_ptr<Call> call) {
    while (!call->result_) co_await wait(call->done_);
    if (call->result_->failure) throw RegistryError(*call->result_->failure);
    co_return std::move(*call->result_);
  }

 private:
  static void told(void* owner, const etcd::Answer* answer) {
    const std::unique_ptr<std::shared_ptr<Call>> call(static_cast<std::shared_ptr<Call>*>(owner));
    Result result;
    if (answer->failure != etcd::Failure::none) result.failure.emplace(kind(answer->failure), reason(answer->why));
    result.answer = *answer;
    result.entries.reserve(answer->count);
    for (std::size_t i = 0; i < answer->count; ++i) result.entries.push_back(entry(answer->entries[i]));
    if (answer->text) result.text = printable(answer->text, etcd::why_bytes);
    asio::post((*call)->io_, [call = *call, result = std::move(result)]() mutable {
      call->result_ = std::move(result);
      call->done_.cancel();
    });
  }

  asio::io_context& io_;
  asio::steady_timer done_;
  std::optional<Result> result_;
};

// --- lifetimes ------------------------------------------------------------------------------------------------------

class EtcdRegistry::OwnLifetime final : public Lifetime {
 public:
  OwnLifetime(std::shared_ptr<Link> link, const etcd::Answer& granted)
      : link_(std::move(link)), id_(granted.lifetime), until_(std::make_shared<std::atomic<std::int64_t>>()) {
    *until_ = granted.asked_ns + std::int64_t{granted.seconds} * 1'000'000'000;
    etcd::KeeperEvents events{new Until(until_), lasts, freed};
    keeper_ = link_->functions.keep(link_->store, id_, granted.seconds, granted.asked_ns, events);
  }
  ~OwnLifetime() override {
    if (!link_->store) return;
    link_->functions.stop_keeping(link_->store, keeper_);
    link_->functions.end_lifetime(link_->store, id_);
  }
  std::int64_t id() const override { return id_; }
  bool lasts() const override {
    return link_->store && std::chrono::steady_clock::now().time_since_epoch() < std::chrono::nanoseconds(*until_);
  }

 private:
  using Until = std::shared_ptr<std::atomic<std::int64_t>>;
  static void lasts(void* owner, std::int64_t until_ns) { **static_cast<Until*>(owner) = until_ns; }
  static void freed(void* owner) { delete static_cast<Until*>(owner); }

  const std::shared_ptr<Link> link_;
  const std::int64_t id_;
  const Until until_;  // set by the plugin's thread
  etcd::Keeper* keeper_ = nullptr;
};

// --- watches --------------------------------------------------------------------------------------------------------

class EtcdRegistry::OwnWatch final : public Watch {
 public:
  OwnWatch(asio::io_context& io, std::shared_ptr<Link> link, const std::string& prefix, std::int64_t after)
      : link_(std::move(link)), heard_(std::make_shared<Heard>(io)) {
    etcd::WatchEvents events{new HeardPointer(heard_), changes, failed, freed};
    watch_ = link_->functions.watch(link_->open(), bytes(prefix), after, events);
  }
  ~OwnWatch() override {
    heard_->wanted = false;
    if (link_->store) link_->functions.stop_watching(link_->store, watch_);
  }

  asio::awaitable<Changes> next() override {
    const HeardPointer heard = heard_;
    while (heard->queue.empty()) {
      if (heard->failure) throw RegistryError(*heard->failure);
      co_await wait(heard->something);
    }
    Changes all;
    for (Changes& changes : std::exchange(heard->queue, {})) {
      heard->bytes -= size(changes);
      all.revision = changes.revision;
      std::move(changes.changes.begin(), changes.changes.end(), std::back_inserter(all.changes));
    }
    co_return all;
  }

 private:
  struct Heard {
    explicit Heard(asio::io_context& io) : io(io), something(io) { prepare(something); }
    asio::io_context& io;
    asio::steady_timer something;
    std::deque<Changes> queue;
    std::optional<RegistryError> failure;
    std::atomic<std::size_t> bytes{0};  // that wait
    std::atomic<bool> wanted{true};
  };
  using HeardPointer = std::shared_ptr<Heard>;

  static std::size_t size(const Changes& changes) {
    std::size_t bytes = 0;
    for (const Change& change : changes.changes)
      bytes += sizeof change + change.entry.key.size() + change.entry.value.size();
    return bytes;
  }
  static void end(const HeardPointer& heard, Kind kind, std::string why) {
    asio::post(heard->io, [heard, kind, why = std::move(why)] {
      if (!heard->failure) heard->failure.emplace(kind, why);
      heard->something.cancel();
    });
  }
  static void changes(void* owner, const etcd::Change* changes, std::size_t count, std::int64_t revision) {
    const HeardPointer& heard = *static_cast<HeardPointer*>(owner);
    if (!heard->wanted) return;
    Changes own{{}, revision};
    own.changes.reserve(count);
    for (std::size_t i = 0; i < count; ++i) own.changes.push_back({changes[i].deleted != 0, entry(changes[i].entry)});
    if ((heard->bytes += size(own)) > waiting_bytes_max) {
      heard->wanted = false;
      return end(heard, Kind::compacted, "changes in etcd come faster than they are read");
    }
    asio::post(heard->io, [heard, own = std::move(own)]() mutable {
      heard->queue.push_back(std::move(own));
      heard->something.cancel();
    });
  }
  static void failed(void* owner, etcd::Failure failure, const char* why) {
    end(*static_cast<HeardPointer*>(owner), kind(failure), reason(why));
  }
  static void freed(void* owner) {
    const std::unique_ptr<HeardPointer> heard(static_cast<HeardPointer*>(owner));
    if ((*heard)->wanted) end(*heard, Kind::unavailable, "etcd is not used any more");
  }

  const std::shared_ptr<Link> link_;
  const HeardPointer heard_;
  etcd::Watch* watch_ = nullptr;
};

// --- the registry ---------------------------------------------------------------------------------------------------

EtcdRegistry::EtcdRegistry(asio::io_context& io, const EtcdOptions& options)
    : io_(io), link_(new Link{load(options.plugin.empty() ? find_plugin() : std::filesystem::path(options.plugin))}) {
  const etcd::Settings settings{
      options.endpoints.c_str(), options.ca.c_str(), options.certificate.c_str(), options.key.c_str(),
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(options.timeout.count(), 100, 60'000))};
  std::array<char, etcd::why_bytes> why{};
  link_->store = link_->functions.open(&settings, why.data());
  if (!link_->store) throw std::runtime_error(reason(why.data()));
}

EtcdRegistry::~EtcdRegistry() { link_->functions.close(std::exchange(link_->store, nullptr)); }

asio::awaitable<Snapshot> EtcdRegistry::read(std::vector<std::string> prefixes) {
  std::vector<etcd::Bytes> all;
  for (const std::string& prefix : prefixes) all.push_back(bytes(prefix));
  const auto call = std::make_shared<Call>(io_);
  link_->functions.read(link_->open(), all.data(), all.size(), call->to_tell());
  Call::Result result = co_await Call::result(call);
  // Prefixes are asked for one after the other, and may overlap.
  const auto by_key = [](const Entry& a, const Entry& b) { return a.key < b.key; };
  std::stable_sort(result.entries.begin(), result.entries.end(), by_key);
  const auto same_key = [](const Entry& a, const Entry& b) { return a.key == b.key; };
  result.entries.erase(std::unique(result.entries.begin(), result.entries.end(), same_key), result.entries.end());
  co_return Snapshot{std::move(result.entries), result.answer.revision};
}

asio::awaitable<Outcome> EtcdRegistry::commit(Transaction transaction) {
  std::vector<etcd::Condition> conditions;
  for (const Condition& condition : transaction.conditions)
    conditions.push_back(
        {condition.what == Condition::What::modified ? 1U : 0U, bytes(condition.key), condition.revision});
  std::vector<etcd::Operation> operations;
  for (const Operation& operation : transaction.operations)
    operations.push_back({operation.what == Operation::What::erase ? 1U : 0U, bytes(operation.key),
                          bytes(operation.value), operation.lifetime});
  const auto call = std::make_shared<Call>(io_);
  link_->functions.commit(link_->open(), conditions.data(), conditions.size(), operations.data(), operations.size(),
                          call->to_tell());
  const Call::Result result = co_await Call::result(call);
  co_return Outcome{result.answer.committed != 0, result.answer.revision};
}

asio::awaitable<std::unique_ptr<Lifetime>> EtcdRegistry::begin_lifetime(std::chrono::seconds seconds) {
  const std::shared_ptr<Link> link = link_;
  const auto call = std::make_shared<Call>(io_);
  link->functions.begin_lifetime(link->open(), static_cast<std::uint32_t>(seconds.count()), call->to_tell());
  const Call::Result result = co_await Call::result(call);
  link->open();
  co_return std::make_unique<OwnLifetime>(link, result.answer);
}

std::unique_ptr<Watch> EtcdRegistry::watch(std::string prefix, std::int64_t after) {
  return std::make_unique<OwnWatch>(io_, link_, prefix, after);
}

asio::awaitable<std::string> EtcdRegistry::describe() {
  const auto call = std::make_shared<Call>(io_);
  link_->functions.describe(link_->open(), call->to_tell());
  const Call::Result result = co_await Call::result(call);
  co_return result.text;
}

asio::awaitable<std::string> EtcdRegistry::identity() {
  const auto call = std::make_shared<Call>(io_);
  link_->functions.describe(link_->open(), call->to_tell());
  const Call::Result result = co_await Call::result(call);
  co_return fmt::format("{:016x}", result.answer.cluster);
}

}  // namespace fargpu::server::pool
