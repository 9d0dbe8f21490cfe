#include "worker_lanes.h"

#include <algorithm>

#include "protocol/errors.h"
#include "protocol/words.h"

namespace fargpu::server {
namespace {

/// The client hears of so many new chunks at once, unless it would have nothing to send.
constexpr std::uint64_t asked_at_once = 4;
constexpr std::size_t receiving_max = 4096;  // held back work is bounded too

}  // namespace

WorkerLanes::~WorkerLanes() { close(); }

void WorkerLanes::add_lane(std::shared_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before) {
  {
    const std::lock_guard lock(mutex_);
    const bool receives =
        std::any_of(slots_.begin(), slots_.end(), [&](const Slots& s) { return slots_of_class(s.of); });
    if (memory_.empty() && !gpu_memory_ && receives) {
      std::size_t bytes = 0;
      for (Slots& slots : slots_) {
        bytes += slots_of_class(slots.of) * chunk_bytes_of(slots.of);
        // Before there is memory: a lane that fails here leaves nothing half made.
        slots.free.reserve(slots_of_class(slots.of));
      }
      if (slot_memory_) gpu_memory_ = slot_memory_(bytes);
      if (!gpu_memory_) memory_ = Pages(bytes);
      if (!gpu_memory_ && memory_.empty()) throw SystemError("no memory for bulk lanes");
      std::span<std::byte> rest = gpu_memory_ ? std::span(gpu_memory_.get(), bytes) : memory_.bytes();
      for (Slots& slots : slots_) {
        while (slots.free.size() < slots_of_class(slots.of)) {
          slots.free.push_back(rest.first(chunk_bytes_of(slots.of)));
          rest = rest.subspan(chunk_bytes_of(slots.of));
        }
      }
    }
  }
  lanes_.add(std::move(channel), sent_before, taken_before);
}

void WorkerLanes::pin(DriverTable& driver, const ContextState& context) {
  const std::lock_guard lock(mutex_);
  if (pinned_in_ || memory_.empty()) return;
  const std::span<std::byte> bytes = memory_.bytes();
  if (driver.cuMemHostRegister_v2(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
    pinned_in_ = &context;
}

void WorkerLanes::context_closes(DriverTable& driver, const ContextState& context) {
  if (pinned_in_ != &context) return;
  driver.cuMemHostUnregister(memory_.bytes().data());
  pinned_in_ = nullptr;
}

// --- transfers from the client --------------------------------------------------------------------------------------

void WorkerLanes::receive(std::uint32_t transfer, const RowChunks& chunks, std::uint32_t early, bool in_order,
                          Taker taker) {
  if (in_order && early > 0) throw ProtocolError("chunks of the lanes come unasked before their stream gets there");
  begin(transfer, chunks, early, std::move(taker));
  ask_({.transfer = transfer, .chunks = early, .in_order = in_order});  // which gives the early ones back
  ask_for_more(lane_class(transfer));
}

void WorkerLanes::refuse(std::uint32_t transfer, std::uint32_t early) {
  if (early > 0) begin(transfer, RowChunks({early}, /*chunk_bytes_max=*/1), early, nullptr);
  ask_({.transfer = transfer, .chunks = early, .over = true});
}

void WorkerLanes::begin(std::uint32_t transfer, const RowChunks& chunks, std::uint32_t early, Taker taker) {
  if (early > std::min<std::uint64_t>(early_max(lane_class(transfer)), chunks.count()))
    throw ProtocolError("a copy on the lanes of which " + std::to_string(early) + " chunks come unasked");
  if (receiving_.size() == receiving_max) throw ProtocolError("too many copies on the lanes at once");
  const auto [place, is_new] = receiving_.try_emplace(transfer, chunks);
  if (!is_new) throw ProtocolError("a transfer has the number of one that goes on");
  Receiving& receiving = place->second;
  receiving.taker = std::move(taker);
  receiving.told = early;
  set_asked(transfer, receiving, early);
  std::vector<Landed> mine;
  std::erase_if(early_, [&](const Landed& landed) {
    if (landed.chunk.transfer == transfer) mine.push_back(landed);
    return landed.chunk.transfer == transfer;
  });
  for (const Landed& landed : mine) arrived(landed);
}

void WorkerLanes::set_asked(std::uint32_t transfer, Receiving& receiving, std::uint64_t asked) {
  slots_of(transfer).asked += asked - receiving.asked;
  receiving.slots += asked - receiving.asked;
  receiving.asked = asked;
  const std::lock_guard lock(mutex_);
  expected_[transfer] = asked;
  if (const auto early = unasked_.find(transfer); early != unasked_.end()) {
    slots_of(transfer).unasked -= early->second;
    unasked_.erase(early);
  }
}

// Each transfer may have half of the slots that the others leave it, so that one whose stream is busy for long does not
// keep them all.
void WorkerLanes::ask_for_more(LaneClass of) {
  const Slots& slots = slots_[static_cast<std::size_t>(of)];
  for (auto& [transfer, receiving] : receiving_) {
    if (slots.asked >= asked_max(of)) return;
    if (lane_class(transfer) != of || receiving.asked == receiving.arrived.size()) continue;
    const std::uint64_t share = std::max<std::uint64_t>(1, (asked_max(of) - slots.asked + receiving.slots) / 2);
    if (receiving.slots < share)
      set_asked(transfer, receiving,
                std::min<std::uint64_t>(receiving.arrived.size(), receiving.asked + share - receiving.slots));
    const std::uint64_t news = receiving.asked - receiving.told;
    const bool nothing_to_send = receiving.told + receiving.missing == receiving.arrived.size();
    if (news == 0 || (news < asked_at_once && receiving.asked < receiving.arrived.size() && !nothing_to_send)) continue;
    receiving.told = receiving.asked;
    ask_({.transfer = transfer, .chunks = static_cast<std::uint32_t>(receiving.asked)});
  }
}

void WorkerLanes::arrived(const Landed& landed) {
  const auto found = receiving_.find(landed.chunk.transfer);
  if (found == receiving_.end()) {
    early_.push_back(landed);
    return;
  }
  Receiving& receiving = found->second;
  const std::uint64_t number = landed.chunk.number;
  if (number >= receiving.told || receiving.arrived[number])
    throw ProtocolError("a chunk of the lanes that was not asked for, or came twice");
  receiving.arrived[number] = true;
  --receiving.missing;
  if (!receiving.taker) return give(landed.chunk.transfer, landed.slot);
  if (landed.slot.size() != receiving.chunks.part(number).shape.bytes())
    throw ProtocolError("a chunk of the lanes of a wrong length");
  const Taker taker = receiving.taker;
  taker(number, landed.slot);
}

void WorkerLanes::give(std::uint32_t transfer, std::span<std::byte> slot) {
  Slots& slots = slots_of(transfer);
  {
    const std::lock_guard lock(mutex_);
    slots.free.push_back({slot.data(), chunk_bytes_of(slots.of)});
  }
  changed_.notify_all();  // they wait for slots of either class
  --slots.asked;
  if (const auto found = receiving_.find(transfer); found != receiving_.end()) {
    --found->second.slots;
    forget_complete(found);
  }
  ask_for_more(slots.of);
}

void WorkerLanes::forget_complete(std::map<std::uint32_t, Receiving>::iterator receiving) {
  if (receiving->second.missing > 0 || receiving->second.slots > 0) return;
  {
    const std::lock_guard lock(mutex_);
    expected_.erase(receiving->first);
  }
  receiving_.erase(receiving);
}

// --- the lanes ------------------------------------------------------------------------------------------------------

void WorkerLanes::send(Chunk chunk, std::span<const std::byte> bytes, Release release) {
  const auto sent = [this, release = std::move(release)] {
    {
      const std::lock_guard lock(mutex_);
      left_.push_back(release);
    }
    waker_.signal();
  };
  lanes_.send(chunk, bytes, {.sent = sent, .unreadable = {}});
}

bool WorkerLanes::collect() {
  std::vector<Landed> landed;
  std::vector<Release> left;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_why_.empty()) throw ChannelClosed("a bulk lane is lost: " + lost_why_);
    landed.swap(landed_);
    left.swap(left_);
  }
  for (const Landed& one : landed) arrived(one);
  for (const Release& release : left) release();
  return !landed.empty() || !left.empty();
}

void WorkerLanes::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  lanes_.close();
  if (contents_) contents_->end();
}

