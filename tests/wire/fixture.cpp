#include "fixture.h"

#include <sys/socket.h>

#include <cstdlib>
#include <future>
#include <stdexcept>

#include "calls_memory.capnp.h"
#include "client/call/remote_call.h"
#include "cuda_facts.h"
#include "making_room.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "server/worker/session/attach.h"
#include "server/worker/session/lane_requests.h"
#include "server/worker/base/partition.h"
#include "tests/temporary_folder.h"
#include "tests/unit/gpu_card.h"
#include "tests/unit/rdma_ends.h"
#include "tests/wrapped_channel.h"
#include "wrap.h"

namespace fargpu::test {

std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> wrap_channel;
std::filesystem::path image_folder;
std::filesystem::path content_folder;
std::chrono::milliseconds resume_time{0};
bool only_rdma = true;
std::function<std::shared_ptr<server::GpuDirect>()> make_gpu_direct;
std::function<bool(const server::RoomWish&)> make_room;

namespace {

// For FARGPU_TEST_CONTENTS: all sessions keep contents, and name them.
bool names_contents() { return std::getenv("FARGPU_TEST_CONTENTS") != nullptr; }
const std::filesystem::path& contents_of_all() {
  static const TemporaryFolder folder;
  return folder.path;
}

// Of the session that there is.
std::shared_ptr<server::RdmaOffer> rdma_offer;

/// A connection by which no memory is shared.
class OfAnotherMachine final : public WrappedChannel {
 public:
  using WrappedChannel::WrappedChannel;
  bool passes_descriptors() const override { return false; }
};

}  // namespace

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("no sockets");
  return {make_socket_channel(ends[0], "the worker"), make_socket_channel(ends[1], "the client")};
}

client::Config Remote::default_config() {
  client::Config config;
  config.driver_version = toolkit_version;
  config.one_process = true;
  if (names_contents()) config.content_cache = client::ContentCache::always;
  const char* const transport = std::getenv("FARGPU_TEST_TRANSPORT");
  if (transport && std::string(transport) == "shm") config.transport = client::Transport::shm;
  if (transport && std::string(transport) == "ucx") config.transport = client::Transport::rdma;
  return config;
}

client::Config Remote::rdma_config() {
  client::Config config = default_config();
  config.transport = client::Transport::rdma;
  return config;
}

client::Config Remote::sharing_config() {
  client::Config config = default_config();
  config.transport = client::Transport::shm;
  return config;
}

void Turnstile::tell(scheduler::Turn turn) {
  const std::lock_guard lock(mutex_);
  turn.number = ++number_;
  if (session_) session_->hear_turn(turn);
}

bool Turnstile::heard(const scheduler::Activity& wanted) {
  std::unique_lock lock(mutex_);
  const bool said = changed_.wait_for(lock, std::chrono::seconds(20), [&] { return last_ && *last_ == wanted; });
  last_.reset();
  return said;
}

std::size_t Turnstile::words() {
  const std::lock_guard lock(mutex_);
  return words_;
}

