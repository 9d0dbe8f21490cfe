#include "broker.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "event_log.h"
#include "host_facts.h"
#include "mps.h"
#include "pool_address.h"
#include "pool_registry.h"
#include "pool_status.h"
#include "protocol/host_name.h"
#include "protocol/text.h"
#include "take_over.h"

namespace fargpu::server {
namespace {

constexpr auto stop_patience = std::chrono::seconds(5);
constexpr auto stop_look = std::chrono::milliseconds(200);
constexpr auto leave_patience = std::chrono::seconds(1);
constexpr auto leave_look = std::chrono::milliseconds(2);
constexpr auto pool_leave_max = std::chrono::seconds(2);

}  // namespace

Broker::Broker(asio::io_context& io, const Settings& settings)
    : io_(io),
      settings_(settings),
      pending_(settings),
      leases_(settings.sessions_max),
      succession_(settings.runtime_folder),
      workers_(io, settings, succession_),
      tickets_(io, workers_, std::chrono::seconds(settings.handshake_seconds)),
      device_watch_(io, settings.nvml),
      memory_watch_(io, settings, workers_, device_watch_),
      status_(settings, leases_, workers_, device_watch_),
      patient_(pending_.most()),
      listeners_(
          io, settings, service_manager_,
          {.by_tcp = [this](asio::ip::tcp::socket socket, Transport transport) { meet(std::move(socket), transport); },
           .by_socket =
               [this](asio::local::stream_protocol::socket socket) { meet(std::move(socket), Transport::plain); },
           .trouble = [this] { pending_.make_room(); }}),
      signals_(io),
      stop_timer_(io),
      expiry_watch_(io, settings),
      patience_(settings.drain_seconds),
      registry_(settings.pool.empty() ? nullptr : open_registry(io, settings)),
      pool_(registry_ ? make_pool_host() : nullptr) {
  signals_.add(SIGCHLD);
  leases_.set_tenants(Tenants::read(settings.file));
  take_identity(std::make_unique<Identity>(settings));
  ExpiryWatch::require_valid(settings, std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
  // Leases name devices by their places. So those stay what they are while a lease lasts, also when the driver loses a
  // device.
  workers_.refuse_facts = [this](wire::HostFacts::Reader facts) -> std::string {
    const auto known = workers_.facts();
    if (!known || leases_.all().empty() || same_devices(*known, facts)) return "";
    return fmt::format(
        "it sees {}, and not those that leases are of; they become this host's when the leases have ended",
        so_many(facts.getDevices().size(), "device"));
  };
  workers_.on_facts = [this] {
    std::vector<std::uint64_t> memory_bytes;
    for (const auto device : workers_.facts()->getDevices()) memory_bytes.push_back(device.getMemoryBytes());
    const bool news = !leases_.knows_devices();
    if (news) warn_of_oversubscription(memory_bytes);
    leases_.set_devices(std::move(memory_bytes), workers_.sm_groups(), settings_.oversubscription());
    if (news) warn_of_tenants();
    if (!news) tell_pool();
  };
  workers_.on_end = [this](const Worker& gone) {
    tickets_.worker_ended(gone);
    if (stopping() && workers_.all().empty()) finish_stop("every session has ended");
  };
  asio::co_spawn(io_, memory_watch_.run(), asio::detached);
  const auto wait = std::make_shared<std::function<void()>>();
  *wait = [this, wait] {
    signals_.async_wait([this, wait](const asio::error_code& error, int) {
      if (error) return;
      workers_.reap();
      (*wait)();
    });
  };
  (*wait)();
}

void Broker::take_identity(std::unique_ptr<Identity> identity) {
  tls_.reset();
  if (const TlsContext& context = identity->context()) {
    SSL_CTX_up_ref(context.get());  // what is made of it takes one
    tls_ = std::make_shared<asio::ssl::context>(context.get());
  }
  identity_ = std::move(identity);
}

// What was written for nobody. A device may come back and a tenant be added: it is no reason not to serve the others.
void Broker::warn_of_tenants() {
  const auto have = workers_.facts()->getDevices().size();
  for (const auto& [name, tenant] : leases_.tenants().all()) {
    for (const unsigned device : tenant.devices) {
      if (device < have) continue;
      EventLog::warn(
          "no such device",
          {{"tenant", name},
           {"device", device},
           {"devices", have},
           {"meaning", "devices of a tenant are places among those offered, from 0; without one it is refused"}});
    }
    if (const std::string missing = tenant.mps.empty() ? "" : mps_complaint(tenant.mps); !missing.empty())
      EventLog::warn("no MPS daemon",
                     {{"tenant", name}, {"reason", missing}, {"meaning", "this tenant is refused until there is one"}});
    if (const std::string& policy = workers_.scheduling().rules().policy; tenant.sm_partitions && policy != "free")
      EventLog::warn("partitions by turns",
                     {{"tenant", name},
                      {"policy", policy},
                      {"meaning",
                       "a lease has its own multiprocessors only while it has its turn, and the others' are idle then; "
                       "sm_partitions goes with policy = \"free\""}});
  }
  if (settings_.worker_user.empty() && ::geteuid() == 0 && leases_.tenants().configured())
    EventLog::warn("workers run as root",
                   {{"meaning",
                     "a worker in an attacker's hands could read what root may read, tokens and keys among it; name a "
                     "user of their own by worker_user"}});
  warn_of_ways_in();
  try {
    for (const site::TokenEntry& stray : identity_->strays(leases_.tenants()))
      EventLog::warn(
          "token of no tenant",
          {{"token", stray.name},
           {"tenant", stray.tenant},
           {"meaning", "clients that show it are refused until the settings have [tenant." + stray.tenant + "]"}});
  } catch (const site::TokenError& error) {
    EventLog::error("no tokens", {{"reason", error.what()}});
  }
}

void Broker::warn_of_ways_in() const {
  if (const std::string complaint = identity_->complaint(leases_.tenants()); !complaint.empty())
    EventLog::warn("no way in", {{"meaning", complaint}});
}

// A session that makes room leaves before the other one returns.
void Broker::warn_of_oversubscription(const std::vector<std::uint64_t>& memory_bytes) const {
  double needed = 0;
  for (const std::uint64_t bytes : memory_bytes) needed += static_cast<double>(bytes) * settings_.oversubscription();
  if (settings_.oversubscription() > 1 &&
      static_cast<double>(settings_.evicted_bytes_max + settings_.evicted_disk_bytes_max) < needed)
    EventLog::warn("little memory for evicted sessions",
                   {{"evicted_bytes_max", bytes_text(settings_.evicted_bytes_max)},
                    {"evicted_disk_bytes_max", bytes_text(settings_.evicted_disk_bytes_max)},
                    {"enough_in_any_case", bytes_text(static_cast<std::uint64_t>(needed))},
                    {"meaning",
                     "where leases hold all that memory_oversubscription promises them, a session may wait "
                     "until another one ends"}});
}

void Broker::reload() {
  reloaded_ = false;
  try {
    std::vector<std::string> arguments = settings_.arguments;
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    Settings fresh;
    int exit_code = 0;
    read_settings(static_cast<int>(words.size()), words.data(), fresh, exit_code);
    if (fresh.file.empty() && !settings_.file.empty())
      throw SettingsError(settings_.file + ": the file is gone");  // else everybody had no limits
    Tenants tenants = Tenants::read(fresh.file);
    auto identity = std::make_unique<Identity>(settings_);
    ExpiryWatch::require_valid(settings_, std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
    if (tls_ && !identity->context())
      throw SettingsError("the addresses speak TLS, and the settings have neither a certificate nor keys any more");
    take_identity(std::move(identity));
    leases_.set_tenants(std::move(tenants));
    tell_pool();
    patience_ = std::chrono::seconds(fresh.drain_seconds);
    reloaded_ = true;
    EventLog::info("reloaded", {{"file", fresh.file}});
    if (const auto changed = changed_settings(settings_, fresh); !changed.empty())
      EventLog::warn("not in use yet", {{"settings", fmt::format("{}", fmt::join(changed, ", "))},
                                        {"meaning",
                                         "the file has other values for these than this fargpud; they count "
                                         "after a restart"}});
    if (leases_.knows_devices()) warn_of_tenants();
    expiry_watch_.look();
  } catch (const std::exception& error) {
    EventLog::error("not reloaded", {{"reason", error.what()}, {"meaning", "everything stays as it was"}});
  }
}

void Broker::listen() {
  if (!settings_.metrics_listen.empty())
    metrics_ = std::make_unique<MetricsServer>(
        io_, settings_.metrics_listen, settings_.insecure,
        MetricsServer::Pages{.metrics =
                                 [this] {
                                   return status_.metrics({admissions_, state_, reloaded_, expiry_watch_.certificates(),
                                                           expiry_watch_.tokens(ServiceFacts::tokens_max),
                                                           pool_metrics()});
                                 },
                             .trouble = [this] { return trouble(); }});
  listeners_.open(parse_listen(settings_.listen), tls_ != nullptr);
  if (settings_.shared_memory && listeners_.any_by_tcp())
    listeners_.open_socket(std::string(1, '\0') + local_keys_.socket_name());
  expiry_watch_.start();
  if (pool_) {
    std::string address = settings_.pool_address;
    if (address.empty()) address = listeners_.address_for_clients(host_name());
    if (address.empty())
      throw SettingsError(
          "pool: clients of other machines reach no address of this host; add one to listen, or give pool_address");
    asio::co_spawn(io_, look_at_pool_address(address, settings_.listen, encrypts()), asio::detached);
    pool_->start(std::move(address));
  }
  service_manager_.tell("READY=1\nSTATUS=serving");
}

void Broker::check() {
  const auto may_be_in_use = [](const auto& try_it) {
    try {
      try_it();
    } catch (const AddressInUse& busy) {  // by the fargpud that runs while its settings are checked
      EventLog::warn("address in use", {{"reason", busy.what()}});
    } catch (const AddressMissing& missing) {
      throw SettingsError(missing.what());
    }
  };
  if (const std::string& address = settings_.metrics_listen; !address.empty())
    may_be_in_use([&] { MetricsServer::check(io_, address, settings_.insecure); });
  for (const ListenAddress& address : parse_listen(settings_.listen))
    may_be_in_use([&] { listeners_.check(address, tls_ != nullptr); });
  warn_of_ways_in();
  expiry_watch_.look();
}

std::string Broker::trouble() const {
  if (const std::string refusal = state_.refusal(std::chrono::system_clock::now()); !refusal.empty()) return refusal;
  if (!workers_.failure().empty()) return "no worker can be started: " + workers_.failure();
  return pool_ && settings_.pool_outage != "local" ? pool_->why_no_leases() : "";
}

bool Broker::much_is_given_back(const std::string& tenant) const {
  const Tenant* const asking = leases_.tenants().find(tenant);
  const auto facts = workers_.facts();
  return facts && workers_.giving_back([&](const Lease& lease, unsigned device) {
    std::uint64_t all = facts->getDevices()[device].getMemoryBytes();
    if (asking && asking->memory_bytes != 0 && lease.tenant == tenant) all = std::min(all, asking->memory_bytes);
    return std::max<std::uint64_t>(1, all / 4);
  });
}

bool Broker::sessions_are_ending() const {
  if (workers_.giving_back([](const Lease&, unsigned) { return std::uint64_t{0}; })) return true;
  const auto leases = leases_.all();
  const auto now = std::chrono::steady_clock::now();
  // What a job left running behind it is none that ends.
  return std::any_of(leases.begin(), leases.end(),
                     [&](const auto& lease) { return lease->left && now < *lease->left + giving_back_max; });
}

// That of its job, or of the session that the same process has.
std::shared_ptr<const Lease> Broker::lease_of(const ClientFacts& client, const std::optional<JobKey>& job) const {
  if (job) return leases_.find(client.tenant, *job);
  for (const Worker& worker : workers_.all()) {
    const ClientFacts& other = worker.client;
    if (worker.state == Worker::State::session && other.tenant == client.tenant &&
        other.process_id == client.process_id && other.host_name == client.host_name && other.program == client.program)
      return worker.lease->shared();
  }
  return nullptr;
}

// The devices of a lease, unless those are all: then workers that are kept ready will do. Under MPS the lease's
// percentage is that of the multiprocessors that its kernels may be on: by number, or so many as MPS chooses, of which
// no driver makes groups.
WorkerProfile Broker::profile(Environment environment, const Lease& lease) const {
  if (!lease.mps.empty()) {
    environment["CUDA_MPS_PIPE_DIRECTORY"] = lease.mps;
    if (lease.sm_groups.empty() && lease.compute_percent > 0 && lease.compute_percent < scheduler::percent_max)
      environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = std::to_string(lease.compute_percent);
  }
  const bool all = lease.devices.size() == workers_.facts()->getDevices().size();
  return {std::move(environment), all ? std::vector<unsigned>{} : lease.devices, lease.sm_groups};
}

bool Broker::may_administer(const std::string& name, bool near) const {
  if (!leases_.tenants().configured()) return near;
  const Tenant* const tenant = leases_.tenants().find(name);
  return tenant && tenant->administrator;
}

std::string Broker::administer(const ClientFacts& by, wire::AdministrationRequest::Reader request) {
  const auto now = std::chrono::system_clock::now();
  if (request.isEndSession()) {
    const std::uint64_t session = request.getEndSession();
    if (!workers_.end(session, "an administrator of the host has ended it"))
      return "there is no session " + std::to_string(session) + "; `fargpu ls` shows those that run";
    EventLog::info("session ended by request",
                   {{"session", session}, {"tenant", by.tenant}, {"identity", by.identity}});
    return "";
  }
  if (request.isEvict()) {
    std::string wrong = workers_.evictions().evict(request.getEvict());
    if (wrong.empty())
      EventLog::info("eviction by request",
                     {{"session", request.getEvict()}, {"tenant", by.tenant}, {"identity", by.identity}});
    return wrong;
  }
  if (request.isDrain()) {
    const std::uint64_t asked =
        std::min<std::uint64_t>(request.getDrain(), std::chrono::seconds(ServiceState::drain_max).count() + 1);
    std::string wrong = state_.drain(now, asked == 0 ? std::nullopt : std::optional(std::chrono::seconds(asked)));
    if (!wrong.empty()) return wrong;
    EventLog::info(
        "drained",
        {{"seconds", asked}, {"sessions", workers_.sessions()}, {"tenant", by.tenant}, {"identity", by.identity}});
    service_manager_.tell("STATUS=drained: no new sessions");
    leases_.wake();
    tell_pool();
    return "";
  }
  if (request.isResume()) {
    std::string wrong = state_.resume(now);
    if (!wrong.empty()) return wrong;
    EventLog::info("resumed", {{"tenant", by.tenant}, {"identity", by.identity}});
    service_manager_.tell("STATUS=serving");
    tell_pool();
    return "";
  }
  Scheduling& scheduling = workers_.scheduling();
  if (request.isPolicy()) {
    scheduler::Rules rules = scheduling.rules();
    rules.policy = printable(request.getPolicy().cStr());
    if (!scheduler::make_policy(rules))
      return "there is no policy '" + rules.policy + "'; use free, fair, fixed or exclusive";
    scheduling.set_rules(rules);
    EventLog::info("policy", {{"policy", rules.policy}, {"tenant", by.tenant}, {"identity", by.identity}});
    return "";
  }
  if (!request.isShare()) return "the request names nothing that can be changed";
  const auto change = request.getShare();
  const auto view = scheduling.view(change.getSession());
  if (!view) return "there is no session " + std::to_string(change.getSession());
  scheduler::Share share = view->share;
  if (change.getComputePercent() != 0) share.percent = change.getComputePercent();
  if (change.getWeight() != 0) share.weight = change.getWeight();
  if (const std::string wrong = scheduler::complaint(share); !wrong.empty()) return wrong;
  scheduling.change(change.getSession(), share);
  EventLog::info("share", {{"session", change.getSession()},
                           {"percent", share.percent},
                           {"weight", share.weight},
                           {"tenant", by.tenant},
                           {"identity", by.identity}});
  return "";
}

void Broker::stop(const std::string& why, std::chrono::seconds patience) {
  leaves_ = false;
  if (stopping()) return end_sessions(why);  // the second word ends them now
  state_.stop(std::chrono::system_clock::now() + patience);
  // However long its unit lets it take.
  service_manager_.tell(fmt::format("STOPPING=1\nEXTEND_TIMEOUT_USEC={}\nSTATUS=ends running sessions",
                                    std::chrono::microseconds(patience + 2 * stop_patience).count()));
  if (patience > std::chrono::seconds(0))
    workers_.notify_all(fmt::format("this host shuts down; this session ends in {} s", patience.count()));
  leases_.wake();
  tell_pool();
  EventLog::info("draining", {{"reason", why}, {"sessions", workers_.sessions()}, {"seconds", patience.count()}});
  if (workers_.sessions() == 0) return end_sessions(why);
  look_until(
      std::chrono::steady_clock::now() + patience, stop_look, [this] { return workers_.sessions() == 0; },
      [this, why] { end_sessions(why); });
}

// Another use of the timer ends this one.
void Broker::look_until(std::chrono::steady_clock::time_point deadline, std::chrono::milliseconds interval,
                        std::function<bool()> over, std::function<void()> then) {
  if (over() || std::chrono::steady_clock::now() >= deadline) return then();
  stop_timer_.expires_after(interval);
  stop_timer_.async_wait([=, this, over = std::move(over), then = std::move(then)](const asio::error_code& error) {
    if (!error) look_until(deadline, interval, over, then);
  });
}

void Broker::take_over() {
  next_session_ = std::max(next_session_, take_over_sessions(succession_, leases_, workers_) + 1);
}

void Broker::leave(const std::string& why) {
  if (!succession_.possible() || ending_sessions_) return stop(why, patience_);
  if (std::exchange(leaves_, true)) return io_.stop();
  service_manager_.tell("STOPPING=1\nSTATUS=leaves running sessions to the next fargpud");
  look_until(
      std::chrono::steady_clock::now() + leave_patience, leave_look, [this] { return !in_conversation(); },
      [this, why] {
        EventLog::info("left", {{"reason", why},
                                {"sessions", workers_.sessions()},
                                {"meaning", "the host's next fargpud takes over its sessions"}});
        leave_pool(&PoolHost::leave_to_next);
      });
}

// What clients have begun to ask, and sessions that were promised. Those that wait for a lease do so for long.
bool Broker::in_conversation() const { return !pending_.none() || workers_.taken() > workers_.sessions(); }

// Once told so, clients do not come back. A third word does not wait for them.
void Broker::end_sessions(const std::string& why) {
  if (std::exchange(ending_sessions_, true)) {
    workers_.end_all("the host's fargpud was told again and again to stop");
    return finish_stop("told again: " + why);
  }
  workers_.stop_all("the host's fargpud is shutting down");
  if (workers_.all().empty()) return finish_stop("no session left");
  stop_timer_.expires_after(stop_patience);
  stop_timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    workers_.kill_all();
    finish_stop("workers did not end by themselves");
  });
}

void Broker::finish_stop(const std::string& why) {
  EventLog::info("stopped", {{"reason", why}});
  leave_pool(&PoolHost::stop);
}

// The pool hears of it at once, and not when what this host has put into its registry has outlived it.
void Broker::leave_pool(void (PoolHost::*how)(std::function<void()>)) {
  if (!pool_) return io_.stop();
  stop_timer_.expires_after(pool_leave_max);
  stop_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) io_.stop();
  });
  (pool_.get()->*how)([this] {
    registry_.reset();  // which waits until etcd has been told that the host's lifetime is over
    io_.stop();
  });
}