// Slots that the GPU is still to copy from stay where they are for as long as this lives.
void WorkerLanes::forget_all() {
  receiving_.clear();
  early_.clear();
  const std::lock_guard lock(mutex_);
  landed_.clear();
  left_.clear();
}

// A slot becomes free without any help of the client: no more are asked for than there are, but for early chunks of
// calls that have begun meanwhile, and those go when the GPU gets there.
std::span<std::byte> WorkerLanes::place(Chunk chunk, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  Slots& slots = slots_of(chunk.transfer);
  if (bytes > chunk_bytes_of(slots.of))
    throw ProtocolError("a chunk of the lanes that is longer than its transfer's may be");
  if (const auto named = named_.find({chunk.transfer, chunk.number}); named == named_.end()) {
    expect_chunk(chunk);
  } else {
    if (named->second) throw ProtocolError("the bytes of a chunk of the lanes whose name has no answer yet");
    named_.erase(named);
  }
  return take_slot(lock, slots, bytes);
}

// Under the mutex.
void WorkerLanes::expect_chunk(Chunk chunk) {
  Slots& slots = slots_of(chunk.transfer);
  if (const auto asked = expected_.find(chunk.transfer); asked != expected_.end()) {
    if (chunk.number >= asked->second) throw ProtocolError("a chunk of the lanes that was not asked for");
  } else {
    if (slots.unasked == early_max(slots.of)) throw ProtocolError("more chunks of the lanes come unasked than may");
    ++slots.unasked;
    ++unasked_[chunk.transfer];
  }
}

