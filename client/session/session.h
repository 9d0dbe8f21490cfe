#pragma once
// The session: this process at one GPU host, put together from its parts.

#include <cuda.h>

#include <atomic>
#include <bitset>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "client/base/handle_map.h"
#include "client/base/job_thread.h"
#include "client/call/calls.h"
#include "client/call/client_lanes.h"
#include "client/code/functions.h"
#include "client/code/jit_links.h"
#include "client/code/variables.h"
#include "client/connect/facts.h"
#include "client/connect/windows.h"
#include "client/copy/copier.h"
#include "client/memory/device_memory.h"
#include "client/memory/graph_memory.h"
#include "client/memory/host_memory.h"
#include "client/memory/host_pool.h"
#include "client/memory/managed_memory.h"
#include "client/memory/memory_map.h"
#include "client/memory/peer_access.h"
#include "client/memory/reservations.h"
#include "client/memory/shared_memory.h"
#include "client/memory/shared_staging.h"
#include "client/objects/capture.h"
#include "client/objects/contexts.h"
#include "client/objects/elapsed_times.h"
#include "client/objects/graph_parts.h"
#include "client/objects/graphs.h"
#include "client/stream/callbacks.h"
#include "client/stream/fences.h"
#include "client/stream/stream_waits.h"
#include "client/stream/whole_system_work.h"
#include "client/stream/streams.h"
#include "place.h"
#include "protocol/channel.h"
#include "protocol/limits.h"
#include "pushes.h"
#include "service.h"
#include "waits.h"

namespace fargpu::client {

/// What the handshake settled.
struct Terms {
  std::uint64_t session_id = 0;
  unsigned origin = 0;  ///< number of the session in its process
  Window device_window;
  Window host_window;
  Window driver_band;
  Facts facts;
  std::bitset<opcode_max + 1> worker_opcodes;
  std::string host;                                             ///< for messages
  std::chrono::milliseconds silence = limits::silence_timeout;  ///< after which the worker is taken for dead
  unsigned lanes = 0;                                           ///< bulk lanes wanted
  bool lanes_fixed = false;                                     ///< all of them are used, whatever the line carries
  bool resumes = false;                                         ///< its connections outlive a break
  std::uint64_t credit_bytes = limits::credit_bytes;            ///< for calls that the worker may have to keep
  Compression compression = Compression::never;                 ///< of contents of memory
  ContentTerms contents;                                        ///< that the host has kept
  bool one_process = false;                                     ///< the worker's (tests)
  PeerPlace peer;                                               ///< for links of other hosts with this one
  std::function<std::shared_ptr<Channel>()> open_lane;          ///< connects one; null where there are none
};

/// The parts, and nothing but what concerns several of them. Each part is given those below it that it uses, lowest
/// first:
///
///     variables, pushes, waits                            code, what the worker says, before work and after waits
///     shared_memory  graph_memory  staging  host_pools    memory
///     host_memory
///     managed  device_memory  peers  map  reservations
///     callbacks  whole_system_work  stream_waits  fences  streams  order
///     calls  lanes                                        the way to the worker
///     contexts  events  elapsed_times  captures           objects: tables that call nobody
///     graphs  graph_parts
///
/// Upwards a part speaks through CallEvents (calls), PushHandler (the receiver) and Settler (memory that waits for
/// work). A session lives as long as the process. Its parts are thread-safe by themselves; locks are taken in this
/// order: contexts.mutex(), a part's own, the command stream's, the receiver's.
class Session final : CallEvents {
 public:
  Session(std::shared_ptr<Channel> channel, Terms terms, std::chrono::nanoseconds spin);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Starts its threads, which use it for as long as they run: from here on it may not be deleted, even if this throws.
  void start();
  /// Sends what is left and says goodbye.
  void leave() noexcept;
  /// Ends the session: nothing more is read or sent.
  void lose(const std::string& why) noexcept override;
  /// What is done when it is lost, each time somebody notices; the reason is the first one's, of which what others met
  /// is a consequence.
  void at_loss(void (*action)(Session& session, const std::string& why) noexcept) { at_loss_ = action; }

  /// Has the worker create or retain the context. Under contexts.mutex().
  CUresult open_context(Thread& thread, Context& context, Handle resources = Handle());
  /// Destroys it at the worker and forgets what was made in it. Under contexts.mutex().
  CUresult close_context(Thread& thread, Context& context);

  /// Whether client and worker share memory, so that descriptors of more of it can be passed.
  bool shares_memory() const { return channel_->shares_memory(); }
  /// What it goes by, for people.
  std::string medium() const { return channel_->medium(); }

 private:
  const std::shared_ptr<Channel> channel_;

 public:
  const Terms terms;
  /// Constructed before the other parts, which take it by a reference to its base class, Settler; pushes_ likewise.
  Waits waits;

 private:
  Pushes pushes_;

 public:
  Captures captures;
  HandleMap<Event> events;
  std::atomic<bool> asks_each_time{false};  ///< a record is not watched: each query goes to the worker from then on
  ElapsedTimes elapsed_times;
  GraphParts graph_parts;
  Graphs graphs;
  Streams streams;
  Contexts contexts;
  Calls calls;
  ClientLanes lanes;
  Fences fences;
  Callbacks callbacks;
  /// Where the worker's questions are answered: that may have to wait. Functions of the program, which may wait for the
  /// answers, run elsewhere.
  JobThread answers{"fargpu-answers", {}, [this](const char* why) { lose_for(*this, why); }};
  StreamWaits stream_waits;
  WholeSystemWork whole_system_work;
  MemoryMap map;
  Reservations reservations;
  PeerAccess peers;
  DeviceMemory device_memory;
  ManagedMemory managed;
  HostMemory host_memory;
  HostPools host_pools;
  GraphMemory graph_memory;
  SharedMemory shared_memory;
  SharedStaging staging;
  Functions functions;
  JitLinks links;
  Variables variables;
  const CopyParts copy_parts;

 private:
  void fence_wanted(Thread& thread, Stream& stream, std::uint64_t items) override;
  CUresult with_room(Thread& thread, Context& context, const std::function<CUresult()>& ask) override;
  void pool_over(const std::shared_ptr<MemoryPool>& pool);
  void close_green(Context& context);
  void tell_lane_lost(const std::string& why) noexcept;
  template <class Fill>
  void tell(Fill&& fill) noexcept;

  Service service_;
  std::atomic<void (*)(Session&, const std::string&) noexcept> at_loss_{nullptr};
};

}  // namespace fargpu::client
