#pragma once
// A session at the worker: everything one client process has here, and the loop that executes its calls.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "aside.h"
#include "call.h"
#include "completions.h"
#include "control.capnp.h"
#include "device_memory.h"
#include "dispatch.h"
#include "driver_memory.h"
#include "driver_table.h"
#include "graph_memory.h"
#include "graph_parts.h"
#include "graph_plan.h"
#include "handles.h"
#include "host_blocks.h"
#include "host_budget.h"
#include "image_store.h"
#include "launch_crew.h"
#include "links.h"
#include "opcodes.h"
#include "output.h"
#include "partition.h"
#include "printed.h"
#include "resources.h"
#include "scrub.h"
#include "sharing.h"
#include "protocol/channel.h"
#include "protocol/frame_reader.h"
#include "protocol/handle_results.h"
#include "protocol/limits.h"
#include "staging.h"
#include "stream_order.h"
#include "streams.h"
#include "transfers.h"
#include "turns.h"
#include "user_objects.h"
#include "window.h"

namespace fargpu::server {

/// What a session uses, by its devices where there are several.
struct SessionUsage {
  std::vector<std::uint64_t> memory_bytes;
  std::uint64_t calls = 0;
  std::vector<std::uint64_t> busy_ns;  ///< for which the device had work of it
  std::uint64_t waited_ns = 0;         ///< with work and without a turn
  bool operator==(const SessionUsage&) const = default;
};

struct SessionOptions {
  std::uint64_t id = 0;
  Window device_window;                         ///< reserved in this process already
  Window host_window;                           ///< the same
  std::vector<int> devices;                     ///< the driver's ordinals, in the session's order
  std::vector<std::uint64_t> memory_limits;     ///< bytes per device; 0 for none
  std::optional<Ledger::Place> memory_place;    ///< where it counts what it holds; none: by itself
  std::filesystem::path image_folder;           ///< empty: images are kept for the session only
  std::uint64_t image_bytes_max = 8ull << 30;   ///< of that folder
  std::chrono::nanoseconds spin{0};             ///< how long to poll before sleeping, while somebody waits
  unsigned launch_threads = 0;                  ///< besides the executor, while many launches come
  PrintedByKernels* printed = nullptr;          ///< null: nothing that kernels print is sent
  std::chrono::milliseconds silence = limits::silence_timeout;  ///< after which the client is taken for dead
  std::uint64_t host_bytes_max = 0;  ///< of this host's memory for what the client makes it keep; 0 for no bound
  Compression compression = Compression::never;  ///< of contents of memory that go to the client
  std::size_t output_bytes_max = 512u << 20;  ///< that may wait for the client before nothing more is read from it
  Exchange* exchange = nullptr;  ///< null: nothing is shared with other sessions
  TurnOptions turns;
  std::vector<std::vector<CUdevResource>> parts;  ///< of each device: the groups of multiprocessors that are the session's; empty: all are
  bool scrub = false;        ///< others' memory comes here: it becomes zeros before it is seen
  bool one_process = false;  ///< with the client (tests)
  /// Hears what the session uses, now and then.
  std::function<void(const SessionUsage&)> report;
};

/// One executor thread runs everything: it reads calls, executes them in their order, and polls for completions. It never waits for
/// the GPU, for the client or for a long driver call. Launches that nobody waits for may be made for it by others, while many come.
class Session final : FrameHandler {
 public:
  Session(Channel& channel, DriverTable& driver, SessionOptions options);
  ~Session() override;

  /// Serves until the client leaves or the channel ends. Returns why, for the log. Throws ProtocolError and kj::Exception for a
  /// client that broke the protocol.
  std::string run();

  /// Makes run() end soon, with a word to the client. Any thread.
  void stop(const std::string& why);
  /// Grows while the executor goes round; a driver call that does not return stops it. Any thread.
  std::uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }
  /// A further connection for contents of memory, on which both sides have sent one frame. Any thread.
  void add_lane(std::unique_ptr<Channel> channel) { transfers_.add_lane(std::move(channel), 1, 1); }
  bool lanes_full() const { return transfers_.lanes_full(); }

