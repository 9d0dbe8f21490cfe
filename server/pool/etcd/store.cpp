#include "store.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "log.h"

namespace fargpu::etcd {
namespace {

using namespace std::chrono_literals;

constexpr auto tick_time = 200ms;
// A member that answers late is left for another one.
constexpr auto attempt_max = 2000ms;
constexpr auto pause_min = 200ms;
constexpr auto pause_max = 2000ms;
// For which closing waits until the store has heard that lifetimes have ended.
constexpr auto close_wait = 400ms;
// A page of the largest records fits in a message. What others write there may be larger: then pages are made smaller.
constexpr std::int64_t page_keys_max = 200;
constexpr int message_bytes_max = 16 << 20;
constexpr std::size_t answer_bytes_max = 256 << 20;
constexpr unsigned attempts_max = 8;

std::string after_all(std::string prefix) {
  while (!prefix.empty()) {
    if (static_cast<unsigned char>(prefix.back()) != 0xff) {
      ++prefix.back();
      return prefix;
    }
    prefix.pop_back();
  }
  return std::string(1, '\0');  // etcd's for: all keys
}

std::optional<std::string> file(const std::string& path, std::string& why) {
  std::ifstream stream(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad() || text.empty()) {
    why = "the file " + path + " cannot be read";
    return std::nullopt;
  }
  return text;
}

std::chrono::system_clock::time_point from_now(std::chrono::milliseconds time) {
  return std::chrono::system_clock::now() + time;
}

}  // namespace

// --- tags -----------------------------------------------------------------------------------------------------------

struct Store::Wake final : Tag {
  explicit Wake(Store& store) : store(store) {}
  void done(bool) override {
    std::unique_ptr<Wake> self(this);
    std::vector<std::function<void()>> posted;
    {
      const std::lock_guard lock(store.mutex_);
      posted.swap(store.posted_);
    }
    for (const auto& work : posted) work();
  }
  Store& store;
  grpc::Alarm alarm;
};

struct Store::Tick final : Tag {
  explicit Tick(Store& store) : store(store) {}
  void done(bool) override {
    const std::unique_ptr<Tick> self(this);
    store.tick_ = nullptr;
    store.tick();
  }
  Store& store;
  grpc::Alarm alarm;
};

template <class Response>
struct Store::Unary final : Tag {
  explicit Unary(Store& store) : store(store) {}
  void done(bool) override {
    const std::unique_ptr<Unary> self(this);
    store.contexts_.erase(&context);
    then(status, response);
  }
  Store& store;
  std::shared_ptr<grpc::Channel> channel;
  grpc::ClientContext context;
  grpc::Status status;
  Response response;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
  std::function<void(const grpc::Status&, Response&)> then;
};

// --- its thread -----------------------------------------------------------------------------------------------------

Store::Store(std::vector<Address> addresses, const Settings& settings)
    : ca_(settings.ca ? settings.ca : ""),
      certificate_(settings.certificate ? settings.certificate : ""),
      key_(settings.key ? settings.key : ""),
      timeout_(settings.timeout_ms),
      attempt_timeout_(std::min<std::chrono::milliseconds>(attempt_max, timeout_ / 2)) {
  for (Address& address : addresses) endpoints_.push_back({std::move(address), {}, {}, {}});
  // Members of a pool do not all use the first member of etcd.
  current_ = std::hash<std::thread::id>{}(std::this_thread::get_id()) ^
             static_cast<std::size_t>(Clock::now().time_since_epoch().count() / 1000);
  current_ %= endpoints_.size();
  // Signals are the program's; threads that gRPC starts are as those that start them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  queue_ = std::make_unique<grpc::CompletionQueue>();
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Store::~Store() {
  post([this] { close(); });
  thread_.join();
}

void Store::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(std::move(work));
  if (posted_.size() > 1) return;  // it will wake for the first
  Wake* const wake = new Wake(*this);
  wake->alarm.Set(queue_.get(), std::chrono::system_clock::time_point{}, static_cast<Tag*>(wake));
}

void Store::run() {
  pthread_setname_np(pthread_self(), "etcd");
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    static_cast<Tag*>(tag)->done(ok);
    if (closing_ && outstanding_ == 0 && !tick_ && !shut_) {
      shut_ = true;
      queue_->Shutdown();
    }
  }
}