std::function<void(MetricsText&)> Broker::pool_metrics() const {
  if (!pool_) return {};
  return [this](MetricsText& text) { write_pool(*pool_, text); };
}

const std::string& Broker::host_identity() try {
  if (host_identity_.empty()) host_identity_ = succession_.host_identity();
  return host_identity_;
} catch (const SettingsError&) {
  return host_identity_;
}

std::unique_ptr<PoolHost> Broker::make_pool_host() {
  PoolHost::Facts facts;
  facts.devices = [this] {
    std::vector<pool::HostRecord::Device> devices;
    const auto known = workers_.facts();
    if (!known) return devices;
    for (const auto device : known->getDevices()) {
      std::string uuid;
      for (const auto byte : device.getUuid()) uuid += fmt::format("{:02x}", byte);
      devices.push_back({uuid, printable(device.getName().cStr()), device.getMemoryBytes()});
    }
    return devices;
  };
  facts.sessions_taken = [this] { return workers_.taken(); };
  facts.state = [this] {
    switch (state_.at(std::chrono::system_clock::now())) {
      case ServiceState::State::draining: return pool::RoomRecord::State::draining;
      case ServiceState::State::stopping: return pool::RoomRecord::State::stopping;
      default: return pool::RoomRecord::State::serving;
    }
  };
  facts.sessions_max = settings_.sessions_max;
  host_identity_ = succession_.host_identity();  // by which clients know it, too
  return std::make_unique<PoolHost>(io_, *registry_,
                                    pool::MemberOptions{.pool = settings_.pool,
                                                        .host = settings_.name_in_pool(),
                                                        .identity = host_identity_,
                                                        .places = settings_.pool_placer},
                                    leases_, std::move(facts));
}