Remote::Remote(client::Config config, std::vector<std::uint64_t> memory_limits, Turnstile* turnstile,
               std::chrono::nanoseconds work_max, bool scrub, std::vector<unsigned> sm_groups) {
  driver->reset();
  client::RdmaChoice rdma;
  rdma_offer.reset();
  if (config.transport == client::Transport::rdma) {
    rdma_offer = std::make_shared<server::RdmaOffer>();
    rdma_offer->devices = rdma.devices = make_gpu_direct ? open_gpu_card() : open_ucx(false);
    if (make_gpu_direct) rdma_offer->direct = make_gpu_direct();
    rdma.required = only_rdma;
  }
  const bool in_memory = config.transport != client::Transport::shm && !rdma_offer;
  auto [near, far] = in_memory ? make_memory_channel() : make_sockets();
  if (wrap_channel && in_memory) near = wrap_channel(std::move(near));
  else config.wrap_shared = wrap_channel;
  const std::shared_ptr<Channel> connection = std::move(near);
  connection_ = connection;
  if (rdma_offer) near = std::make_unique<OfAnotherMachine>(connection);
  else near = std::make_unique<WrappedChannel>(connection);
  if (resume_time.count() > 0)
    resumption_ = std::make_shared<server::Resumption>(
        server::Resumption::Options{.time = resume_time, .clock_stands = [this] { return has_no_broker.load(); }});
  worker_ = std::thread([this, turnstile, work_max, scrub, sm_groups, far = std::move(far),
                         memory_limits = std::move(memory_limits)]() mutable {
    std::vector<std::byte> attach;
    try {
      attach = receive_control(*far, limits::lease_timeout);
    } catch (const std::exception& error) {
      why_ = error.what();
      return;
    }
    server::AttachOptions options;
    options.session.id = 1;
    options.session.devices = {0, 1};
    options.session.memory_limits = memory_limits;
    options.session.one_process = true;
    options.session.image_folder = image_folder;
    options.session.content_folder = content_folder.empty() && names_contents() ? contents_of_all() : content_folder;
    options.session.content_bytes_max = 1u << 30;
    options.session.launch_threads = 2;
    options.session.exchange = &shares;
    options.session.resumption = resumption_;
    options.driver_band = {fake::driver_band, fake::driver_band_bytes};
    // The worker's end takes memory away that in one process is the client's too, and what the client was called back
    // about may be at work with it.
    options.lane_key = lane_key;
    options.rdma = rdma_offer;
    if (rdma_offer) options.session.direct = rdma_offer->direct;
    options.session.turns.work_max = work_max;
    options.session.scrub = scrub;
    if (!sm_groups.empty())
      for (const int device : options.session.devices)
        options.session.parts.push_back(server::choose_sm_groups(driver.table(), device, sm_groups));
    if (turnstile) {
      options.session.turns.asks = true;
      options.session.turns.tell = [turnstile](const scheduler::Activity& activity, std::uint64_t, scheduler::Time) {
        const std::lock_guard lock(turnstile->mutex_);
        turnstile->last_ = activity;
        ++turnstile->words_;
        turnstile->changed_.notify_all();
      };
    }
    if (make_room) {
      options.session.residency.others_leave = true;
      options.session.residency.want = [this](const server::RoomWish& wish) {
        const std::lock_guard lock(serving_mutex_);
        serving_->residency().hear_room(wish.request, make_room(wish));
      };
    }
    options.running = [this, turnstile](server::Session* session) {
      {
        const std::lock_guard lock(serving_mutex_);
        serving_ = session;
      }
      if (turnstile) {
        const std::lock_guard lock(turnstile->mutex_);
        turnstile->session_ = session;
      }
      if (!session) wait_for_jobs();
    };
    why_ = server::serve_session(*far, attach, driver.table(), options);
  });
  try {
    client_ = client::attach(
                  std::move(near), {}, config, "the worker in this process",
                  [door = door_](const client::LaneRequest& request) {
                    const std::lock_guard lock(door->mutex);
                    if (!door->remote) throw ChannelClosed("the test is over");
                    auto near = door->remote->lane();
                    client::ask_for_lane(*near, request);
                    return near;
                  },
                  rdma)
                  .release();
  } catch (...) {
    worker_.join();
    throw;
  }
  client::process().adopt(client_);
}

void Remote::wait_for_jobs() {
  if (!client_) return;
  for (client::JobThread* const thread : {&client_->callbacks.thread(), &client_->answers}) {
    const auto done = std::make_shared<std::promise<void>>();
    thread->run([done] { done->set_value(); });
    done->get_future().wait_for(std::chrono::seconds(2));
  }
}

// The broker's part: what comes first on the connection is read, and the worker gets it with the rest.
std::unique_ptr<Channel> Remote::lane() {
  auto [near, far] = rdma_offer ? make_sockets() : make_memory_channel();
  const std::lock_guard lock(lane_mutex_);
  if (refuses_connections) throw ChannelClosed("no broker is there");
  if (has_no_broker) {
    client::DialError error(CUDA_ERROR_SYSTEM_NOT_READY, "nobody listens");
    error.nobody_listens = true;
    throw error;
  }
  lane_threads_.emplace_back([this, far = std::move(far)]() mutable {
    server::LaneWish wish;
    try {
      wish = server::read_lane(receive_control(*far, limits::connect_timeout), lane_key);
    } catch (const ChannelClosed&) {  // cut by the test
      return;
    }
    if (wish.resumes) {
      const auto meet = [lane = wish.channel != 0](Channel& connection) {
        return server::meet_by_rdma(connection, *rdma_offer, lane);
      };
      if (wish.known && resumption_) {
        resumption_->claim(std::move(far), rdma_offer ? Meet(meet) : Meet());
        ++returns;
      }
      return;
    }
    if (rdma_offer) far = server::lane_by_rdma(std::move(far), *rdma_offer);
    if (!far) return;
    const std::lock_guard lock(serving_mutex_);
    server::take_lane(serving_, std::move(far), wish);
  });
  const std::shared_ptr<Channel> connection = std::move(near);
  lanes_.push_back(connection);
  near = std::make_unique<WrappedChannel>(connection);
  const bool wraps = wrap_channel && resume_time.count() > 0 && !rdma_offer;
  return wraps ? wrap_channel(std::move(near)) : std::move(near);
}