  // --- for services -----------------------------------------------------------------------------------------------------------

  DriverTable& driver() { return driver_; }
  DeviceMemory& memory() { return memory_; }
  Ledger& ledger() { return ledger_; }
  Scrubber& scrubber() { return scrubber_; }
  Sharing& sharing() { return sharing_; }
  HostBudget& host_budget() { return host_budget_; }
  HostBlocks& host_blocks() { return host_blocks_; }
  ImageStore& images() { return images_; }
  GraphParts& graph_parts() { return graph_parts_; }
  GraphMemory& graph_memory() { return graph_memory_; }
  Resources& resources() { return resources_; }
  Links& links() { return links_; }
  Handles& handles() { return handles_; }
  StreamOrder& order() { return order_; }
  Completions& completions() { return completions_; }
  Turns& turns() { return turns_; }
  Output& output() { return output_; }
  LaunchCrew& crew() { return crew_; }
  /// Whether the crew is to make the launch that is being served.
  bool crew_helps(const StreamState& stream) const;
  const SessionOptions& options() const { return options_; }
  /// For what passes beside the frames.
  Channel& channel() { return channel_; }

  /// The driver's object behind a handle; false if the handle is none of this session. Streams may be 1, functions may be kernels.
  template <class T>
  bool resolve(HandleKind kind, std::uint64_t value, T& object) {
    std::uint64_t raw = 0;
    if (!resolve_raw(kind, value, raw)) return false;
    if constexpr (std::is_pointer_v<T>) object = reinterpret_cast<T>(raw);
    else object = raw;
    return true;
  }
  /// What a call with a bad handle of this kind returns.
  static CUresult invalid(HandleKind kind) { return invalid_handle_result(kind); }
  CUresult check_adoption(HandleKind kind, std::uint64_t value);
  template <class T>
  void adopt(HandleKind kind, std::uint64_t value, T object, const Call& call) {
    adopt_raw(kind, value, raw_of(object), call);
  }
  template <class T>
  Handle reveal(HandleKind kind, T object, const Call& call, std::uint64_t source = 0) {
    return handles_.reveal(kind, raw_of(object), lives_with_context(kind) ? call.id().context : 0, Handle(source));
  }
  /// The same for an object that was made just now: a handle that still means its place is of one that went with a part of its owner.
  template <class T>
  Handle introduce(HandleKind kind, T object, const Call& call, std::uint64_t source = 0) {
    handles_.forget(kind, handles_.known(kind, raw_of(object)));
    return reveal(kind, object, call, source);
  }
  /// The same for handles that lie in a struct, which the driver takes or gave.
  template <class T>
  CUresult resolve_in_place(HandleKind kind, T& handle) {
    return resolve(kind, raw_of(handle), handle) ? CUDA_SUCCESS : invalid(kind);
  }
  template <class T>
  CUresult known_in_place(HandleKind kind, T& handle) {
    handle = handle_cast<T>(handles_.known(kind, raw_of(handle)));
    return CUDA_SUCCESS;
  }
  /// What an object took of the device's memory: charged until the object is forgotten.
  /// Which image a library was loaded from; null where that is not known.
  const ImageHash* image_of(Handle library) const {
    const auto found = library_images_.find(library.value());
    return found == library_images_.end() ? nullptr : &found->second;
  }
  void note_image(Handle library, const ImageHash& hash) { library_images_[library.value()] = hash; }
  void charge(Handle object, std::shared_ptr<Charge> charge) { charges_[object.value()].insert(std::move(charge)); }
  /// A variable of a module or library: the session may use it as long as its owner lives.
  void add_global(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);
  void forget(HandleKind kind, std::uint64_t value);
  /// Number of elements of a list that a client sent; throws ProtocolError beyond what is allowed.
  static std::size_t list_size(std::uint64_t n);
  /// Worker ordinal to the driver's; -1 if there is none.
  int driver_ordinal(int ordinal) const;
  /// Handles by which the client knows objects of the driver; 0 if it does not.
  std::uint64_t event_handle(CUevent event) const { return handles_.known(HandleKind::event, raw_of(event)).value(); }
  std::uint64_t context_handle(CUcontext context) const;

