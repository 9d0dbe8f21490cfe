#pragma once
// The session: this process at one GPU host.

#include <cuda.h>

#include <atomic>
#include <bitset>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "client/call/client_lanes.h"
#include "client/stream/callbacks.h"
#include "client/stream/capture.h"
#include "client/call/command_stream.h"
#include "client/objects/context.h"
#include "client/memory/device_memory.h"
#include "client/connect/facts.h"
#include "client/stream/fences.h"
#include "client/code/functions.h"
#include "client/graph/graph_memory.h"
#include "client/graph/graph_parts.h"
#include "client/graph/graphs.h"
#include "client/base/handle_map.h"
#include "client/memory/host_memory.h"
#include "client/code/jit_links.h"
#include "client/memory/managed_memory.h"
#include "client/memory/peer_access.h"
#include "client/memory/shared_memory.h"
#include "client/memory/shared_staging.h"
#include "client/memory/memory_map.h"
#include "opcodes.h"
#include "protocol/limits.h"
#include "client/call/receiver.h"
#include "client/call/reply_cache.h"
#include "client/objects/stream.h"
#include "client/stream/stream_waits.h"
#include "client/call/liveness.h"
#include "client/connect/windows.h"

namespace fargpu::client {

/// What the handshake settled.
struct Terms {
  std::uint64_t session_id = 0;
  Window device_window;
  Window host_window;
  Window driver_band;
  Facts facts;
  std::bitset<opcode_max + 1> worker_opcodes;
  std::string host;                                             ///< for messages
  std::chrono::milliseconds silence = limits::silence_timeout;  ///< after which the worker is taken for dead
  unsigned lanes = 0;                                           ///< bulk lanes wanted
  Compression compression = Compression::never;                 ///< of contents of memory
  bool one_process = false;                                     ///< the worker's (tests)
  std::function<std::unique_ptr<Channel>()> open_lane;          ///< connects one; null where there are none
};

/// Owns the connection and everything the client knows about the session. Lives as long as the process. Its parts are
/// thread-safe by themselves; locks are taken in this order: a part's own, the command stream's, the receiver's.
class Session final : PushHandler {
 public:
  Session(std::unique_ptr<Channel> channel, Terms terms, std::chrono::nanoseconds spin);
  /// Starts its threads, which use it for as long as they run: from here on it may not be deleted, even if this throws.
  void start();

  const Facts& facts() const { return terms_.facts; }
  const Terms& terms() const { return terms_; }
  CommandStream& commands() { return commands_; }
  Receiver& receiver() { return receiver_; }
  ClientLanes& lanes() { return lanes_; }
  ReplyCache& replies() { return replies_; }
  RepliesAhead& replies_ahead() { return replies_ahead_; }
  MemoryMap& map() { return map_; }
  DeviceMemory& device_memory() { return device_memory_; }
  HostMemory& host_memory() { return host_memory_; }
  SharedStaging& staging() { return staging_; }
  ManagedMemory& managed() { return managed_; }
  PeerAccess& peers() { return peers_; }
  SharedMemory& shared_memory() { return shared_memory_; }
  Functions& functions() { return functions_; }
  JitLinks& links() { return links_; }
  Captures& captures() { return captures_; }
  Fences& fences() { return fences_; }
  Callbacks& callbacks() { return callbacks_; }
  /// Where the worker's questions are answered: that may have to wait. Functions of the program, which may wait for the answers, run elsewhere.
  JobThread& answers() { return answers_; }
  StreamWaits& stream_waits() { return stream_waits_; }
  GraphParts& graph_parts() { return graph_parts_; }
  Graphs& graphs() { return graphs_; }
  GraphMemory& graph_memory() { return graph_memory_; }
  HandleMap<Stream>& streams() { return streams_; }
  HandleMap<Event>& events() { return events_; }

  /// Whether client and worker share memory, so that descriptors of more of it can be passed.
  bool shares_memory() const { return channel_->shares_memory(); }
  /// A descriptor that the worker has sent ahead of a reply; -1 if it has not.
  int receive_descriptor() { return channel_->receive_descriptor(); }

  bool worker_serves(Opcode opcode) const { return terms_.worker_opcodes.test(static_cast<unsigned>(opcode)); }
  /// The worker's number of a device; false if the program has no such device.
  bool worker_ordinal(CUdevice device, int& ordinal) const;
  CUdevice client_ordinal(int worker_ordinal) const;

  // --- reserved parts of the window (cuMemAddressReserve) ---

  void add_reservation(std::uint64_t base, std::uint64_t bytes);
  /// Whether one reservation holds this whole range.
  bool reserved(std::uint64_t address, std::uint64_t bytes) const;
  /// Forgets a reservation of exactly this range.
  bool remove_reservation(std::uint64_t base, std::uint64_t bytes);

  /// Variables of modules for which `which` holds are about to go: they are unknown from here on, and have no pages here, for others may
  /// lie there when the answer comes. Returned for the case that nobody is told.
  std::vector<Region> take_variables(const std::function<bool(const Region&)>& which);
  void return_variables(Thread& thread, const std::vector<Region>& variables);

  // --- contexts ---

  /// The primary context of a device, active or not.
  Context& primary(int device) { return *primaries_[static_cast<std::size_t>(device)]; }
  /// The context of a live handle (a primary one need not be active), or null.
  Context* find_context(CUcontext context);
  /// The devices that contexts are open on.
  std::set<int> devices_in_use();
  /// Whether it was a context and is destroyed.
  bool was_context(CUcontext context);
  /// Has the worker create or retain it. Under context_mutex().
  CUresult open_context(Thread& thread, Context& context, Handle resources = Handle());
  /// Destroys it at the worker and forgets what was made in it. Under context_mutex().
  CUresult close_context(Thread& thread, Context& context);
  /// The context that memory, events and code of this one belong to: itself, but for green ones.
  Context& home(Context& context) { return context.green ? primary(context.device) : context; }
  /// The green contexts of a primary context; none of others.
  std::vector<Context*> greens(const Context& primary);
  /// A created (not primary) context.
  Context* make_context(int device, unsigned flags);
  std::recursive_mutex& context_mutex() { return context_mutex_; }

