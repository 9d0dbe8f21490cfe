#pragma once
// Contents of memory on the session's bulk lanes, between the lanes' threads and the executor.

#include <cuda.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver_table.h"
#include "server/worker/base/pages.h"
#include "protocol/channel.h"
#include "protocol/lanes.h"
#include "protocol/row_chunks.h"
#include "server/worker/call/client_requests.h"
#include "server/worker/contents/content_desk.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// How many chunks may be asked for at a time, of each class; and whether others come unasked, besides.
struct LaneRoom {
  std::array<std::uint64_t, lane_classes> asked;  // by LaneClass
  bool early = true;

  /// Of a session's own lanes.
  static constexpr LaneRoom of_client() { return {.asked = {72, 64}}; }
};

/// Chunks that arrive lie in slots of memory of their own until the GPU has copied them. So that every chunk that
/// arrives finds a slot, a client sends only what the worker has asked for: chunks of transfers whose calls are being
/// executed, so that nothing but the GPU keeps their slots from becoming free. Few chunks, the *early* ones, come
/// unasked, before the call that they belong to is executed.
class WorkerLanes final : ChunkHandler {
 public:
  /// What a transfer does with a chunk, which lies in a slot that must be given back. On the executor.
  using Taker = std::function<void(std::uint64_t chunk, std::span<std::byte> slot)>;
  using Release = std::function<void()>;
  /// Memory of a GPU for so many bytes of slots; null: they lie in the host's memory.
  using SlotMemory = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;
  /// Tells the client that it may send chunks. On the executor.
  using Ask = std::function<void(const ClientRequests::Chunks&)>;

  /// The waker brings the executor to collect(). `contents`: what the host keeps of the client's tenant; null: nothing,
  /// and there are no words about it. `slot_memory`: asked when the first lane is there; null: the host's memory.
  WorkerLanes(Waker& waker, Compression compression, Ask ask, const LaneRoom& room = LaneRoom::of_client(),
              std::unique_ptr<ContentDesk> contents = nullptr, SlotMemory slot_memory = nullptr)
      : waker_(waker),
        ask_(std::move(ask)),
        room_(room),
        slot_memory_(std::move(slot_memory)),
        contents_(std::move(contents)),
        lanes_(*this, compression) {}
  ~WorkerLanes() override;

  /// Takes a lane. Any thread. Throws SystemError if there is no memory for it.
  void add_lane(std::shared_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before);

  /// Null: nothing is kept.
  ContentDesk* contents() { return contents_.get(); }

  bool lanes_full() const { return lanes_.count() >= limits::lanes_max; }

  // --- for the executor ---------------------------------------------------------------------------------------------

  /// The slots are pinned in the current context, unless they are already; copies from them are slower otherwise.
  void pin(DriverTable& driver, const ContextState& context);
  /// The context is about to go, or the lanes are.
  void context_closes(DriverTable& driver, const ContextState& context);

  /// `taker` gets the chunks of this transfer, each once, from collect(). The first `early` come unasked, the others
  /// are asked for as there are slots. Throws ProtocolError for a number that is in use, and for more early chunks than
  /// there can be.
  void receive(std::uint32_t transfer, const RowChunks& chunks, std::uint32_t early, bool in_order, Taker taker);
  /// The chunk that the taker was given is not needed any more.
  void give(std::uint32_t transfer, std::span<std::byte> slot);
  /// Nobody wants the early chunks of this transfer, which come all the same. Throws as receive().
  void refuse(std::uint32_t transfer, std::uint32_t early);

  /// Whether chunks of transfers that were begun are still to come.
  bool receiving() const { return !receiving_.empty(); }

  /// Sends a chunk from where it lies; `release` runs in collect() when it has left.
  void send(Chunk chunk, std::span<const std::byte> bytes, Release release);
  /// How many were given to send().
  std::uint64_t given() const { return lanes_.given(); }

  /// Hands over what has happened on the lanes. Returns whether anything had. Throws ProtocolError for chunks that were
  /// not asked for, and ChannelClosed when a lane is lost.
  bool collect();

