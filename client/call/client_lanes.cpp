#include "client_lanes.h"

#include <algorithm>
#include <utility>

#include "client/base/log.h"
#include "client/base/uncancelled.h"
#include "protocol/errors.h"
#include "protocol/program_memory.h"
#include "protocol/words.h"

namespace fargpu::client {

bool ClientLanes::takes(std::uint64_t bytes, bool awaited, bool to_worker) {
  // For a thread that waits, one lane is no better than the session's connection, unless it has less to carry, or the
  // connection copies what it sends: a lane lends it.
  const bool one_will_do = !awaited || resumed_ || (to_worker && !choice_.never() && bytes >= limits::lane_large_bytes);
  if (wanted_ < (one_will_do ? 1u : 2u) || bytes < (awaited ? limits::lane_copy_bytes_min : limits::lane_row_bytes_min))
    return false;
  std::call_once(opened_, [this] {
    try {
      for (unsigned i = 0; i < wanted_; ++i) {
        if (ended()) return;  // a host that has gone answers no more, and a copy would wait to see that
        lanes_.add(open_(), 1, 1);
      }
      ready_ = true;
    } catch (const std::exception& error) {  // the worker may have one more than came about here, and would use it
      if (!ended()) log::warn("large copies go by one connection: {}", error.what());
    }
  });
  return ready_.load(std::memory_order_acquire);
}

// --- to the worker --------------------------------------------------------------------------------------------------

std::shared_ptr<const ClientLanes::Outgoing> ClientLanes::offer(const LaneRows& rows, bool in_order,
                                                                std::function<void()> unreadable, const CopyStream& on,
                                                                const Call& call, CUresult& result) {
  auto outgoing = std::make_shared<Outgoing>(Outgoing{rows, std::move(unreadable), on});
  outgoing->awaited = !in_order && !outgoing->unreadable;
  std::uint32_t transfer;
  {
    const std::lock_guard lock(mutex_);
    transfer = next(rows.lane_class());
    // Half of what is free, so that the next copy has some too.
    std::uint32_t& free = early_free(rows.lane_class());
    if (!in_order) outgoing->early = static_cast<std::uint32_t>(std::min<std::uint64_t>((free + 1) / 2, rows.chunks()));
    free -= outgoing->early;
    outgoing_[transfer] = outgoing;
  }
  const auto take_back = [&] {
    const std::lock_guard lock(mutex_);
    early_free(rows.lane_class()) += std::exchange(outgoing->early, 0);
    outgoing_.erase(transfer);
  };
  const std::uint32_t early = outgoing->early;
  try {
    result = call(transfer, early);
  } catch (...) {
    take_back();
    throw;
  }
  if (result != CUDA_SUCCESS) {
    take_back();
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  outgoing->sent = true;
  outgoing->asked = std::max<std::uint64_t>(outgoing->asked, early);
  queue(transfer, outgoing);
  return outgoing;
}

// Under the mutex: gives the lanes what has been asked for.
void ClientLanes::queue(std::uint32_t transfer, const std::shared_ptr<Outgoing>& outgoing) {
  if (outgoing->ahead) names_.want(transfer, outgoing->asked, outgoing->over);
  const auto next = [&] { return Chunk{transfer, static_cast<std::uint32_t>(outgoing->queued)}; };
  for (; outgoing->queued < outgoing->asked; ++outgoing->queued) queue(next(), outgoing);
  while (outgoing->awaited && !outgoing->over && outgoing->queued < outgoing->rows.chunks() &&
         queue_ahead(next(), outgoing))
    ++outgoing->queued;
}

// Under the mutex.
void ClientLanes::queue(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing) {
  using Way = ContentChoice::Way;
  const LaneRows& rows = outgoing->rows;
  const bool gone = outgoing->forgotten, packed = rows.packed(), absent = !outgoing->unreadable;
  const Way way = choose(*outgoing);
  if ((way == Way::asked || way == Way::named) && name(chunk, outgoing, way, /*ahead=*/false)) return;
  const bool keep = way == Way::kept;
  if (keep && packed && !rows.of_no_file()) names_.learn(rows.place_of(chunk.number));
  const Lanes::Told told = told_of(chunk, outgoing);
  if (!gone && packed) return lanes_.send(chunk, rows.place_of(chunk.number), told, {.absent = absent, .keep = keep});
  const auto gather = [outgoing, number = chunk.number, gone](std::span<std::byte> into) {
    return !gone && outgoing->rows.gather(number, into);
  };
  lanes_.send(chunk, rows.bytes_of(chunk.number), gather, told, {.keep = keep});
}

// Under the mutex. False if the chunk will not be named, or has to wait.
bool ClientLanes::queue_ahead(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing) {
  if (outgoing->rows.lane_class() != LaneClass::large || choice_.never()) return false;
  const auto way = choose(*outgoing);
  if (way == ContentChoice::Way::named && !outgoing->forgotten && name(chunk, outgoing, way, /*ahead=*/true))
    return outgoing->ahead = true;
  outgoing->way = way;
  return false;
}

// Under the mutex: the way of the chunk that is queued next.
ContentChoice::Way ClientLanes::choose(Outgoing& outgoing) {
  const auto chosen = std::exchange(outgoing.way, std::nullopt);
  if (outgoing.rows.lane_class() != LaneClass::large || choice_.never() || outgoing.forgotten)
    return ContentChoice::Way::plain;
  return chosen
             ? *chosen
             : choice_.next(outgoing.rows.bytes_of(outgoing.queued), lanes_.line_rate(), ContentChoice::Clock::now());
}

Lanes::Told ClientLanes::told_of(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing) {
  return {.sent = [this, transfer = chunk.transfer, outgoing] { read(transfer, *outgoing); },
          .unreadable = [this, outgoing] { fail(*outgoing); }};
}

// Under the mutex. False if it cannot be named now.
bool ClientLanes::name(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing, ContentChoice::Way way,
                       bool ahead) {
  const LaneRows& rows = outgoing->rows;
  const bool packed = rows.packed(), ours = rows.of_no_file(), absent = !outgoing->unreadable;
  const auto gather = [outgoing, number = chunk.number, copied = ours || !packed, absent](std::span<std::byte> into) {
    if (copied) return outgoing->rows.gather(number, into);
    const auto place = outgoing->rows.place_of(number);
    if (absent) bring_program_memory(place.data(), place.size());
    return read_program_memory(place.data(), into.data(), into.size());
  };
  const bool added = names_.add({.chunk = chunk,
                                 .bytes = rows.bytes_of(chunk.number),
                                 .way = way,
                                 .gather = gather,
                                 .place = packed && !ours ? rows.place_of(chunk.number) : std::span<std::byte>(),
                                 .told = told_of(chunk, outgoing)},
                                ahead);
  if (added && way == ContentChoice::Way::named) ++contents_.named;
  return added;
}

NamedChunks::Events ClientLanes::name_events() {
  return {.say = [this](const ContentWord& word) { lanes_.say(word); },
          .send =
              [this](Chunk chunk, std::span<const std::byte> bytes, bool keep, std::function<void()> sent) {
                lanes_.send(chunk, bytes, {.sent = std::move(sent), .unreadable = {}}, {.keep = keep});
              },
          .hashed =
              [this](std::uint64_t bytes, ContentChoice::Clock::duration took) {
                const std::lock_guard lock(mutex_);
                choice_.hashed(bytes, took);
                contents_.hashing += took;
              },
          .remembered =
              [this] {
                const std::lock_guard lock(mutex_);
                ++contents_.remembered;
              },
          .answered = [this](ContentChoice::Way way, bool known, std::uint64_t bytes,
                             ContentChoice::Clock::time_point said) { answered(way, known, bytes, said); },
          .failed = [this](const std::string& why) { lost(why); }};
}

void ClientLanes::answered(ContentChoice::Way way, bool known, std::uint64_t bytes,
                           ContentChoice::Clock::time_point said) {
  const std::lock_guard lock(mutex_);
  choice_.answered(way, known, bytes, said, ContentChoice::Clock::now());
  if (!known || way != ContentChoice::Way::named) return;
  ++contents_.known;
  contents_.known_bytes += bytes;
}

stats::ContentCounts ClientLanes::content_counts() {
  const std::lock_guard lock(mutex_);
  return contents_;
}

// On a thread of the lanes, or one that copies, when a chunk has left.
void ClientLanes::read(std::uint32_t transfer, Outgoing& outgoing) {
  const std::lock_guard lock(mutex_);
  ++outgoing.read;
  if (outgoing.complete()) outgoing_.erase(transfer);
  if (outgoing.read == outgoing.queued) changed_.notify_all();
}

// On such a thread, while the worker still misses bytes of the chunk: nothing has told the program yet that the copy is
// done.
void ClientLanes::fail(Outgoing& outgoing) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(outgoing.readable, false)) return;
  }
  if (outgoing.unreadable) outgoing.unreadable();
}

