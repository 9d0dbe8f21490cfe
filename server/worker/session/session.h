#pragma once
// A session at the worker: everything one client process has here, and the loop that executes its calls.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "server/worker/call/blocking_calls.h"
#include "server/worker/call/call.h"
#include "server/worker/objects/captures.h"
#include "server/worker/call/client_requests.h"
#include "server/worker/call/completions.h"
#include "server/worker/objects/contexts.h"
#include "control.capnp.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/call/dispatch.h"
#include "server/worker/memory/driver_memory.h"
#include "driver_table.h"
#include "server/worker/code/function_layouts.h"
#include "server/worker/graph/graph_memory.h"
#include "server/worker/graph/graph_parts.h"
#include "server/worker/graph/graph_plan.h"
#include "server/worker/objects/handles.h"
#include "server/worker/order/held_calls.h"
#include "server/worker/memory/host_blocks.h"
#include "server/quota/host_budget.h"
#include "server/worker/code/image_store.h"
#include "server/worker/order/launch_crew.h"
#include "server/worker/code/jit_links.h"
#include "server/worker/code/load_order.h"
#include "opcodes.h"
#include "server/worker/call/output.h"
#include "server/worker/order/taken_copies.h"
#include "server/worker/call/captured_output.h"
#include "protocol/channel.h"
#include "protocol/frame_reader.h"
#include "protocol/invalid_handle.h"
#include "protocol/limits.h"
#include "server/worker/objects/resources.h"
#include "server/worker/memory/scrub.h"
#include "server/worker/memory/sharing.h"
#include "server/worker/memory/staging.h"
#include "server/worker/order/stream_order.h"
#include "server/worker/objects/streams.h"
#include "server/worker/copy/worker_lanes.h"
#include "server/worker/order/turns.h"
#include "server/worker/objects/user_objects.h"
#include "protocol/window.h"

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
  Window device_window;                                         ///< reserved in this process already
  Window host_window;                                           ///< the same
  std::vector<int> devices;                                     ///< the driver's ordinals, in the session's order
  std::vector<std::uint64_t> memory_limits;                     ///< bytes per device; 0 for none
  std::optional<AccountPlace> account_place;                    ///< where it counts what it holds; none: by itself
  std::filesystem::path image_folder;                           ///< empty: images are kept for the session only
  std::uint64_t image_bytes_max = 8ull << 30;                   ///< of that folder
  std::chrono::nanoseconds spin{0};                             ///< how long to poll before sleeping, while somebody waits
  unsigned launch_threads = 0;                                  ///< besides the executor, while many launches come
  PrintedByKernels* printed = nullptr;                          ///< null: nothing that kernels print is sent
  std::chrono::milliseconds silence = limits::silence_timeout;  ///< after which the client is taken for dead
  std::uint64_t host_bytes_max = 0;                             ///< of this host's memory for what the client makes it keep; 0 for no bound
  Compression compression = Compression::never;                 ///< of contents of memory that go to the client
  std::size_t output_bytes_max = 512u << 20;                    ///< that may wait for the client before nothing more is read from it
  Exchange* exchange = nullptr;                                 ///< null: nothing is shared with other sessions
  TurnOptions turns;
  std::vector<std::vector<CUdevResource>> parts;  ///< of each device: the groups of multiprocessors
                                                  ///< that are the session's; empty: all are
  bool scrub = false;                             ///< others' memory comes here: it becomes zeros before it is seen
  bool one_process = false;                       ///< with the client (tests)
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
  void add_lane(std::unique_ptr<Channel> channel) { lanes_.add_lane(std::move(channel), 1, 1); }
  bool lanes_full() const { return lanes_.lanes_full(); }

  // --- for services -----------------------------------------------------------------------------------------------------------

  DriverTable& driver() { return driver_; }
  DeviceMemory& memory() { return memory_; }
  Ledger& ledger() { return ledger_; }
  Scrubber& scrubber() { return scrubber_; }
  Sharing& sharing() { return sharing_; }
  HostBudget& host_budget() { return host_budget_; }
  HostBlocks& host_blocks() { return host_blocks_; }
  ImageStore& images() { return images_; }
  LoadOrder& load_order() { return load_order_; }
  GraphParts& graph_parts() { return graph_parts_; }
  GraphMemory& graph_memory() { return graph_memory_; }
  Resources& resources() { return resources_; }
  JitLinks& links() { return links_; }
  Handles& handles() { return handles_; }
  Contexts& contexts() { return contexts_; }
  Captures& captures() { return captures_; }
  FunctionLayouts& layouts() { return layouts_; }
  StreamOrder& order() { return order_; }
  HeldCalls& held_calls() { return held_calls_; }
  TakenCopies& taken_copies() { return taken_copies_; }
  Completions& completions() { return completions_; }
  Turns& turns() { return turns_; }
  Output& output() { return output_; }
  ClientRequests& client() { return client_; }
  WorkerLanes& lanes() { return lanes_; }
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
  /// Which image a library or module was loaded from; null where that is not known.
  const ImageHash* image_of(Handle loaded) const {
    const auto found = loaded_images_.find(loaded.value());
    return found == loaded_images_.end() ? nullptr : &found->second;
  }
  void note_image(Handle loaded, const ImageHash& hash) { loaded_images_[loaded.value()] = hash; }
  /// What an object took of the device's memory: charged until the object is forgotten.
  void charge(Handle object, std::shared_ptr<Charge> charge) { charges_[object.value()].insert(std::move(charge)); }
  /// A variable of a module or library: the session may use it as long as its owner lives.
  void add_global(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);
  /// It is about to be destroyed beside the executor: see Handles::hide. Variables that go with it are no memory of the session's any more;
  /// should the destruction fail, they have to be asked for again.
  void hide(HandleKind kind, std::uint64_t value);
  void forget(HandleKind kind, std::uint64_t value);
  /// Number of elements of a list that a client sent; throws ProtocolError beyond what is allowed.
  static std::size_t list_size(std::uint64_t n);
  /// The session's ordinal to the driver's; -1 if there is none.
  int driver_ordinal(int ordinal) const { return contexts_.driver_ordinal(ordinal); }
  /// The handle by which the client knows an event; 0 if it does not.
  std::uint64_t event_handle(CUevent event) const { return handles_.known(HandleKind::event, raw_of(event)).value(); }
  /// Null if there is none.
  ContextState* context(std::uint32_t id) const { return contexts_.find(id); }
  /// The stream of a handle in the context of a call; null if there is none.
  StreamState* stream(std::uint64_t handle, std::uint32_t context) const { return contexts_.stream(handle, context); }
  /// cuStreamDestroy of a handle that resolves.
  CUresult destroy_stream(std::uint64_t handle);
  /// Makes a context current to the executor.
  bool make_current(ContextState& context) { return contexts_.make_current(context); }
  /// With all that is of it.
  CUresult close_context(ContextState& context);

  /// Work was given to a stream (by its handle, in the context being served).
  void submitted(std::uint64_t stream_handle);
  void submitted(StreamState& stream);
  void submitted(ContextState& context);
  /// A word of the broker about the session's turns. Any thread.
  void hear_turn(const scheduler::Turn& turn);

  /// Executes a call, or has it wait for its turn. What it answers is sent.
  void execute(const Service& service, Call& call);
  /// Sends the answer of a call that was answered later, or reports its failure if nobody waits.
  void finish(const CallId& call, CUresult result, std::span<const std::byte> reply = {});
  /// The call is not carried out, and this is its answer.
  void refuse(Call& call, CUresult result);
  /// What came with a call that is not carried out goes, and what comes for it yet.
  void give_up(Call& call);
  /// Gives back a frame's bulk bytes if staging memory is where they were received.
  void give_bulk(Call& call);

  /// Runs `work` beside the executor, in the call's context; then `settle`, on the executor, whose result is the answer.
  Outcome aside(Call& call, std::function<CUresult()> work, std::function<CUresult(CUresult)> settle);
  /// The same, where settling writes a reply: `settle` gets the writer.
  Outcome aside_reply(Call& call, std::function<CUresult()> work, std::function<CUresult(CUresult, MessageWriter&)> settle);

  /// Calls done(result) when the GPU has completed all work that was given to a stream, a context, or any context, by now.
  void when_passed(StreamState& stream, Completions::Done done);
  void when_passed(ContextState& context, Completions::Done done);
  void when_all_passed(Completions::Done done);
  /// Sends the client what the GPU changed in mapped host memory: before any answer that tells it of a completion.
  void deliver_changes();
  /// What the driver takes for the context that is current; one is.
  DriverMemory& driver_memory() { return *contexts_.current()->driver_memory; }
  /// Code is about to be loaded that may call printf or assert.
  void note_printing() { may_print_ = true; }
  /// A line for the person who runs the program, on its standard error; the same words once.
  void warn(const std::string& what);
  /// Keeps something alive for as long as the session lives.
  void keep(std::shared_ptr<void> thing) { kept_.push_back(std::move(thing)); }

  /// Runs `job` each time the loop comes round until it returns true.
  void retry(std::function<bool()> job) { retries_.push_back(std::move(job)); }

  /// Executable graphs whose launches need attention, by handle. The driver that they borrow is lent until the session ends.
  AttendedGraph* attended(std::uint64_t exec);
  void attend(std::uint64_t exec, std::unique_ptr<AttendedGraph> graph) { attended_[exec] = std::move(graph); }
  const std::shared_ptr<DriverTable>& lent_driver() const { return lent_driver_; }
  UserObjects& user_objects() { return user_objects_; }

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

  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte> message) override;
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) override;
  void on_call(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk);
  void on_control(std::span<const std::byte> message, std::span<std::byte> bulk);
  bool enter_context(const Service& service, const Call& call);
  void relax_captures();
  void drop_streams(ContextState& context);
  CUresult end_stream(StreamState& stream, CUresult result);
  CUresult close_green(ContextState& context, ContextState& heir);
  void flush_prints(CUevent passed, CUresult result);
  void tell_prints();
  void drop_globals(std::uint64_t owner);
  void tell_full(HostBudget::Bound bound);
  void give_up(const std::string& why);
  bool tell_usage(bool now);  // false if it was too soon
  bool turn();
  bool try_again();
  bool wait_for_reader();
  bool look_for_completions(bool hurried);
  bool empty_full();
  void rest();
  bool send_rest();
  /// A client that does not take its answers gets no more of them.
  bool reading() const { return output_.waiting_bytes() < options_.output_bytes_max; }

  Channel& channel_;
  DriverTable& driver_;
  const SessionOptions options_;
  Waker waker_;
  HostBudget host_budget_;
  WorkerLanes lanes_{waker_, options_.compression};
  FrameReader reader_;
  Output output_;
  Ledger ledger_;
  DeviceMemory memory_;
  Scrubber scrubber_{driver_};
  Sharing sharing_;
  HostBlocks host_blocks_;
  ImageStore images_;
  LoadOrder load_order_{images_};
  std::set<std::pair<std::uint64_t, std::uint64_t>> globals_;                     // owner and address
  std::unordered_map<std::uint64_t, std::set<std::shared_ptr<Charge>>> charges_;  // by handle
  std::unordered_map<std::uint64_t, ImageHash> loaded_images_;                    // by handle of the library or module
  Handles handles_;
  Contexts contexts_;
  Captures captures_{driver_, handles_};
  FunctionLayouts layouts_{driver_, handles_, contexts_};
  TakenCopies taken_copies_{driver_, captures_};
  Completions completions_;
  StreamOrder order_;
  Turns turns_;
  HeldCalls held_calls_{*this};
  std::vector<std::pair<std::uint64_t, std::uint32_t>> full_;  // streams (handle, context) of which the driver has enough
  GraphParts graph_parts_{waker_, host_budget_};
  GraphMemory graph_memory_{handles_};
  Resources resources_;
  JitLinks links_;
  std::shared_ptr<DriverTable> lent_driver_;
  std::unordered_map<std::uint64_t, std::unique_ptr<AttendedGraph>> attended_;
  UserObjects user_objects_{driver_, handles_};
  std::vector<std::shared_ptr<void>> kept_;
  bool may_print_ = false;
  std::set<std::string> warned_;
  std::vector<std::byte> arriving_;       // bulk bytes of frames that are used up at once
  std::shared_ptr<Staging> arriving_in_;  // where those of another frame come, until it is taken
  std::vector<std::function<bool()>> retries_;
  ClientRequests client_{output_, host_budget_};

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
  std::chrono::steady_clock::time_point looked_at_{};  // for completions
  std::chrono::steady_clock::time_point prints_at_{};  // when prints were last looked for behind an answer
  std::chrono::steady_clock::time_point heard_at_;
  std::chrono::steady_clock::time_point sent_at_;
  std::chrono::steady_clock::time_point told_at_;
  SessionUsage told_usage_;
  std::chrono::steady_clock::time_point busy_until_;
  // Last: their threads end before what they use goes.
  LaunchCrew crew_;
  BlockingCalls blocking_calls_;
};

/// How many elements the list of a count has. The driver reads as many as the count says: one that no list can have is none's.
template <class Number>
std::size_t list_elements(Number number) {
  const bool possible =
      static_cast<std::make_signed_t<Number>>(number) >= 0 && static_cast<std::uint64_t>(number) <= limits::array_elements_max;
  return possible ? static_cast<std::size_t>(number) : std::numeric_limits<std::size_t>::max();
}

}  // namespace fargpu::server