void Store::close() {
  closing_ = true;
  close_at_ = Clock::now() + (endings_ > 0 ? close_wait : 0ms);
  for (const CallPointer& call : std::exchange(waiting_, {}))
    fail(call, Failure::unavailable, "etcd is not used any more");
  for (Keeper* const keeper : std::exchange(keepers_, {})) end(keeper);
  for (Watch* const watch : std::exchange(watches_, {})) {
    watch->events.freed(watch->events.owner);
    delete watch;
  }
  if (keep_stream_) keep_stream_->cancel();
  if (watch_stream_) watch_stream_->cancel();
  keep_stream_.reset();
  watch_stream_.reset();
  if (tick_) tick_->alarm.Cancel();
  else tick();
}

void Store::set_tick() {
  if (tick_ || shut_) return;
  tick_ = new Tick(*this);
  tick_->alarm.Set(queue_.get(), from_now(closing_ ? 20ms : tick_time), static_cast<Tag*>(tick_));
}

void Store::tick() {
  const Clock::time_point now = Clock::now();
  if (closing_) {
    if (endings_ == 0 || now >= close_at_)
      for (grpc::ClientContext* const context : contexts_) context->TryCancel();
    if (outstanding_ > 0) set_tick();
    return;
  }
  for (std::size_t i = waiting_.size(); i > 0; --i) {
    const CallPointer call = std::move(waiting_.front());
    waiting_.pop_front();
    if (now < call->deadline) {
      waiting_.push_back(call);
    } else {
      const Trouble why = trouble();
      fail(call, why.failure, why.why);
    }
  }
  bool late = false;
  for (Keeper* const keeper : keepers_) {
    if (keeper->over) continue;
    if (now >= keeper->until) {
      keeper->over = true;
      keeper->events.lasts(keeper->events.owner, 0);
      continue;
    }
    const auto patience = std::min<Clock::duration>(attempt_max, Clock::duration(keeper->seconds) / 4);
    if (keeper->asks && now >= keeper->asked + patience) late = true;
    if (!keeper->asks && now >= keeper->next && keep_stream_) keep_stream_->ask(keeper);
  }
  if (late && joined_) {
    Trouble trouble{Failure::unavailable, "etcd at " + endpoint().address.written + ": no answer in time", true, false};
    leave(joining_, std::move(trouble));
  }
  connect();
  if (!waiting_.empty() || !keepers_.empty() || !watches_.empty() || connecting_) set_tick();
}

// --- the endpoint in use --------------------------------------------------------------------------------------------

std::shared_ptr<grpc::Channel> Store::new_channel(const Address& address, std::string& why) const {
  grpc::ChannelArguments arguments;
  // Nothing comes from the environment, DNS or other channels. A silent connection is noticed; more often than that
  // etcd does not want to be asked.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(attempt_timeout_.count()));
  arguments.SetMaxReceiveMessageSize(message_bytes_max);
  if (!address.encrypted)
    return grpc::CreateCustomChannel(address.target, grpc::InsecureChannelCredentials(), arguments);
  // Files may have been renewed since the last time.
  grpc::SslCredentialsOptions options;
  const std::optional<std::string> ca = file(ca_, why);
  if (!ca) return nullptr;
  options.pem_root_certs = *ca;
  if (!certificate_.empty()) {
    const std::optional<std::string> certificate = file(certificate_, why);
    const std::optional<std::string> key = certificate ? file(key_, why) : std::nullopt;
    if (!key) return nullptr;
    options.pem_cert_chain = *certificate;
    options.pem_private_key = *key;
  }
  return grpc::CreateCustomChannel(address.target, grpc::SslCredentials(options), arguments);
}

