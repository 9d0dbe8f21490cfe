#pragma once
// A session at the worker: everything one client process has here, and the loop that executes its calls.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/frame_reader.h"
#include "protocol/spare_processors.h"
#include "protocol/window.h"
#include "server/worker/call/blocking_calls.h"
#include "server/worker/call/call_credit.h"
#include "server/worker/call/executor.h"
#include "server/worker/call/lists.h"
#include "server/worker/call/prints.h"
#include "server/worker/call/retries.h"
#include "server/worker/code/code.h"
#include "server/worker/copy/worker_lanes.h"
#include "server/worker/graph/attended_graphs.h"
#include "server/worker/graph/graph_memory.h"
#include "server/worker/memory/deliveries.h"
#include "server/worker/memory/driver_memory.h"
#include "server/worker/memory/gpu_direct.h"
#include "server/worker/memory/scrub.h"
#include "server/worker/memory/sharing.h"
#include "server/worker/memory/staging.h"
#include "server/worker/objects/awaited_events.h"
#include "server/worker/objects/resources.h"
#include "server/worker/objects/user_objects.h"
#include "server/worker/order/ordering.h"
#include "server/worker/order/waits.h"
#include "server/worker/peer/peer_links.h"
#include "asides.h"
#include "residency.h"

namespace fargpu::server {

class Resumption;

/// What a session uses, by its devices where there are several.
struct SessionUsage {
  std::uint64_t calls = 0;
  std::vector<std::uint64_t> busy_ns;  ///< for which the device had work of it
  std::uint64_t waited_ns = 0;         ///< with work and without a turn
  std::uint64_t known_bytes = 0;       ///< of contents that the host had, and it did not send
  std::uint64_t kept_bytes = 0;        ///< of those that it sent and the host has kept
  std::uint64_t images_not_kept = 0;   ///< images that it sent and the folder has not taken
  bool operator==(const SessionUsage&) const = default;
};

struct SessionOptions {
  std::uint64_t id = 0;
  unsigned origin = 0;                         ///< its number among the client's sessions
  Window device_window;                        ///< reserved in this process already
  Window host_window;                          ///< reserved in this process already
  std::vector<int> devices;                    ///< the driver's ordinals, in the session's order
  std::vector<std::uint64_t> memory_limits;    ///< bytes per device; 0 for none
  std::optional<AccountPlace> account_place;   ///< where it counts what it holds; none: by itself
  std::filesystem::path image_folder;          ///< empty: images are kept for the session only
  std::uint64_t image_bytes_max = 8ull << 30;  ///< of that folder
  std::filesystem::path content_folder;        ///< of the tenant's contents of memory; empty: none are kept
  std::uint64_t content_bytes_max = 0;         ///< of that folder
  std::chrono::nanoseconds spin{0};            ///< how long to poll before sleeping, while somebody waits
  unsigned launch_threads = 0;                 ///< besides the executor, while many launches come
  PrintedByKernels* printed = nullptr;         ///< null: nothing that kernels print is sent
  std::chrono::milliseconds silence = limits::silence_timeout;  ///< after which the client is taken for dead
  std::uint64_t host_bytes_max = 0;  ///< of this host's memory for what the client makes it keep; 0 for no bound
  Compression compression = Compression::never;  ///< of contents of memory that go to the client
  std::size_t output_bytes_max = 512u << 20;     ///< that may wait for the client before nothing more is read from it
  Exchange* exchange = nullptr;                  ///< null: nothing is shared with other sessions
  std::shared_ptr<GpuDirect> direct;             ///< null: its lanes go through the host's memory
  PeerDoor* peers = nullptr;                     ///< null: there are no links with workers of other hosts
  TurnOptions turns;
  ResidencyOptions residency;
  std::uint64_t evict_calls = 0;  ///< its memory leaves after so many calls (tests); 0: when the broker says so
  std::vector<std::vector<CUdevResource>> parts;  ///< of each device: the groups of multiprocessors
                                                  ///< that are the session's; empty: all are
  bool scrub = false;                             ///< others' memory comes here: it becomes zeros before it is seen
  bool one_process = false;                       ///< with the client (tests)
  std::shared_ptr<Resumption> resumption;         ///< null: the session ends with its connection
  bool hears_returns = false;                     ///< the client wants to hear how long evicted memory was away
  bool hears_notices = false;                     ///< the client shows lines for the person who runs the program
  /// Hears what the session uses, now and then.
  std::function<void(const SessionUsage&)> report;
};

/// What the host keeps of contents of the session's tenant; null: nothing.
std::unique_ptr<ContentDesk> open_contents(const SessionOptions& options, HostBudget& budget);
/// Where chunks of its lanes arrive.
WorkerLanes::SlotMemory slot_memory(const SessionOptions& options);

/// One executor thread runs everything: it reads calls, executes them in their order, and polls for completions. It
/// never waits for the GPU, for the client or for a long driver call. Launches that nobody waits for may be made for it
/// by others, while many come.
class Session final : FrameHandler, Executor {
 public:
  Session(Channel& channel, DriverTable& driver, SessionOptions options);
  ~Session() override;