// The thread that waits copies chunks itself, besides the threads that do.
template <class Read>
void ClientLanes::wait_until_read(Lock& lock, Read&& all_read) {
  const Uncancelled uncancelled;
  while (!ended_ && !all_read()) {
    lock.unlock();
    const bool copied = names_.gather_next();
    lock.lock();
    if (!copied && !ended_ && !all_read()) changed_.wait(lock);
  }
  if (all_read()) return;
  const std::string why = why_;
  end_stragglers(lock);
  throw ChannelClosed(why);
}

bool ClientLanes::wait_read(const Outgoing& outgoing) {
  Lock lock(mutex_);
  wait_until_read(lock, [&] { return outgoing.all_read(); });
  return outgoing.readable;
}

// Somebody waits now, so what will be named is copied before it is asked for.
void ClientLanes::wait_all_read(const OnStreams& of) {
  Lock lock(mutex_);
  std::vector<std::shared_ptr<Outgoing>> unread;
  for (const auto& [transfer, outgoing] : outgoing_) {
    if (!outgoing->on.stream || !outgoing->sent || outgoing->all_read() || !of(outgoing->on)) continue;
    outgoing->awaited = true;
    queue(transfer, outgoing);
    unread.push_back(outgoing);
  }
  wait_until_read(lock, [&] {
    return std::all_of(unread.begin(), unread.end(), [](const auto& outgoing) { return outgoing->all_read(); });
  });
}