void Store::connect() {
  if (joined_ || connecting_ || closing_ || (waiting_.empty() && keepers_.empty() && watches_.empty())) return;
  const Clock::time_point now = Clock::now();
  for (std::size_t tried = 0; endpoint().not_before > now; ++tried) {
    if (tried == endpoints_.size()) {
      set_tick();
      return;
    }
    current_ = (current_ + 1) % endpoints_.size();
  }
  connecting_ = true;
  set_tick();
  clear_log();
  std::string why;
  channel_ = new_channel(endpoint().address, why);
  if (!channel_) {
    connecting_ = false;
    mark({Failure::denied, why, true, true});
    return;
  }
  kv_ = pb::KV::NewStub(channel_);
  lease_ = pb::Lease::NewStub(channel_);
  maintenance_ = pb::Maintenance::NewStub(channel_);
  watching_ = pb::Watch::NewStub(channel_);
  const std::function<void(const grpc::Status&, pb::StatusResponse&)> then = [this](const grpc::Status& status,
                                                                                    pb::StatusResponse& response) {
    connecting_ = false;
    if (closing_) return;
    const std::string at = "etcd at " + endpoint().address.written;
    // Some releases of etcd 3.5 and 3.6 tell of themselves to root alone. Then the first answer names the store.
    if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) joined(0);
    else if (!status.ok()) mark(trouble_of(status, endpoint().address));
    else if (is_too_old(response.version()))
      mark({Failure::denied, at + " is of version " + response.version() + ", and 3.4 or a newer one is needed", true,
            true});
    else if (response.leader() == 0)
      mark({Failure::unavailable, at + ": no leader: most of its members cannot be reached", true, true});
    else if (response.islearner()) mark({Failure::unavailable, at + ": it only learns", true, true});
    else joined(response.header().cluster_id());
  };
  ask(&pb::Maintenance::Stub::AsyncStatus, *maintenance_, pb::StatusRequest(), then);
}

void Store::joined(std::uint64_t cluster) {
  if (cluster_ != 0 && cluster != 0 && cluster != cluster_)
    changed("etcd at " + endpoint().address.written + " is another store than before", cluster, 0);
  if (cluster != 0) cluster_ = cluster;
  joined_ = true;
  ++joining_;
  failed_in_turn_ = 0;
  endpoint().pause = 0ms;
  open_streams();
  for (const CallPointer& call : std::exchange(waiting_, {})) attempt(call);
}

void Store::leave(std::uint64_t joining, Trouble trouble) {
  if (!joined_ || joining != joining_) return;
  joined_ = false;
  if (keep_stream_) keep_stream_->cancel();
  if (watch_stream_) watch_stream_->cancel();
  keep_stream_.reset();
  watch_stream_.reset();
  for (Keeper* const keeper : keepers_) keeper->asks = false;
  for (Watch* const watch : watches_) watch->id = -1;
  mark(std::move(trouble));
}

// The endpoint in use is of no use for a while; the next one is tried.
void Store::mark(Trouble trouble) {
  Endpoint& left = endpoint();
  if (trouble.failure == Failure::denied) {
    const std::string said = last_log();
    if (!said.empty()) trouble.why += "; " + said;
  }
  left.trouble = std::move(trouble);
  left.pause = std::clamp<std::chrono::milliseconds>(left.pause * 2, pause_min, pause_max);
  left.not_before = Clock::now() + left.pause;
  current_ = (current_ + 1) % endpoints_.size();
  // What no member will ever do is not waited for.
  if (++failed_in_turn_ >= endpoints_.size()) {
    const Trouble all = this->trouble();
    if (all.failure != Failure::unavailable)
      for (const CallPointer& call : std::exchange(waiting_, {})) fail(call, all.failure, all.why);
  }
  connect();
}

Trouble Store::trouble() const {
  Trouble all;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.trouble.failure == Failure::none) {
      all.failure = Failure::unavailable;
      continue;
    }
    if (all.failure == Failure::none) all.failure = endpoint.trouble.failure;
    else if (all.failure != endpoint.trouble.failure) all.failure = Failure::unavailable;
    if (!all.why.empty()) all.why += "; ";
    all.why += endpoint.trouble.why;
  }
  if (all.why.empty()) all.why = "etcd at " + endpoints_[current_].address.written + ": no answer in time";
  return all;
}

// --- calls ----------------------------------------------------------------------------------------------------------

template <class Stub, class Request, class Response>
void Store::ask(std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*function)(grpc::ClientContext*,
                                                                                             const Request&,
                                                                                             grpc::CompletionQueue*),
                Stub& stub, const Request& request, std::function<void(const grpc::Status&, Response&)> then) {
  auto* const unary = new Unary<Response>(*this);
  unary->channel = channel_;
  unary->then = [this, then = std::move(then)](const grpc::Status& status, Response& response) {
    --outstanding_;
    then(status, response);
  };
  unary->context.set_deadline(from_now(attempt_timeout_));
  unary->context.AddMetadata("hasleader", "true");
  contexts_.insert(&unary->context);
  ++outstanding_;
  unary->reader = (stub.*function)(&unary->context, request, queue_.get());
  unary->reader->Finish(&unary->response, &unary->status, static_cast<Tag*>(unary));
}