  /// Serves until the client leaves or the channel ends. Returns why, for the log. Throws ProtocolError and
  /// kj::Exception for a client that broke the protocol.
  std::string run();

  /// Makes run() end soon, with a word to the client. Any thread.
  void stop(const std::string& why);
  /// Gives the client a line for the person who runs the program, if it can show one. Any thread.
  void notify(const std::string& line);
  /// Grows while the executor goes round; a driver call that does not return stops it. Any thread.
  std::uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }
  /// A further connection for contents of memory, on which both sides have sent one frame. Any thread.
  void add_lane(std::shared_ptr<Channel> channel) { lanes_.add_lane(std::move(channel), 1, 1); }
  bool lanes_full() const { return lanes_.lanes_full(); }
  /// What the client has sent and the host is to keep, it has kept then, or some time has passed.
  void finish_keeping();
  /// For calls of the client that may have to wait here; 0: the host's memory has no room for them, and the session
  /// cannot begin.
  std::uint64_t credit_bytes() const { return credit_.granted(); }

  // --- for services -------------------------------------------------------------------------------------------------

  DriverTable& driver() { return driver_; }
  DeviceMemory& memory() { return memory_; }
  Ledger& ledger() { return ledger_; }
  Residency& residency() { return residency_; }
  Scrubber& scrubber() { return scrubber_; }
  Sharing& sharing() { return sharing_; }
  HostBudget& host_budget() { return host_budget_; }
  HostBlocks& host_blocks() { return host_blocks_; }
  Code& code() { return code_; }
  GraphParts& graph_parts() { return graph_parts_; }
  GraphMemory& graph_memory() { return graph_memory_; }
  AttendedGraphs& attended_graphs() { return attended_graphs_; }
  UserObjects& user_objects() { return user_objects_; }
  Resources& resources() { return resources_; }
  Objects& objects() { return objects_; }
  Contexts& contexts() { return contexts_; }
  Captures& captures() { return captures_; }
  Completions& completions() { return completions_; }
  Waits& waits() { return waits_; }
  AwaitedEvents& awaited_events() { return awaited_events_; }
  Retries& retries() { return retries_; }
  Deliveries& deliveries() { return deliveries_; }
  Prints& prints() { return prints_; }
  Ordering& ordering() { return ordering_; }
  Output& output() { return output_; }
  ClientRequests& client() { return client_; }
  WorkerLanes& lanes() { return lanes_; }
  PeerLinks& peers() { return peers_; }
  const SessionOptions& options() const { return options_; }
  /// For what passes beside the frames.
  Channel& channel() { return channel_; }

  /// With all that is of it. No work beside the executor may use it (Asides::behind).
  CUresult close_context(ContextState& context);

  /// A word of the broker about the session's turns. Any thread.
  void hear_turn(const scheduler::Turn& turn);
  /// Bytes of calls that have arrived.
  std::size_t unread_bytes() const { return reader_.waiting_bytes(); }

  void finish(const CallId& call, CUresult result, std::span<const std::byte> reply = {}) override;
  /// Answers a call behind what the client is owed of the work that it waited for.
  Completions::Done answer(const CallId& call);
  /// Answers a call that tells the program of complete work, on whatever stream: soon, behind what the client is owed
  /// of work that is complete by now.
  void finish_behind_deliveries(const CallId& call, CUresult result, std::vector<std::byte> reply = {});
  void give_bulk(Call& call) override;

  /// The driver had no room for what the call wants. If others may make room the call is carried out again then; if not
  /// it fails.
  Outcome wait_for_room(Call& call, const DeviceMemory::Shortage& shortage);

  Asides& asides() { return asides_; }
  /// Asides::run(), where settling writes no reply.
  Outcome aside(Call& call, Asides::Work work, std::function<CUresult(CUresult)> settle) {
    return asides_.run(call, std::move(work),
                       [settle = std::move(settle)](CUresult result, MessageWriter&) { return settle(result); });
  }
  /// Asides::run().
  Outcome aside_reply(Call& call, Asides::Work work, Asides::Settle settle,
                      Asides::Repeats repeats = Asides::Repeats::nothing) {
    return asides_.run(call, std::move(work), std::move(settle), repeats);
  }

