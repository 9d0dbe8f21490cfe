#pragma once
// Two sessions in one process, with two workers over the fake driver, which can have links with each other.

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/session/pool.h"
#include "fixture.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "server/peer_door.h"
#include "server/worker/peer/link_by_rdma.h"
#include "server/worker/session/facts.h"
#include "tests/unit/rdma_ends.h"
#include "tests/wrapped_channel.h"

namespace fargpu::test {

/// A channel between two machines, which somebody else may close.
class SharedChannel final : public WrappedChannel {
 public:
  using WrappedChannel::WrappedChannel;
  bool passes_descriptors() const override { return false; }
  bool shares_memory() const override { return false; }
};

/// Links between hosts go by UCX where sessions do, though those between clients and workers do not here.
inline bool links_by_rdma() { return Remote::default_config().transport == client::Transport::rdma; }

/// A host with the first devices of the fake driver: one, or two. The last one is its own.
class Host {
 public:
  /// `others`: whom its worker can have links with, itself too.
  explicit Host(unsigned number, std::vector<Host*>& others) : number_(number), door_(*this, others) {
    others.push_back(this);
  }
  ~Host() {
    if (!worker_.joinable()) return;
    worker_.join();
    client::release_window(session_->terms.device_window);
    client::release_window(session_->terms.host_window);
    client::release_window(session_->terms.driver_band);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  client::Pool::Host offer() {
    MessageWriter writer;
    auto facts = writer.root<wire::HostFacts>();
    server::write_facts(fake::FakeDriver::instance().table(), devices(), facts);
    return {.name = name_, .facts = client::read_facts(facts.asReader()), .begin = [this](const client::Place& place) {
              return begin(place);
            }};
  }
  bool begun() const { return worker_.joinable(); }
  std::vector<int> devices() const { return number_ == 0 ? std::vector<int>{0} : std::vector<int>{0, 1}; }
  client::Session& session() { return *session_; }
  void cut() { channel_->close(); }
  const std::string& name() const { return name_; }

  // --- links ------------------------------------------------------------------------------------------------------

  /// Those that it makes come about.
  std::atomic<bool> connects{true};
  /// Is called when it is about to make one.
  std::function<void()> connecting = [] {};
  /// Keys by which others may come.
  std::atomic<int> keys{0};
  /// A connection of another host's worker comes in: what a broker would do with it.
  void let_in(std::unique_ptr<Channel> connection) {
    const auto message = receive_control(*connection, limits::connect_timeout);
    std::unique_lock lock(serving_mutex_);
    const auto wish = serving_ ? serving_->peers().read(message) : std::nullopt;
    lock.unlock();
    if (!wish) throw ChannelClosed("there is no session that takes it");
    if (wish->rdma) connection = rdma::hand_over(*connection, open_ucx(false), {}).go_on(std::move(connection));
    lock.lock();
    if (serving_) serving_->peers().take(std::move(connection), *wish);
  }
  /// Cuts those that it has made.
  void cut_links() {
    const std::lock_guard lock(links_mutex_);
    for (const auto& connection : links_) connection->close();
  }

 private:
  /// In the place of both brokers.
  class Door final : public server::PeerDoor {
   public:
    Door(Host& host, std::vector<Host*>& others) : host_(host), others_(others) {}
    bool admit(std::span<const std::byte>) override {
      ++host_.keys;
      return true;
    }
    void shut_out(std::span<const std::byte>) override { --host_.keys; }
    server::PeerConnection connect(const server::PeerAddress& address, std::uint32_t channel) override {
      host_.connecting();
      for (Host* const other : others_) {
        if (!host_.connects || other->name() != address.host) continue;
        const auto devices = links_by_rdma() ? open_ucx(false) : nullptr;
        auto [near, far] = devices ? socket_ends() : make_memory_channel();
        send_control(*near, 1, [&](wire::Control::Builder control) {
          auto lane = control.initLane();
          lane.setKey({reinterpret_cast<const kj::byte*>(address.key.data()), address.key.size()});
          lane.setChannel(channel);
          lane.setRdma(devices != nullptr);
        });
        auto let_in =
            std::async(std::launch::async, [&, far = std::move(far)]() mutable { other->let_in(std::move(far)); });
        server::PeerConnection link = server::hear_target(std::move(near), devices);
        let_in.get();
        if (link.rdma != (devices != nullptr)) throw ChannelClosed("the ends have not met by RDMA");
        const std::shared_ptr<Channel> kept = std::move(link.channel);
        const std::lock_guard lock(host_.links_mutex_);
        host_.links_.push_back(kept);
        return {std::make_unique<SharedChannel>(kept), link.rdma};
      }
      throw ChannelClosed("the test lets it connect to nobody");
    }

   private:
    Host& host_;
    std::vector<Host*>& others_;
  };

  std::unique_ptr<client::Session> begin(client::Place place) {
    place.peer.host = name_;
    auto [near, far] = make_memory_channel();
    channel_ = near.get();
    worker_ = std::thread([this, far = std::move(far)] {
      const auto attach = receive_control(*far, limits::lease_timeout);
      server::AttachOptions options;
      options.session.id = number_ + 1;
      options.session.devices = devices();
      options.session.one_process = true;
      options.session.peers = &door_;
      options.running = [this](server::Session* session) {
        const std::lock_guard lock(serving_mutex_);
        serving_ = session;
      };
      if (number_ == 0) options.driver_band = {fake::driver_band, fake::driver_band_bytes};
      server::serve_session(*far, attach, fake::FakeDriver::instance().table(), options);
    });
    auto session = client::attach(std::move(near), {}, Remote::default_config(), name_, {}, {}, place);
    session_ = session.get();
    return session;
  }

  const unsigned number_;
  const std::string name_ = "host " + std::to_string(number_);
  Door door_;
  std::mutex serving_mutex_;
  server::Session* serving_ = nullptr;
  std::mutex links_mutex_;
  std::vector<std::shared_ptr<Channel>> links_;
  Channel* channel_ = nullptr;
  client::Session* session_ = nullptr;
  std::thread worker_;
};

struct Several {
  Several() {
    driver->reset();
    std::vector<client::Pool::Host> offers;
    for (const auto& host : hosts) offers.push_back(host->offer());
    client::process().adopt(std::make_unique<client::Pool>(std::move(offers), std::nullopt));
  }
  ~Several() {
    client::Thread& thread = client::Thread::current();
    thread.contexts().clear();
    thread.default_streams.clear();
    client::process().give_up();
    for (auto& host : hosts) host.reset();
    while (thread.take_late_error() != CUDA_SUCCESS) {}
    driver->reset();
  }
  CUcontext use(CUdevice device) {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    return context;
  }

  fake::FakeDriver& driver = fake::FakeDriver::instance();
  std::vector<Host*> all;
  std::unique_ptr<Host> hosts[2] = {std::make_unique<Host>(0, all), std::make_unique<Host>(1, all)};
  client::Between& between() { return client::process().pool()->between; }
};

/// Of the second host the device that no other host has.
inline constexpr CUdevice other_device = 2;

/// What a program has of a device.
struct Side {
  explicit Side(Several& several, CUdevice device) : context(several.use(device)) {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  }
  static constexpr std::size_t bytes = 1 << 20;
  CUcontext context;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
};

inline unsigned word_at(CUdeviceptr address) {
  unsigned word = 0;
  REQUIRE(cuMemcpyDtoH_v2(&word, address, sizeof word) == CUDA_SUCCESS);
  return word;
}

}  // namespace fargpu::test