Store::CallPointer Store::new_call(Done done, bool repeats) {
  const CallPointer call = std::make_shared<Call>();
  call->done = done;
  call->deadline = Clock::now() + timeout_;
  call->repeats = repeats;
  return call;
}

void Store::submit(const CallPointer& call) {
  if (closing_) return fail(call, Failure::unavailable, "etcd is not used any more");
  // What was sent on a connection that broke may have had an effect; so it is not sent there.
  if (joined_ && channel_->GetState(false) != GRPC_CHANNEL_READY)
    leave(joining_,
          {Failure::unavailable, "etcd at " + endpoint().address.written + ": the connection broke", true, true});
  if (joined_) return attempt(call);
  waiting_.push_back(call);
  connect();
  set_tick();
}

void Store::attempt(const CallPointer& call) {
  ++call->attempts;
  call->epoch = epoch_;
  call->asked = current_;
  call->attempt(call);
}

void Store::again(const CallPointer& call, std::uint64_t joining, const grpc::Status& status) {
  if (closing_) return fail(call, Failure::unavailable, "etcd is not used any more");
  // Another endpoint may be in use by now.
  const Trouble why = trouble_of(status, endpoints_[call->asked].address);
  if (why.elsewhere) leave(joining, why);
  const bool goes_on = why.elsewhere || why.failure == Failure::compacted;
  if (goes_on && (call->repeats || why.not_done) && call->attempts < attempts_max && Clock::now() < call->deadline) {
    call->pages.clear();
    call->bytes = 0;
    call->prefix = 0;
    call->revision = 0;
    call->next_key.clear();
    return submit(call);
  }
  fail(call, why.failure, why.why);
}

void Store::finish(const CallPointer& call, const Answer& answer) { call->done.call(call->done.owner, &answer); }

void Store::fail(const CallPointer& call, Failure failure, const std::string& why) {
  Answer answer{};
  answer.failure = failure;
  answer.why = why.c_str();
  finish(call, answer);
}

bool Store::is_same(const pb::ResponseHeader& header, std::int64_t seen) {
  const std::string at = "etcd at " + endpoint().address.written;
  if (cluster_ == 0) cluster_ = header.cluster_id();
  if (header.cluster_id() != cluster_)
    changed(at + " is another store than before", header.cluster_id(), header.revision());
  else if (header.revision() < seen)
    changed(at + " went back from revision " + std::to_string(seen) + " to " + std::to_string(header.revision()) +
                ": it was set up from an older copy",
            header.cluster_id(), header.revision());
  else return true;
  return false;
}

bool Store::believe(const CallPointer& call, const pb::ResponseHeader& header, std::int64_t seen) {
  if (call->epoch == epoch_ && is_same(header, seen)) {
    saw(header.revision());
    return true;
  }
  fail(call, Failure::strange, "etcd is not the store any more that it was when it was asked");
  return false;
}

// Everything that is known of the store counts no more.
void Store::changed(const std::string& why, std::uint64_t cluster, std::int64_t revision) {
  ++epoch_;
  for (const CallPointer& call : std::exchange(waiting_, {})) fail(call, Failure::strange, why);
  for (Watch* const watch : watches_) fail(watch, Failure::strange, why);
  if (cluster != cluster_)
    for (Keeper* const keeper : keepers_)
      if (!std::exchange(keeper->over, true)) keeper->events.lasts(keeper->events.owner, 0);
  cluster_ = cluster;
  seen_ = revision;
}

void Store::read(std::vector<std::string> prefixes, Done done) {
  const CallPointer call = new_call(done, true);
  call->prefixes = std::move(prefixes);
  call->page_keys = page_keys_max;
  call->attempt = [this](const CallPointer& call) { read_page(call); };
  submit(call);
}

