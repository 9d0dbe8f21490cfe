#pragma once
// Client and worker in one process, joined by a channel in memory or, for FARGPU_TEST_TRANSPORT=shm, by one through
// shared memory, or, for ucx, by UCX, before the fake driver. Tests call the exported functions of the client like any
// program, and look at what the driver was asked.

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/base/config.h"
#include "client/session/dial.h"
#include "client/session/process.h"
#include "client/session/session.h"
#include "client/objects/thread.h"
#include "server/worker/session/attach.h"
#include "server/worker/session/resumption.h"
#include "server/exchange.h"
#include "server/worker/session/session.h"
#include "tests/fake_driver/fake.h"

namespace fargpu::test {

/// In the broker's place: grants turns, and hears what the session says of itself.
class Turnstile {
 public:
  void tell(scheduler::Turn turn);
  /// Waits until the session has said so; its last word so far is then forgotten.
  bool heard(const scheduler::Activity& wanted);
  std::size_t words();

 private:
  friend class Remote;
  std::mutex mutex_;
  std::condition_variable changed_;
  server::Session* session_ = nullptr;
  std::uint64_t number_ = 0;
  std::optional<scheduler::Activity> last_;
  std::size_t words_ = 0;
};

/// A session that lives as long as this object. One at a time.
class Remote {
 public:
  /// `memory_limits`: bytes per device that the session may hold; none where there is none.
  /// `turnstile`: grants turns; without it the session may always give work. `work_max` as in server::TurnOptions.
  /// `scrub`: memory becomes zeros before the session sees it. `sm_groups`: of each device, that the session's kernels
  /// may be on; all if empty.
  explicit Remote(client::Config config = default_config(), std::vector<std::uint64_t> memory_limits = {},
                  Turnstile* turnstile = nullptr, std::chrono::nanoseconds work_max = {}, bool scrub = false,
                  std::vector<unsigned> sm_groups = {});
  ~Remote();

  fake::FakeDriver& driver = fake::FakeDriver::instance();
  /// In the broker's place: what sessions share, by key. The other sessions are the test's.
  struct Shares final : server::Exchange {
    bool share(const ShareKey& key, const server::SharedThing& thing, const ShareKey* came_by = nullptr) override;
    void unshare_event(const ShareKey& key) override;
    void unshare_memory(const ShareKey& key) override { unshare_event(key); }
    std::optional<server::SharedThing> fetch(const ShareKey& key) override;
    void let_go(const ShareKey& key) override;
    std::size_t count();
    /// How often memory of a key was fetched and not let go, and how many were shared on under another.
    int lent(const ShareKey& key);
    int shared_on(const ShareKey& key);

   private:
    std::mutex mutex_;
    std::map<ShareKey, server::SharedThing> things_;
    std::map<ShareKey, int> lent_, shared_on_;
  } shares;
  client::Session& session() { return *client_; }
  /// Why the worker's session ended; waits for it.
  std::string worker_end();
  /// In the broker's place: memory is to leave its devices.
  void evict(server::EvictOrder order) {
    const std::lock_guard lock(serving_mutex_);
    serving_->residency().hear(std::move(order));
  }
  /// No further connection comes about.
  std::atomic<bool> refuses_connections{false};
  /// As while the broker is restarted: nobody listens, and the time for which the client is waited for stands.
  std::atomic<bool> has_no_broker{false};
  /// Somebody else's connection that says it is the session's client: the failure that answers it; empty if it is one.
  struct Claim {
    std::uint32_t channel = 0, epoch = 0;
    std::vector<std::byte> secret;
    std::uint64_t received = 0;
  };
  std::string claim(const Claim& claim);
  /// What the client has, for its first return.
  std::vector<std::byte> resume_secret() const;
  /// Cuts the first connection, which its session may give up before both directions are closed.
  void cut() {
    if (const auto connection = connection_.lock()) connection->close();
  }
  /// Connections by which the client came back, so far.
  std::atomic<unsigned> returns{0};
  /// Cuts all that there are, by which lanes and sessions came back too.
  void cut_all() {
    cut();
    const std::lock_guard lock(lane_mutex_);
    for (const auto& made : std::exchange(lanes_, {}))
      if (const auto connection = made.lock()) connection->close();
  }

  static client::Config default_config();
  /// Client and worker share memory, as they all do for FARGPU_TEST_TRANSPORT=shm.
  static client::Config sharing_config();
  /// They are joined by RDMA, UCX's own TCP instead of a card, as they all are for FARGPU_TEST_TRANSPORT=ucx.
  static client::Config rdma_config();

  /// What a lane of the session must know.
  static inline const std::vector<std::byte> lane_key{32, std::byte{7}};

 private:
  std::unique_ptr<Channel> lane();
  /// What the client was called back about is done. Not waited for without end: a function of the test may be.
  void wait_for_jobs();

  std::shared_ptr<server::Resumption> resumption_;
  std::vector<std::shared_ptr<Channel>> claimed_;
  /// By which the client comes back, on threads of its own: for as long as this lives.
  struct Door {
    std::mutex mutex;
    Remote* remote;
  };
  const std::shared_ptr<Door> door_{new Door{{}, this}};
  std::mutex lane_mutex_;
  std::mutex serving_mutex_;
  server::Session* serving_ = nullptr;
  std::vector<std::thread> lane_threads_;
  std::vector<std::weak_ptr<Channel>> lanes_;
  std::weak_ptr<Channel> connection_;
  client::Session* client_ = nullptr;
  std::thread worker_;
  std::string why_;
};

/// Connected sockets on which a client and a worker can come to share memory.
std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_sockets();

/// A Remote with the primary context of device 0 current.
struct RemoteContext : Remote {
  explicit RemoteContext(client::Config config = default_config(), std::vector<std::uint64_t> memory_limits = {},
                         Turnstile* turnstile = nullptr, std::chrono::nanoseconds work_max = {}, bool scrub = false,
                         std::vector<unsigned> sm_groups = {});
  /// Returns when what the worker has to say of earlier calls is here: another thread has had an answer, which came
  /// behind that.
  void hear_out() const;
  CUcontext context = nullptr;
};

/// Lets a host function wait until the test says so.
class Gate {
 public:
  void open();
  void wait_entered();
  /// The host function; its argument is the gate.
  static void CUDA_CB pass(void* gate);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, entered_ = false;
};

/// The GPU completes nothing while this lives, or until end().
class Paused {
 public:
  Paused() { fake::FakeDriver::instance()->pause(true); }
  ~Paused() { end(); }
  Paused(const Paused&) = delete;
  Paused& operator=(const Paused&) = delete;
  void end() { fake::FakeDriver::instance()->pause(false); }
};

/// PTX that the fake driver understands.
inline constexpr const char* kernels =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".entry fill32(.param .u64 address, .param .u32 count, .param .u32 value)\n"
    ".entry crash()\n"
    ".entry mixed(.param .u8 a, .param .u64 b, .param .u16 c, .param .f32 d)\n";

}  // namespace fargpu::test
