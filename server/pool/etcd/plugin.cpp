#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <new>

#include "interface.h"
#include "log.h"
#include "store.h"

namespace fargpu::etcd {
namespace {

std::string text(const Bytes& bytes) { return bytes.size == 0 ? std::string() : std::string(bytes.at, bytes.size); }

const char* library() {
  static const std::string name = "gRPC " + grpc::Version();
  return name.c_str();
}

Store* open(const Settings* settings, char* why) {
  std::string reason;
  const bool has_ca = settings->ca && *settings->ca;
  std::optional<std::vector<Address>> addresses = read_endpoints(settings->endpoints, has_ca, reason);
  const auto named = [](const char* file) { return file && *file; };
  if (addresses && named(settings->certificate) != named(settings->key)) {
    reason = "a certificate for etcd goes with its key";
    addresses.reset();
  }
  if (!addresses) {
    std::snprintf(why, why_bytes, "%s", reason.c_str());
    return nullptr;
  }
  // gRPC is never ended: it would end threads that others may be in.
  static const bool begun = (catch_log(), grpc_init(), true);
  (void)begun;
  return new Store(std::move(*addresses), *settings);
}

void close(Store* store) { delete store; }

void read(Store* store, const Bytes* prefixes, std::size_t count, Done done) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(text(prefixes[i]));
  store->post([store, all = std::move(all), done] { store->read(all, done); });
}

void commit(Store* store, const Condition* conditions, std::size_t condition_count, const Operation* operations,
            std::size_t operation_count, Done done) {
  pb::TxnRequest request;
  for (std::size_t i = 0; i < condition_count; ++i) {
    pb::Compare& compare = *request.add_compare();
    compare.set_result(pb::Compare::EQUAL);
    compare.set_key(conditions[i].key.at, conditions[i].key.size);
    if (conditions[i].modified) {
      compare.set_target(pb::Compare::MOD);
      compare.set_mod_revision(conditions[i].revision);
    } else {
      compare.set_target(pb::Compare::CREATE);
      compare.set_create_revision(conditions[i].revision);
    }
  }
  for (std::size_t i = 0; i < operation_count; ++i) {
    const Operation& operation = operations[i];
    pb::RequestOp& added = *request.add_success();
    if (operation.erase) {
      added.mutable_request_delete_range()->set_key(text(operation.key));
    } else {
      pb::PutRequest& put = *added.mutable_request_put();
      put.set_key(text(operation.key));
      put.set_value(text(operation.value));
      put.set_lease(operation.lifetime);
    }
  }
  store->post([store, request = std::move(request), done] { store->commit(request, done); });
}

void describe(Store* store, Done done) {
  store->post([store, done] { store->describe(done); });
}

void begin_lifetime(Store* store, std::uint32_t seconds, Done done) {
  store->post([store, seconds, done] { store->begin_lifetime(seconds, done); });
}

void end_lifetime(Store* store, std::int64_t lifetime) {
  store->post([store, lifetime] { store->end_lifetime(lifetime); });
}

Keeper* keep(Store* store, std::int64_t lifetime, std::uint32_t seconds, std::int64_t asked_ns, KeeperEvents events) {
  Keeper* const keeper = new Keeper;
  keeper->id = lifetime;
  keeper->seconds = std::chrono::seconds(seconds);
  keeper->until = Clock::time_point(std::chrono::nanoseconds(asked_ns)) + keeper->seconds;
  keeper->events = events;
  store->post([store, keeper] { store->keep(keeper); });
  return keeper;
}

void stop_keeping(Store* store, Keeper* keeper) {
  store->post([store, keeper] { store->stop_keeping(keeper); });
}

Watch* watch(Store* store, Bytes prefix, std::int64_t after, WatchEvents events) {
  Watch* const watch = new Watch;
  watch->prefix = text(prefix);
  watch->next = after + 1;
  watch->events = events;
  store->post([store, watch] { store->watch(watch); });
  return watch;
}

void stop_watching(Store* store, Watch* watch) {
  store->post([store, watch] { store->stop_watching(watch); });
}

}  // namespace

constexpr Interface interface {
  .version = interface_version, .release = FARGPU_VERSION, .library = library, .open = open, .close = close,
  .read = read, .commit = commit, .describe = describe, .begin_lifetime = begin_lifetime, .end_lifetime = end_lifetime,
  .keep = keep, .stop_keeping = stop_keeping, .watch = watch, .stop_watching = stop_watching,
};

}  // namespace fargpu::etcd

extern "C" __attribute__((visibility("default"))) const fargpu::etcd::Interface* fargpu_etcd_interface() {
  return &fargpu::etcd::interface;
}