void Store::read_page(const CallPointer& call) {
  if (call->prefix == call->prefixes.size()) {
    std::vector<Entry> entries;
    for (const auto& page : call->pages)
      for (const pb::KeyValue& kv : page->kvs())
        entries.push_back({{kv.key().data(), kv.key().size()},
                           {kv.value().data(), kv.value().size()},
                           kv.create_revision(),
                           kv.mod_revision(),
                           kv.lease()});
    Answer answer{};
    answer.revision = call->revision;
    answer.entries = entries.data();
    answer.count = entries.size();
    return finish(call, answer);
  }
  const std::string& prefix = call->prefixes[call->prefix];
  pb::RangeRequest request;
  request.set_key(call->next_key.empty() ? prefix : call->next_key);
  request.set_range_end(after_all(prefix));
  request.set_limit(call->page_keys);
  request.set_revision(call->revision);
  const std::function<void(const grpc::Status&, pb::RangeResponse&)> then =
      [this, call, joining = joining_, seen = seen_](const grpc::Status& status, pb::RangeResponse& response) {
        if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && call->page_keys > 1 && !closing_ &&
            joined_ && joining == joining_) {
          call->page_keys /= 2;
          return read_page(call);
        }
        if (!status.ok()) return again(call, joining, status);
        if (!believe(call, response.header(), seen)) return;
        call->bytes += response.ByteSizeLong();
        if (call->bytes > answer_bytes_max)
          return fail(call, Failure::strange,
                      "etcd holds more than " + std::to_string(answer_bytes_max >> 20) + " MiB under '" +
                          call->prefixes[call->prefix] + "'");
        if (call->revision == 0) call->revision = response.header().revision();
        if (response.more() && response.kvs_size() > 0) {
          call->next_key = response.kvs(response.kvs_size() - 1).key() + std::string(1, '\0');
        } else {
          call->next_key.clear();
          ++call->prefix;
        }
        call->pages.push_back(std::make_unique<pb::RangeResponse>());
        call->pages.back()->Swap(&response);
        if (!joined_ || joining != joining_) return submit(call);
        read_page(call);
      };
  ask(&pb::KV::Stub::AsyncRange, *kv_, request, then);
}

void Store::commit(pb::TxnRequest request, Done done) {
  const CallPointer call = new_call(done, false);
  call->attempt = [this, request = std::move(request)](const CallPointer& call) {
    const std::function<void(const grpc::Status&, pb::TxnResponse&)> then =
        [this, call, joining = joining_, seen = seen_](const grpc::Status& status, pb::TxnResponse& response) {
          if (!status.ok()) return again(call, joining, status);
          if (!believe(call, response.header(), seen)) return;
          Answer answer{};
          answer.revision = response.header().revision();
          answer.committed = response.succeeded() ? 1 : 0;
          finish(call, answer);
        };
    ask(&pb::KV::Stub::AsyncTxn, *kv_, request, then);
  };
  submit(call);
}

void Store::describe(Done done) {
  const CallPointer call = new_call(done, true);
  call->attempt = [this](const CallPointer& call) {
    const std::function<void(const grpc::Status&, pb::StatusResponse&)> then =
        [this, call, joining = joining_](const grpc::Status& status, pb::StatusResponse& response) {
          if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
            const std::string text =
                "etcd at " + endpoint().address.written + ", which tells its version to root alone";
            Answer answer{};
            answer.text = text.c_str();
            answer.cluster = cluster_;
            return finish(call, answer);
          }
          if (!status.ok()) return again(call, joining, status);
          if (!believe(call, response.header(), 0)) return;
          std::string text = "etcd " + response.version() + " at " + endpoint().address.written;
          for (const std::string& error : response.errors()) text += ", which says: " + error;
          Answer answer{};
          answer.text = text.c_str();
          answer.cluster = response.header().cluster_id();
          finish(call, answer);
        };
    ask(&pb::Maintenance::Stub::AsyncStatus, *maintenance_, pb::StatusRequest(), then);
  };
  submit(call);
}