bool ClientLanes::reads_any(const OnStreams& of) {
  const std::lock_guard lock(mutex_);
  return std::any_of(outgoing_.begin(), outgoing_.end(), [&](const auto& entry) {
    return entry.second->on.stream && !entry.second->all_read() && of(entry.second->on);
  });
}

void ClientLanes::wanted(std::uint32_t transfer, std::uint32_t chunks, bool over) {
  std::shared_ptr<Incoming> ended;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = outgoing_.find(transfer); found != outgoing_.end()) {
      const std::shared_ptr<Outgoing> outgoing = found->second;
      if (chunks > outgoing->rows.chunks()) throw ProtocolError("the worker wants more of a copy than there is");
      early_free(outgoing->rows.lane_class()) += std::exchange(outgoing->early, 0);
      outgoing->begun = true;
      outgoing->asked = std::max<std::uint64_t>(outgoing->asked, chunks);
      outgoing->over = outgoing->over || over;
      queue(transfer, outgoing);
      if (!outgoing->complete()) return;
      outgoing_.erase(transfer);
      changed_.notify_all();
    } else if (const auto coming = incoming_.find(transfer); over && coming != incoming_.end()) {
      Incoming& incoming = *coming->second;
      if (incoming.missing == 0) return;
      incoming.over = incoming.forgotten = true;
      incoming.missing = incoming.writing;  // until these have landed, their memory is in use
      if (incoming.missing > 0) return;
      ended = coming->second;
      forget_complete();
      changed_.notify_all();
    }
  }
  if (ended && ended->done) ended->done(true);
}

// --- from the worker ------------------------------------------------------------------------------------------------

std::shared_ptr<ClientLanes::Incoming> ClientLanes::expect(const LaneRows& rows, std::function<void(bool)> done,
                                                           std::uint32_t& transfer) {
  auto incoming = std::make_shared<Incoming>(rows, std::move(done));
  const std::lock_guard lock(mutex_);
  for (const auto& [number, other] : incoming_) {
    if (!other->rows.overlaps(rows.begin(), rows.end())) continue;
    if (!other->rows.packed() || !rows.packed()) return nullptr;
    other->contested = incoming->contested = true;
  }
  transfer = next(rows.lane_class());
  incoming_[transfer] = incoming;
  return incoming;
}