  /// The stream of a handle in the context of a call; null if there is none.
  StreamState* stream(std::uint64_t handle, std::uint32_t context);
  /// Work was given to a stream (by its handle, in the context being served).
  void submitted(std::uint64_t stream_handle);
  void submitted(StreamState& stream);
  void submitted(ContextState& context);
  /// Before work is given to a stream other than by a call that names it: it must find what was copied in synchronously.
  void catch_up(StreamState& stream);
  /// The program takes what the stream was given for done: later work on others must find it so.
  void let_nothing_overtake(StreamState& stream);
  /// A call that is work on several streams: waits for what is held back on any of them, and is served again then. Later work on all of them
  /// comes behind it.
  std::optional<Outcome> behind_streams(Call& call, const std::vector<StreamState*>& streams);
  /// A call that gives work to several streams and may not now: is served again when it may.
  std::optional<Outcome> behind_turn(Call& call, const std::vector<StreamState*>& streams);
  /// A word of the broker about the session's turns. Any thread.
  void hear_turn(const scheduler::Turn& turn);
  /// Whether the driver captures the stream now.
  bool capturing(const StreamState& stream);
  void count_capture(int change) { captures_ += change; }
  /// The handle of a graph that the driver makes for a capture: forgotten if the capture fails, for the driver destroys the graph then.
  Handle captured_graph(StreamState& stream, CUgraph graph, const Call& call);
  void capture_ended(CUstream stream, CUresult result);

  ContextState* context(std::uint32_t id);
  /// The session's part of a device, by its number in the session; null where it has all of it.
  Partition* partition(int device);
  /// Any context on a device (the driver's ordinal); null if there is none.
  ContextState* context_on(int device);
  CUresult open_context(Handle handle, int device, bool primary, unsigned flags, ContextState*& opened);
  /// A green context of the device's primary context.
  CUresult open_green(Handle handle, int device, CUdevResourceDesc resources, ContextState*& opened);
  CUresult close_context(ContextState& context);

  /// An executable graph is about to be changed: launches of it that are held back come first. The answer of a call that must wait for
  /// them, or cannot; nothing if there are none.
  std::optional<Outcome> behind_launches(Call& call, std::uint64_t exec);
  /// The same for a context that is about to go, and everything that is held back; or, for a client that cannot wait for others, on the
  /// context's own streams.
  std::optional<Outcome> behind_context(Call& call, ContextState& context);

  /// Sends the answer of a call that was answered later, or reports its failure if nobody waits.
  void finish(const CallId& call, CUresult result, std::span<const std::byte> reply = {});

  /// Runs `work` beside the executor, in the call's context; then `settle`, on the executor, whose result is the answer.
  Outcome aside(Call& call, std::function<CUresult()> work, std::function<CUresult(CUresult)> settle);
  /// The same, where settling writes a reply: `settle` gets the writer.
  Outcome aside_reply(Call& call, std::function<CUresult()> work,
                      std::function<CUresult(CUresult, MessageWriter&)> settle);

  /// Calls done(result) when the GPU has completed all work that was given to a stream, a context, or any context, by now.
  void when_passed(StreamState& stream, Completions::Done done);
  void when_passed(ContextState& context, Completions::Done done);
  void when_all_passed(Completions::Done done);
  /// Sends the client what the GPU changed in mapped host memory: before any answer that tells it of a completion.
  void deliver_changes();
  /// Sends bytes for a host block of the client; `owner` keeps them alive meanwhile.
  void deliver(std::uint64_t address, std::span<const std::byte> bytes, Output::Release release);

  /// What the driver takes for the context that is current; one is.
  DriverMemory& driver_memory() { return *current_->driver_memory; }
  /// Makes a context current to the executor.
  bool make_current(ContextState& context);
  /// Code is about to be loaded that may call printf.
  void note_printing() { may_print_ = true; }
  /// Makes any context current, where none is.
  bool borrow_context();
  /// A line for the person who runs the program, on its standard error; the same words once.
  void warn(const std::string& what);
  /// Keeps something alive for as long as the session lives.
  void keep(std::shared_ptr<void> thing) { kept_.push_back(std::move(thing)); }