 private:
  bool collect_parts();
  void reuse_staging();
  std::string at_work() const;

  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte> message) override;
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) override;
  bool holds(const FrameHeader& header, std::span<const std::byte> message) override;
  void on_call(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk);
  void on_control(std::span<const std::byte> message, std::span<std::byte> bulk);
  void execute(const Service& service, Call& call) override;
  void refuse(Call& call, CUresult result) override;
  /// What came with a call that is not carried out goes, and what comes for it yet.
  void drop_call(Call& call);
  /// As wait_for_room(), on the device of the call's context, for what the driver takes by itself. Later calls rely on
  /// this one: nothing of the program comes before it meanwhile. What had been held back fails.
  Outcome wait_in_order(Call& call);
  /// Runs a job that carries out a call, in the order in which it came.
  void in_order(const std::function<void()>& job);
  CUresult close_green(ContextState& context, ContextState& heir);
  void forgotten(HandleKind kind, std::uint64_t value);
  bool tell_notice();
  void tell_returned(const ResidencyReturn& back);
  void tell_link_lost(std::uint32_t link, const std::string& why);
  void end(const std::string& why);
  bool tell_usage(bool now);  // false if it was too soon
  bool round();
  bool wait_for_reader();
  bool send_answers();
  bool look_after_memory();
  bool tell_settled(bool idle);
  bool look_for_completions(bool hurried);
  /// They wait for memory, and not for the GPU.
  bool holds_calls() const { return waits_in_order_ > 0 || residency_.holds_calls(); }
  /// Completions or retries are due, or the reader finds no room before the GPU has taken some.
  bool waits_for_gpu() const {
    return !completions_.empty() || !retries_.empty() || (reader_.blocked() && !holds_calls());
  }
  void rest();
  bool looks_on(std::chrono::steady_clock::time_point now);
  bool send_rest();
  /// A client that does not take its answers gets no more of them.
  bool reading() const { return output_.waiting_bytes() < options_.output_bytes_max; }

  Channel& channel_;
  DriverTable& driver_;
  const SessionOptions options_;
  Waker waker_;
  HostBudget host_budget_;
  CallCredit credit_{host_budget_};
  WorkerLanes lanes_{waker_,
                     options_.compression,
                     [this](const ClientRequests::Chunks& wanted) { client_.want(wanted); },
                     LaneRoom::of_client(),
                     open_contents(options_, host_budget_),
                     slot_memory(options_)};
  PeerLinks peers_{waker_,
                   host_budget_,
                   options_.compression,
                   options_.silence,
                   options_.peers,
                   [this](std::uint32_t link, const std::string& why) { tell_link_lost(link, why); }};
  FrameReader reader_;
  Output output_;
  Prints prints_{driver_, output_, options_.printed};
  Ledger ledger_;
  DeviceMemory memory_;
  Scrubber scrubber_{driver_};
  Sharing sharing_;
  HostBlocks host_blocks_;
  Contexts contexts_;
  Objects objects_;
  Captures captures_{driver_, objects_.handles()};
  Code code_{driver_, objects_.handles(), contexts_, host_budget_, options_.image_folder, options_.image_bytes_max};
  Completions completions_;
  Ordering ordering_;
  GraphParts graph_parts_{waker_, host_budget_};
  bool staging_waits_ = false;  // of parts that are gone, for the GPU
  GraphMemory graph_memory_{objects_.handles()};
  Resources resources_;
  AttendedGraphs attended_graphs_{driver_};
  UserObjects user_objects_{driver_, objects_.handles()};
  std::vector<std::byte> arriving_;       // bulk bytes of frames that are used up at once
  std::shared_ptr<Staging> arriving_in_;  // where those of another frame come, until it is taken
  Retries retries_;
  Asides asides_{driver_,
                 contexts_,
                 ordering_,
                 residency_,
                 retries_,
                 prints_,
                 blocking_calls_,
                 link_calls_,
                 [this](const CallId& call, CUresult result, std::vector<std::byte> reply) {
                   finish_behind_deliveries(call, result, std::move(reply));
                 },
                 [this](const std::function<void()>& job) { in_order(job); }};
  ClientRequests client_{output_, host_budget_};
  Deliveries deliveries_{host_blocks_, client_};
  Waits waits_{ordering_, contexts_, captures_, completions_};
  Residency residency_;
  AwaitedEvents awaited_events_{driver_, objects_};

  bool ended_ = false;
  std::string ended_why_;
  std::atomic<bool> stopping_{false};
  std::mutex stop_mutex_;
  std::string stop_why_;
  std::atomic<bool> noticed_{false};
  std::string notice_;  // guarded by stop_mutex_
  std::atomic<std::uint64_t> rounds_{0};
  bool taking_ = false;          // a call is carried out in the order in which it came
  unsigned waits_in_order_ = 0;  // such calls that wait for room
  std::uint64_t calls_ = 0;
  std::uint64_t evict_after_calls_ = 0;
  std::uint64_t frames_confirmed_ = 0;
  std::chrono::steady_clock::time_point looked_at_{};  // for completions
  std::chrono::steady_clock::time_point heard_at_;
  std::chrono::steady_clock::time_point sent_at_;
  std::chrono::steady_clock::time_point told_at_;
  SessionUsage told_usage_;
  std::chrono::steady_clock::time_point idle_since_;
  SpareProcessors spare_;
  Spell spell_{spare_};  // of looking on since then
  // Last: their threads end before what they use goes.
  BlockingCalls blocking_calls_;
  BlockingCalls link_calls_;
};

}  // namespace fargpu::server