// Without a runtime_folder the fargpud that runs here under these settings has an identity of its own.
bool Broker::may_be_ours(const std::string& address) const {
  if (succession_.possible()) return false;
  if (!settings_.pool_address.empty()) return address == settings_.pool_address;
  const auto listen = parse_listen(settings_.listen);
  const std::string name = host_name();
  return std::ranges::any_of(listen, [&](const ListenAddress& one) {
    const std::string port = ":" + std::to_string(one.port);
    return address.ends_with("//" + name + port) || address.ends_with("//127.0.0.1" + port) ||
           address.ends_with("//[::1]" + port);
  });
}

asio::awaitable<std::string> Broker::check_registry() {
  const std::string pool = "the host is '" + settings_.name_in_pool() + "' of pool '" + settings_.pool +
                           "', by the registry " + settings_.pool_registry;
  if (!settings_.pool_address.empty())
    co_await look_at_pool_address(settings_.pool_address, settings_.listen, encrypts());
  try {
    const std::string answer = co_await registry_->describe();
    EventLog::debug("registry", {{"answer", answer}});
    // Whether it may read at all.
    const pool::MemberOptions& self = pool_->member().options();
    const std::string key = pool::Keys(settings_.pool).host(self.host);
    std::vector<std::string> own{key};
    const pool::Snapshot there = co_await registry_->read(std::move(own));
    for (const pool::Entry& entry : there.entries)
      if (const auto record = pool::read<pool::HostRecord>(entry.value);
          entry.key == key && record && record->identity != self.identity && !may_be_ours(record->address))
        co_return fmt::format(
            "{}, where another host is a member under that name, at {}: give this one another name by pool_host", pool,
            record->address);
    co_return pool + ", which answers";
  } catch (const pool::RegistryError& error) {
    EventLog::warn("no registry", {{"pool", settings_.pool},
                                   {"reason", error.what()},
                                   {"meaning", "fargpud starts, and joins its pool when the registry answers"}});
    co_return pool + ", which is of no use now";
  }
}