bool ClientLanes::wait_arrived(const Incoming& incoming) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || incoming.missing == 0; });
  if (incoming.missing > 0) throw ChannelClosed(why_);
  return incoming.written;
}

void ClientLanes::cancel(std::uint32_t transfer) {
  Lock lock(mutex_);
  const auto found = incoming_.find(transfer);
  if (found == incoming_.end()) return;
  const std::shared_ptr<Incoming> incoming = found->second;
  if (incoming->missing == 0) return;
  incoming->forgotten = true;
  changed_.wait(lock, [&] { return incoming->writing == 0 || ended_; });
  if (incoming->writing > 0) end_stragglers(lock);
  incoming_.erase(transfer);
}

void ClientLanes::wait_for_chunks(std::uint32_t chunks) {
  bool suspected = false;
  while (!lanes_.wait_taken(chunks, silence_)) {
    const std::string silent = "the bulk lanes bring nothing of a copy that the worker has sent";
    {
      const std::lock_guard lock(mutex_);
      if (ended_) throw ChannelClosed(why_);
    }
    if (lanes_.resuming()) continue;
    if (std::exchange(suspected, true) || !lanes_.suspect(silent)) throw ChannelClosed(silent);
  }
}

// Where the chunk lies, or memory of ours if it cannot come there at once.
std::span<std::byte> ClientLanes::place(Chunk chunk, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = incoming_.find(chunk.transfer);
  if (found == incoming_.end() || found->second->missing == 0 || found->second->over) return {};
  Incoming& incoming = *found->second;
  if (chunk.number >= incoming.begun.size() || incoming.begun[chunk.number] ||
      bytes != incoming.rows.bytes_of(chunk.number))
    throw ProtocolError("a chunk of the lanes that is none of its transfer, or came twice");
  incoming.begun[chunk.number] = true;
  ++incoming.writing;
  if (!incoming.forgotten && incoming.rows.packed() && !incoming.rows.unsure() && !incoming.contested) {
    ++incoming.in_place;
    return incoming.rows.place_of(chunk.number);
  }
  std::vector<std::byte> memory;
  if (!spare_.empty()) {
    memory = std::move(spare_.back());
    spare_.pop_back();
  }
  memory.resize(limits::lane_chunk_bytes);
  std::byte* const begin = memory.data();
  lent_.emplace(begin, std::move(memory));
  return {begin, bytes};
}

void ClientLanes::landed(Chunk chunk, std::span<std::byte> bytes, bool whole) {
  Lock lock(mutex_);
  const auto found = incoming_.find(chunk.transfer);
  if (found == incoming_.end()) return;  // cancelled while the lanes were closed
  const std::shared_ptr<Incoming> incoming = found->second;
  const bool elsewhere = lent_.contains(bytes.data());
  bool written = whole;
  if (elsewhere && !incoming->forgotten) {
    lock.unlock();
    written = write(*incoming, chunk.transfer, chunk.number, bytes);
    lock.lock();
  }
  if (elsewhere) spare_.push_back(std::move(lent_.extract(bytes.data()).mapped()));
  else --incoming->in_place;
  --incoming->writing;
  incoming->written = incoming->written && written;
  if (incoming->missing > 0 && --incoming->missing == 0 && incoming->done) {
    lock.unlock();
    incoming->done(incoming->written);
    lock.lock();
  }
  if (incoming->missing == 0) forget_complete();
  changed_.notify_all();
}

bool ClientLanes::write(const Incoming& incoming, std::uint32_t transfer, std::uint64_t chunk,
                        std::span<const std::byte> bytes) {
  bool contested;
  {
    const std::lock_guard lock(mutex_);
    contested = incoming.contested;
  }
  if (!contested) return incoming.rows.scatter(chunk, bytes);
  const std::lock_guard contest(contest_);
  return write_uncontested(incoming, transfer, chunk, bytes);
}