  /// Pinned memory to pass bytes through, made when it is first needed; false while there is no context to make it in.
  bool staging_ready() { return make_staging(); }
  StagingRing& staging_in() { return staging_in_; }
  StagingRing& staging_out() { return staging_out_; }
  Transfers& transfers() { return transfers_; }
  /// Runs `job` each time the loop comes round until it returns true.
  void retry(std::function<bool()> job) { retries_.push_back(std::move(job)); }

  /// Has the client run the callback of this number, or a function that is part of a graph.
  void call_client(std::uint64_t number, CUresult result, std::function<void()> done);
  void call_part(std::uint64_t part, std::function<void()> done);
  /// Fetches pinned memory of the client, or memory that is part of a graph; fewer bytes come if the program has freed that.
  struct Wanted {
    std::uint64_t address = 0;
    std::uint64_t part = 0;
    std::uint64_t bytes = 0;
  };
  /// False if there is no room for them.
  [[nodiscard]] bool start_pull(const Wanted& wanted, std::function<void(std::vector<std::byte>)> done);
  /// Nothing needs this part of the client any more; 0 is none.
  void release_part(std::uint64_t part);
  /// Sends the staging memory of a part to the client.
  void deliver_part(std::uint64_t part);

  /// Executable graphs whose launches need attention, by handle. The driver that they borrow is lent until the session ends.
  AttendedGraph* attended(std::uint64_t exec);
  void attend(std::uint64_t exec, std::unique_ptr<AttendedGraph> graph) { attended_[exec] = std::move(graph); }
  const std::shared_ptr<DriverTable>& lent_driver() const { return lent_driver_; }
  UserObjects& user_objects() { return user_objects_; }

  /// Before a function (or kernel, in this context) is given to the driver: what its threads need of local memory.
  CUresult hold_local(const Handles::Entry& entry, bool kernel, FunctionLayout& layout, ContextState* kernel_context);
  /// The layout lives as long as the handle.
  CUresult layout(Handles::Entry& entry, bool kernel, FunctionLayout*& found);

  /// An event of the client is being waited for, or not any more; destroying it waits until nobody does.
  void event_waiter(std::uint64_t event, int change);
  /// Destroys it now, or when the last waiter is gone. `destroy` is the driver's part.
  CUresult destroy_event(std::uint64_t event);

 private:
  template <class T>
  static std::uint64_t raw_of(T object) {
    if constexpr (std::is_pointer_v<T>) return reinterpret_cast<std::uint64_t>(object);
    else return object;
  }
  static bool lives_with_context(HandleKind kind);
  bool collect_parts();
  bool resolve_raw(HandleKind kind, std::uint64_t value, std::uint64_t& raw);
  void adopt_raw(HandleKind kind, std::uint64_t value, std::uint64_t raw, const Call& call);