void Store::begin_lifetime(std::uint32_t seconds, Done done) {
  // One that was begun and nobody knows of ends by itself.
  const CallPointer call = new_call(done, true);
  call->attempt = [this, seconds](const CallPointer& call) {
    pb::LeaseGrantRequest request;
    request.set_ttl(seconds);
    const std::function<void(const grpc::Status&, pb::LeaseGrantResponse&)> then =
        [this, call, joining = joining_, asked = Clock::now()](const grpc::Status& status,
                                                               pb::LeaseGrantResponse& response) {
          if (!status.ok()) return again(call, joining, status);
          if (!believe(call, response.header(), 0)) return;
          if (closing_) return fail(call, Failure::unavailable, "etcd is not used any more");
          Answer answer{};
          answer.lifetime = response.id();
          answer.seconds = static_cast<std::uint32_t>(std::clamp<std::int64_t>(response.ttl(), 1, 3600));
          answer.asked_ns = asked.time_since_epoch() / 1ns;
          finish(call, answer);
        };
    ask(&pb::Lease::Stub::AsyncLeaseGrant, *lease_, request, then);
  };
  submit(call);
}

void Store::end_lifetime(std::int64_t id) {
  // If the store does not hear of it, the lifetime ends by itself.
  if (closing_ || !joined_) return;
  pb::LeaseRevokeRequest request;
  request.set_id(id);
  ++endings_;
  const std::function<void(const grpc::Status&, pb::LeaseRevokeResponse&)> then = [this](const grpc::Status&,
                                                                                         pb::LeaseRevokeResponse&) {
    if (--endings_ == 0 && closing_) tick();
  };
  ask(&pb::Lease::Stub::AsyncLeaseRevoke, *lease_, request, then);
}

// --- lifetimes and watches ------------------------------------------------------------------------------------------

void Store::open_streams() {
  if (!joined_) return;
  if (!keepers_.empty() && !keep_stream_) {
    keep_stream_ = std::make_shared<KeepStream>(*this, *lease_, channel_, joining_);
    keep_stream_->start();
    for (Keeper* const keeper : keepers_)
      if (!keeper->over) keeper->next = Clock::now();
  }
  if (!watches_.empty() && !watch_stream_) {
    watch_stream_ = std::make_shared<WatchStream>(*this, *watching_, channel_, joining_);
    watch_stream_->start();
    for (Watch* const watch : watches_) check(watch);
  }
}

void Store::keep(Keeper* keeper) {
  if (closing_) return end(keeper);
  keepers_.insert(keeper);
  keeper->next = Clock::now() + Clock::duration(keeper->seconds) / 3;
  open_streams();
  connect();
  set_tick();
}

void Store::stop_keeping(Keeper* keeper) {
  keepers_.erase(keeper);
  end(keeper);
}

void Store::end(Keeper* keeper) {
  keeper->events.freed(keeper->events.owner);
  delete keeper;
}

void Store::watch(Watch* watch) {
  watches_.insert(watch);
  if (watch_stream_) check(watch);
  else open_streams();
  connect();
  set_tick();
}

void Store::stop_watching(Watch* watch) {
  watches_.erase(watch);
  if (watch_stream_) watch_stream_->remove(watch);
  watch->events.freed(watch->events.owner);
  delete watch;
}

// A watch of revisions that are to come waits for them, also where the store went back before them.
void Store::check(Watch* watch) {
  if (watch->over) return;
  pb::RangeRequest request;
  request.set_key(watch->prefix);
  request.set_range_end(after_all(watch->prefix));
  request.set_limit(1);
  request.set_keys_only(true);
  const std::function<void(const grpc::Status&, pb::RangeResponse&)> then =
      [this, watch, joining = joining_, epoch = epoch_, seen = std::max(seen_, watch->next - 1)](
          const grpc::Status& status, pb::RangeResponse& response) {
        if (closing_ || !watches_.contains(watch) || watch->over || joining != joining_ || !joined_) return;
        if (!status.ok()) {
          const Trouble why = trouble_of(status, endpoint().address);
          if (why.elsewhere) return leave(joining, why);
          if (why.failure == Failure::unavailable) return check(watch);
          return fail(watch, why.failure, why.why);
        }
        if (epoch != epoch_ || !is_same(response.header(), seen)) return;  // it has failed with that
        saw(response.header().revision());
        if (watch_stream_) watch_stream_->add(watch);
      };
  ask(&pb::KV::Stub::AsyncRange, *kv_, request, then);
}

void Store::fail(Watch* watch, Failure failure, const std::string& why) {
  if (std::exchange(watch->over, true)) return;
  if (watch_stream_) watch_stream_->remove(watch);
  watch->events.failed(watch->events.owner, failure, why.c_str());
}

}  // namespace fargpu::etcd