  /// Ends the lanes.
  void close();
  /// After that: nothing more is heard of transfers, of which some may have come or left.
  void forget_all();

 private:
  /// Slots of one class of transfers.
  struct Slots {
    explicit Slots(LaneClass what) : of(what) {}
    const LaneClass of;
    std::uint64_t asked = 0;  // chunks that were asked for and not given back; used by the executor only
    // Under the mutex.
    std::vector<std::span<std::byte>> free;
    unsigned unasked = 0;  // chunks that have come of transfers that have not begun
  };
  struct Receiving {
    explicit Receiving(const RowChunks& parts) : chunks(parts), arrived(parts.count()) {}
    RowChunks chunks;
    std::vector<bool> arrived;
    std::uint64_t missing = arrived.size();
    std::uint64_t asked = 0;  // for the chunks below this number
    std::uint64_t slots = 0;  // asked for and not given back
    std::uint64_t told = 0;   // of asked, what the client knows
    Taker taker;              // null: nobody wants them
  };
  struct Landed {
    Chunk chunk;
    std::span<std::byte> slot;
  };

  std::span<std::byte> place(Chunk chunk, std::size_t bytes) override;
  void landed(Chunk chunk, std::span<std::byte> bytes, bool whole) override;
  void keep(std::span<const std::byte> bytes) override;
  void heard(const ContentWord& word) override;
  void hear_name(const ContentWord& word);
  void hear_question(const ContentWord& word);
  void found(Chunk chunk, std::span<std::byte> slot, bool known);
  void answer(Chunk chunk, bool known);
  void expect_chunk(Chunk chunk);
  std::span<std::byte> take_slot(std::unique_lock<std::mutex>& lock, Slots& slots, std::size_t bytes);
  void lost(const std::string& why) noexcept override;
  void begin(std::uint32_t transfer, const RowChunks& chunks, std::uint32_t early, Taker taker);
  void set_asked(std::uint32_t transfer, Receiving& receiving, std::uint64_t asked);
  void ask_for_more(LaneClass of);
  Slots& slots_of(std::uint32_t transfer) { return slots_[static_cast<std::size_t>(lane_class(transfer))]; }
  void arrived(const Landed& landed);
  void forget_complete(std::map<std::uint32_t, Receiving>::iterator receiving);

  std::uint32_t early_max(LaneClass of) const { return room_.early ? early_chunks_of(of) : 0; }
  std::uint64_t asked_max(LaneClass of) const { return room_.asked[static_cast<std::size_t>(of)]; }
  std::size_t slots_of_class(LaneClass of) const { return asked_max(of) + early_max(of); }

  Waker& waker_;
  const Ask ask_;
  const LaneRoom room_;
  const SlotMemory slot_memory_;
  // Used by the executor only.
  std::map<std::uint32_t, Receiving> receiving_;  // until all chunks have come and been given back
  std::vector<Landed> early_;                     // their transfer has not begun
  const ContextState* pinned_in_ = nullptr;
  // Everything below under the mutex.
  std::mutex mutex_;
  std::condition_variable changed_;
  Pages memory_;
  std::shared_ptr<std::byte> gpu_memory_;  // of the slots, instead
  std::array<Slots, lane_classes> slots_{Slots(LaneClass::large), Slots(LaneClass::small)};
  // Transfers of receiving_, and up to which chunk they were asked for.
  std::map<std::uint32_t, std::uint64_t> expected_;
  std::map<std::uint32_t, unsigned> unasked_;  // transfers that have not begun, and how many chunks of theirs have come
  std::vector<Landed> landed_;
  std::vector<Release> left_;
  // Chunks that were named, and whose bytes have neither been found nor sent: whether they are still looked for.
  std::map<std::pair<std::uint32_t, std::uint32_t>, bool> named_;
  std::size_t questions_ = 0;  // that are not answered
  std::string lost_why_;
  bool closed_ = false;
  const std::unique_ptr<ContentDesk> contents_;
  Lanes lanes_;  // last: its threads use the rest
};

}  // namespace fargpu::server