std::span<std::byte> WorkerLanes::take_slot(std::unique_lock<std::mutex>& lock, Slots& slots, std::size_t bytes) {
  changed_.wait(lock, [&] { return closed_ || !slots.free.empty(); });
  if (closed_) return {};
  const std::span<std::byte> slot = slots.free.back();
  slots.free.pop_back();
  return slot.first(bytes);
}

void WorkerLanes::landed(Chunk chunk, std::span<std::byte> bytes, bool) {
  {
    const std::lock_guard lock(mutex_);
    landed_.push_back({chunk, bytes});
  }
  waker_.signal();
}

void WorkerLanes::keep(std::span<const std::byte> bytes) {
  if (!contents_) return ChunkHandler::keep(bytes);
  contents_->keep(bytes);
}

// --- contents that need not travel ----------------------------------------------------------------------------------

void WorkerLanes::heard(const ContentWord& word) {
  using Kind = ContentWord::Kind;
  if (!contents_ || (word.kind != Kind::named && word.kind != Kind::asked)) return ChunkHandler::heard(word);
  if (word.bytes == 0 || word.bytes > chunk_bytes_of(lane_class(word.chunk.transfer)))
    throw ProtocolError("contents of a length that no chunk of the lanes has");
  {
    const std::lock_guard lock(mutex_);
    if (named_.size() + questions_ >= limits::content_words_max)
      throw ProtocolError("more contents are named than chunks are under way");
  }
  if (word.kind == Kind::named) hear_name(word);
  else hear_question(word);
}

// A chunk that is named takes the slot that its bytes would take.
void WorkerLanes::hear_name(const ContentWord& word) {
  const Chunk chunk = word.chunk;
  {
    const std::lock_guard lock(mutex_);
    if (!named_.emplace(std::pair(chunk.transfer, chunk.number), true).second)
      throw ProtocolError("a chunk of the lanes that is named twice");
    expect_chunk(chunk);
  }
  const auto slot = [this, chunk, bytes = word.bytes] {
    std::unique_lock lock(mutex_);
    return take_slot(lock, slots_of(chunk.transfer), bytes);
  };
  contents_->find(word.name, word.bytes, slot,
                  [this, chunk](std::span<std::byte> place, bool known) { found(chunk, place, known); });
}

void WorkerLanes::hear_question(const ContentWord& word) {
  {
    const std::lock_guard lock(mutex_);
    ++questions_;
  }
  contents_->ask(word.name, word.bytes, [this, chunk = word.chunk](bool known) {
    {
      const std::lock_guard lock(mutex_);
      --questions_;
    }
    answer(chunk, known);
  });
}

// On a thread of the desk.
void WorkerLanes::found(Chunk chunk, std::span<std::byte> slot, bool known) {
  {
    const std::lock_guard lock(mutex_);
    const auto named = named_.find({chunk.transfer, chunk.number});
    if (known) {
      named_.erase(named);
    } else {
      named->second = false;  // before the client hears of it, and sends the bytes
      if (!slot.empty()) {
        Slots& slots = slots_of(chunk.transfer);
        slots.free.push_back({slot.data(), chunk_bytes_of(slots.of)});
      }
    }
  }
  answer(chunk, known);
  if (!known) return changed_.notify_all();
  try {
    landed(chunk, slot, /*whole=*/true);
  } catch (const std::exception& error) {  // most likely memory ran out
    lost(words(error.what()));
  }
}

void WorkerLanes::answer(Chunk chunk, bool known) {
  try {
    lanes_.say({known ? ContentWord::Kind::known : ContentWord::Kind::unknown, chunk});
  } catch (const std::exception& error) {
    lost(words(error.what()));
  }
}

void WorkerLanes::lost(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (lost_why_.empty()) lost_why_ = words(why);  // what comes later follows from it
  }
  waker_.signal();
}

}  // namespace fargpu::server