std::string Remote::claim(const Claim& claim) {
  const std::shared_ptr<Channel> connection = lane();
  client::ask_for_lane(*connection, {.session = 1, .key = lane_key, .channel = claim.channel, .resumes = true});
  if (rdma_offer) (void)rdma::hand_over(*connection, rdma_offer->devices, {});
  send_control(*connection, 2, [&](wire::Control::Builder control) {
    auto resume = control.initResume();
    resume.setChannel(claim.channel);
    resume.setEpoch(claim.epoch);
    resume.setSecret({reinterpret_cast<const kj::byte*>(claim.secret.data()), claim.secret.size()});
    resume.setReceived(claim.received);
  });
  const auto message = receive_control(*connection, limits::connect_timeout);
  claimed_.push_back(connection);
  MessageReader reader(message);
  return reader.root<wire::Control>().getResumeAnswer().getFailure().getText().cStr();
}

std::vector<std::byte> Remote::resume_secret() const {
  const auto secret = resumption_->first_secret();
  return {secret.begin(), secret.end()};
}

Remote::~Remote() {
  // What the test's thread had with this session.
  client::Thread& thread = client::Thread::current();
  thread.contexts().clear();
  thread.default_streams.clear();
  thread.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  client::process().give_up();
  {
    const std::lock_guard lock(door_->mutex);
    door_->remote = nullptr;
  }
  if (worker_.joinable()) worker_.join();
  for (std::thread& lane : lane_threads_) lane.join();
  while (thread.take_late_error() != CUDA_SUCCESS) {}  // which may have come with the worker's last words
  wait_for_jobs();                                     // that these words gave, and which look at memory of the windows
  // Nor does a lane write there any more: what a session that was lost had pinned has not been freed.
  client_->lanes.forget(0, ~std::uint64_t{0});
  client::release_window(client_->terms.device_window);
  client::release_window(client_->terms.host_window);
  client::release_window(client_->terms.driver_band);
  driver->reset();
}

namespace {

server::SharedThing copy_of(const server::SharedThing& thing) {
  return {thing.device, thing.bytes,
          server::Descriptor(thing.descriptor.number() < 0 ? -1 : ::dup(thing.descriptor.number())), thing.event};
}

}  // namespace

bool Remote::Shares::share(const ShareKey& key, const server::SharedThing& thing, const ShareKey* came_by) {
  const std::lock_guard lock(mutex_);
  if (came_by) ++shared_on_[*came_by];
  return things_.emplace(key, copy_of(thing)).second;
}

void Remote::Shares::unshare_event(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  things_.erase(key);
}

std::optional<server::SharedThing> Remote::Shares::fetch(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = things_.find(key);
  if (found == things_.end()) return std::nullopt;
  if (found->second.device >= 0) ++lent_[key];
  return copy_of(found->second);
}

void Remote::Shares::let_go(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  --lent_[key];
}

int Remote::Shares::lent(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  return lent_[key];
}

int Remote::Shares::shared_on(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  return shared_on_[key];
}

std::size_t Remote::Shares::count() {
  const std::lock_guard lock(mutex_);
  return things_.size();
}

std::string Remote::worker_end() {
  worker_.join();
  return why_;
}

void Gate::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void Gate::wait_entered() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return entered_; });
}

void CUDA_CB Gate::pass(void* argument) {
  Gate& gate = *static_cast<Gate*>(argument);
  std::unique_lock lock(gate.mutex_);
  gate.entered_ = true;
  gate.changed_.notify_all();
  gate.changed_.wait(lock, [&] { return gate.open_; });
}

RemoteContext::RemoteContext(client::Config config, std::vector<std::uint64_t> memory_limits, Turnstile* turnstile,
                             std::chrono::nanoseconds work_max, bool scrub, std::vector<unsigned> sm_groups)
    : Remote(std::move(config), std::move(memory_limits), turnstile, work_max, scrub, std::move(sm_groups)) {
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
    throw std::runtime_error("no context");
}

void RemoteContext::hear_out() const {
  CUresult answer = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    answer = cuCtxSetCurrent(context);
    if (answer != CUDA_SUCCESS) return;
    client::RemoteCall<wire::CuMemGetInfoV2> call(client::Thread::current());  // which waits for nothing else
    answer = call ? call.wait() : call.error();
  }).join();
  if (answer != CUDA_SUCCESS) throw std::runtime_error("no answer");
}

}  // namespace fargpu::test