asio::awaitable<std::string> Broker::set_pool_tenant(ClientFacts by, std::string name,
                                                     std::optional<pool::TenantRecord> limits) {
  if (!pool_) co_return "this host is of no pool: its settings name none";
  if (!pool::is_name(name)) co_return "'" + name + "' is no name of a tenant";
  if (limits && limits->weight > pool::weight_max)
    co_return fmt::format("a weight is between 1 and {}", pool::weight_max);
  if (!pool_->member().in_touch())
    co_return fmt::format("this host is not in touch with the registry of pool '{}': {}", settings_.pool,
                          pool_->member().trouble());
  try {
    co_await pool_->member().set_tenant(name, limits);
  } catch (const pool::RegistryError& error) {
    co_return "the registry of pool '" + settings_.pool + "' has not taken it: " + error.what();
  }
  std::vector<Field> fields{{"pool", settings_.pool}, {"of", name}, {"tenant", by.tenant}, {"identity", by.identity}};
  if (limits) {
    fields.emplace_back("memory", limits->limits.memory_bytes);
    fields.emplace_back("compute", limits->limits.compute_percent);
    fields.emplace_back("leases", limits->limits.leases);
    fields.emplace_back("weight", limits->weight);
  }
  EventLog::info(limits ? "pool tenant" : "pool tenant forgotten", fields);
  co_return "";
}

}  // namespace fargpu::server