  std::chrono::steady_clock::time_point looked_at_{};
  bool empty_full();
  std::vector<std::pair<std::uint64_t, std::uint32_t>> full_;  ///< streams (handle, context) of which the driver has enough
  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte> message) override;
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) override;
  void on_call(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk);
  void on_control(std::span<const std::byte> message, std::span<std::byte> bulk);
  void execute(const Service& service, Call& call);
  bool wait_for_turn(const Service& service, Call& call);
  void park(const Service& service, Call& call, const std::vector<std::uint64_t>& before, StreamState* stream,
            std::uint64_t recorded_event);
  void execute_after_all(const Service& service, Call& call);
  /// `streams`: later work on them comes behind it.
  Outcome park_behind(const std::vector<std::uint64_t>& items, Call& call, const std::vector<StreamState*>& streams = {});
  bool enter_context(const Service& service, const Call& call);
  void relax_captures();
  ContextState* primary_of(int device);
  std::vector<ContextState*> with_greens(ContextState& context);
  void take_context(std::unique_ptr<ContextState> state, Handle handle, int device, ContextState*& opened);
  void drop_streams(ContextState& context);
  CUresult close_green(ContextState& context, ContextState& heir);
  bool make_staging();
  void drop_staging(ContextState& context);
  void flush_prints(CUevent passed);
  void tell_prints();
  void tell_full(HostBudget::Bound bound);
  void give_up(const std::string& why);
  bool tell_usage(bool now);  // false if it was too soon
  bool turn();
  bool wait_for_reader();
  bool look_for_completions(bool hurried);
  void rest();
  bool send_rest();
  /// A client that does not take its answers gets no more of them.
  bool reading() const { return output_.waiting_bytes() < options_.output_bytes_max; }

  Channel& channel_;
  DriverTable& driver_;
  const SessionOptions options_;
  Waker waker_;
  Transfers transfers_{waker_, options_.compression};
  FrameReader reader_;
  Output output_;
  HostBudget host_budget_;
  Ledger ledger_;
  DeviceMemory memory_;
  Scrubber scrubber_{driver_};
  Sharing sharing_;
  HostBlocks host_blocks_;
  ImageStore images_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> globals_;  // owner and address
  std::unordered_map<std::uint64_t, std::set<std::shared_ptr<Charge>>> charges_;  // by handle
  std::unordered_map<std::uint64_t, ImageHash> library_images_;                   // by handle
  Handles handles_;
  Completions completions_;
  StreamOrder order_;
  Turns turns_;
  std::unordered_map<std::uint32_t, std::unique_ptr<ContextState>> contexts_;
  std::unordered_map<std::uint64_t, std::unique_ptr<StreamState>> streams_;
  GraphParts graph_parts_{waker_, host_budget_};
  GraphMemory graph_memory_{handles_};
  std::vector<std::unique_ptr<Partition>> partitions_;  // of each device, or of none
  Resources resources_;
  Links links_;
  std::shared_ptr<DriverTable> lent_driver_;
  std::unordered_map<std::uint64_t, std::unique_ptr<AttendedGraph>> attended_;
  UserObjects user_objects_{driver_, handles_};
  std::vector<std::shared_ptr<void>> kept_;
  ContextState* current_ = nullptr;
  std::uint64_t driver_memories_ = 0;  // that there have been
  int captures_ = 0;
  bool may_print_ = false;
  std::set<std::string> warned_;
  std::map<CUstream, Handle> captured_graphs_;

  ContextState* staging_context_ = nullptr;
  void* staging_memory_ = nullptr;
  StagingRing staging_in_;
  StagingRing staging_out_;
  std::vector<std::byte> arriving_;  // bulk bytes of frames that are used up at once
  std::vector<std::function<bool()>> retries_;

  std::map<std::uint64_t, std::function<void()>> callbacks_;
  struct Pull {
    std::vector<std::byte> bytes;
    std::size_t wanted = 0;
    HostCharge charge;
    std::function<void(std::vector<std::byte>)> done;
  };
  std::map<std::uint64_t, Pull> pulls_;
  std::uint64_t next_pull_ = 1;
  std::uint64_t next_part_call_ = 1;
  struct EventWait {
    int waiters = 0;
    bool destroyed = false;
  };
  std::unordered_map<std::uint64_t, EventWait> event_waits_;

  bool ended_ = false;
  std::string ended_why_;
  std::atomic<bool> stopping_{false};
  std::mutex stop_mutex_;
  std::string stop_why_;
  std::atomic<std::uint64_t> rounds_{0};
  std::uint64_t calls_ = 0;
  std::uint64_t confirmed_at_ = 0;
  std::chrono::steady_clock::time_point heard_at_;
  std::chrono::steady_clock::time_point sent_at_;
  std::chrono::steady_clock::time_point told_at_;
  SessionUsage told_usage_;
  std::chrono::steady_clock::time_point busy_until_;
  unsigned next_stream_number_ = 0;
  // Last: their threads end before what they use goes.
  LaunchCrew crew_;
  Aside aside_;
};

/// How many list elements a count asks for, as the client rounds it.
template <class Number>
std::size_t list_elements(Number number) {
  if (static_cast<std::make_signed_t<Number>>(number) < 0) return 0;
  return static_cast<std::size_t>(std::min<std::uint64_t>(number, limits::array_elements_max));
}

}  // namespace fargpu::server