// Where several copies write the same memory, the one that was called last counts: whatever of it has come stays. An
// older one may be writing its chunk in place, because nothing contested that when it came; its lane waits for nobody.
bool ClientLanes::write_uncontested(const Incoming& incoming, std::uint32_t transfer, std::uint64_t chunk,
                                    std::span<const std::byte> bytes) {
  const auto place = incoming.rows.place_of(chunk);
  const auto begin = reinterpret_cast<std::uint64_t>(place.data()), end = begin + place.size();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> newer;
  {
    Lock lock(mutex_);
    const auto in_place = [&](const auto& other) {
      return other.first != transfer && other.second->in_place > 0 && other.second->rows.overlaps(begin, end);
    };
    changed_.wait(lock, [&] { return ended_ || std::none_of(incoming_.begin(), incoming_.end(), in_place); });
    for (auto it = incoming_.upper_bound(transfer); it != incoming_.end(); ++it) {
      const Incoming& other = *it->second;
      if (!other.rows.overlaps(begin, end)) continue;
      for (std::uint64_t n = 0; n < other.begun.size(); ++n) {
        const auto theirs = other.rows.place_of(n);
        const auto at = reinterpret_cast<std::uint64_t>(theirs.data());
        if (other.begun[n] && at < end && begin < at + theirs.size()) newer.emplace_back(at, at + theirs.size());
      }
    }
  }
  std::sort(newer.begin(), newer.end());
  newer.emplace_back(end, end);
  bool written = true;
  for (std::uint64_t at = begin; const auto& [from, to] : newer) {
    if (from > at) written = incoming.rows.write(at, bytes.subspan(at - begin, from - at)) && written;
    at = std::max(at, to);
    if (at >= end) break;
  }
  return written;
}

// Under the mutex. A complete one is known for as long as an older one that it contests is not.
void ClientLanes::forget_complete() {
  bool older_missing = false;
  std::erase_if(incoming_, [&](const auto& entry) {
    const Incoming& incoming = *entry.second;
    const bool over = incoming.missing == 0 && incoming.writing == 0;
    older_missing = older_missing || (!over && incoming.contested);
    return over && !(incoming.contested && older_missing);
  });
}

// --- ends -----------------------------------------------------------------------------------------------------------

bool ClientLanes::uses(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  return std::any_of(outgoing_.begin(), outgoing_.end(), [&](const auto& entry) {
    return !entry.second->all_read() && entry.second->rows.overlaps(begin, end);
  });
}

void ClientLanes::forget(std::uint64_t begin, std::uint64_t end) {
  Lock lock(mutex_);
  const auto each = [&](auto& transfers, auto&& action) {
    for (const auto& [number, transfer] : transfers)
      if (transfer->rows.overlaps(begin, end)) action(*transfer);
  };
  each(outgoing_, [](Outgoing& outgoing) { outgoing.forgotten = true; });
  each(incoming_, [](Incoming& incoming) { incoming.forgotten = true; });
  const auto at_rest = [&] {
    bool busy = false;
    each(outgoing_, [&](const Outgoing& outgoing) { busy = busy || outgoing.read < outgoing.queued; });
    each(incoming_, [&](const Incoming& incoming) { busy = busy || incoming.writing > 0; });
    return !busy;
  };
  changed_.wait(lock, [&] { return ended_ || at_rest(); });
  if (!at_rest()) end_stragglers(lock);
}

// The session has ended, and a lane may be reading or writing now what is the program's again.
void ClientLanes::end_stragglers(Lock& lock) {
  lock.unlock();
  lanes_.close();
  names_.end();
  lock.lock();
}

// The session may have ended in good order, of which its own connection tells.
// A transfer that misses bytes is told this.
void ClientLanes::lost(const std::string& why) noexcept {
  const std::string text = words("a bulk lane is lost: ", why);
  if (close(text)) tell_lost_(text);
}

bool ClientLanes::ended() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool ClientLanes::close(const std::string& why) noexcept {
  bool first;
  {
    const std::lock_guard lock(mutex_);
    first = !std::exchange(ended_, true);
    if (first) why_ = words(why);
  }
  changed_.notify_all();
  lanes_.give_up();
  names_.give_up();
  return first;
}

}  // namespace fargpu::client