  // --- order and waiting ---

  /// Waits for everything given to the context (cuCtxSynchronize); answered here if it is idle.
  CUresult synchronize(Thread& thread, Context& context);
  /// The same for one stream.
  CUresult synchronize(Thread& thread, Stream& stream);
  /// The same for waits that the program did not ask for: captures do not mind them.
  CUresult settle(Thread& thread, Context& context);
  CUresult settle(Thread& thread, Stream& stream);
  /// In place of a wait that nobody can notice, later work comes behind what the stream was given.
  CUresult put_before_all(Thread& thread, Stream& stream);
  /// Nothing is under way in any context.
  bool idle();
  /// Work under way waits for this process, which may yet change what later work is to read: host functions, values waited for.
  bool waits_for_host() const { return callbacks_.any_waiting() || stream_waits_.any(); }
  /// Under the command stream's lock.
  void note_submission(std::uint64_t number) { submitted_.store(number, std::memory_order_release); }
  std::uint64_t submitted() const { return submitted_.load(std::memory_order_relaxed); }
  /// A kernel of the device left an error behind: all contexts on it have it, as on NVIDIA's driver.
  void fail_contexts(int device, CUresult result);
  /// Waits while too much is pending on the stream.
  void take_credit(Thread& thread, Stream& stream);
  /// A call was answered after this time: the shortest is about a round trip.
  void note_wait(std::chrono::nanoseconds took);

  /// Work is about to be submitted that may use memory of the host: what the program changed there goes first.
  void before_work(Thread& thread) {
    host_memory_.before_work(thread);
    managed_.before_work(thread);
  }
  /// The program has waited for work.
  void after_wait(Thread& thread) {
    device_memory_.synchronized(thread);
    managed_.after_wait(thread);
    host_memory_.after_wait(thread);
  }

  /// A stream that the program does not know; null if there are too many.
  Stream* make_hidden_stream(Thread& thread, Context& context, unsigned flags);
  /// The default stream of a thread in its current context.
  Stream* thread_default_stream(Thread& thread, Context& context);

  /// Ends the session: nothing more is read or sent.
  /// Returns why it ended: another thread may have noticed before, and what this one met is only the consequence.
  std::string lose(const std::string& why) {
    end();
    std::string first = receiver_.lose(why + excuse());
    lanes_.close(first);
    return first;
  }
  /// Sends what is left and says goodbye.
  void leave() noexcept;

 private:
  void on_push(wire::Control::Reader push, std::span<std::byte> bulk) override;
  std::span<std::byte> place_delivery(wire::Deliver::Reader deliver, std::size_t bytes) override;
  void on_late_error(wire::LateError::Reader error);
  void answer_pull(std::uint64_t pull, std::uint64_t address, std::uint64_t bytes);
  void answer_part_pull(std::uint64_t pull, std::uint64_t part, std::uint64_t bytes);
  void send_pulled(std::uint64_t pull, std::span<const std::byte> rest);
  bool still_there(const GraphParts::Memory& memory) const;
  void deliver_part(std::uint64_t part, std::uint64_t offset, std::span<const std::byte> bytes);
  void call_part(std::uint64_t callback, std::uint64_t part);
  void function_done(std::uint64_t number);
  void release_part(std::uint64_t part);
  void close_green(Context& context);
  void serve();
  void wake_service();
  bool beat();
  std::string excuse() const;
  std::uint64_t stream_credit() const;
  void lose_silent();
  void end();

  template <class Fill>
  void tell_worker(Fill&& fill, std::span<const std::byte> bulk = {});

  std::unique_ptr<Channel> channel_;
  const Terms terms_;
  Waker service_waker_;
  std::atomic<bool> service_asleep_{false};
  std::atomic<bool> ended_{false};
  Receiver receiver_;
  ClientLanes lanes_;
  CommandStream commands_;
  ReplyCache replies_;
  RepliesAhead replies_ahead_;
  MemoryMap map_;
  DeviceMemory device_memory_;
  HostMemory host_memory_;
  SharedStaging staging_{*this};
  ManagedMemory managed_;
  PeerAccess peers_;
  SharedMemory shared_memory_;
  Functions functions_;
  JitLinks links_;
  Captures captures_;
  Fences fences_;
  Callbacks callbacks_;
  JobThread answers_{"fargpu-answers"};
  StreamWaits stream_waits_;
  GraphParts graph_parts_;
  Graphs graphs_;
  GraphMemory graph_memory_{*this};
  std::vector<std::byte> arriving_;  // what is being delivered, on its way to where it belongs; used by whoever reads
  HandleMap<Stream> streams_{HandleKind::stream};
  HandleMap<Event> events_{HandleKind::event};
  std::recursive_mutex context_mutex_;  // destructors of context-local values may call back
  HandleMap<Context> contexts_{HandleKind::context};
  std::deque<Context*> primaries_;
  std::atomic<std::uint64_t> submitted_{0};
  static constexpr std::uint32_t unknown_wait = ~0u;
  std::atomic<std::uint32_t> shortest_wait_us_{unknown_wait};
  Liveness liveness_;
  mutable std::mutex reservation_mutex_;
  std::map<std::uint64_t, std::uint64_t> reservations_;  // bytes by base
};

}  // namespace fargpu::client
