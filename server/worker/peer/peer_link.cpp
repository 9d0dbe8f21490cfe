#include "peer_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "protocol/errors.h"
#include "protocol/frame_reader.h"
#include "protocol/message.h"
#include "protocol/rdma/stable_memory.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t out_bytes = limits::link_chunks * limits::lane_chunk_bytes;

LaneRoom room_of(PeerLink::End end) {
  if (end == PeerLink::End::source) return {.asked = {0, 0}, .early = false};
  return {.asked = {limits::link_chunks, limits::link_small_chunks}, .early = false};
}

// What the other end's machine has not confirmed for so long never arrives: TCP itself would try for a quarter of an
// hour. Where it cannot be set the link's silence tells.
void give_up_after(std::chrono::milliseconds silence, int descriptor) {
  const auto milliseconds = static_cast<unsigned>(silence.count());
  if (descriptor >= 0)
    (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

}  // namespace

/// The link's own connection. The thread that says something sends it at once, as far as the connection takes it; the
/// thread that attends sends the rest.
class PeerLink::Line final : FrameHandler {
 public:
  Line(PeerLink& link, std::shared_ptr<Channel> channel)
      : channel(std::move(channel)), link_(link), reader_(*this->channel, *this, /*frames_before=*/1) {}

  void say(FrameKind kind, std::span<const std::byte> message) {
    FrameHeader header;
    header.kind = kind;
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    const std::lock_guard lock(mutex_);
    header.sequence = ++sequence_;
    if (rest_.size() + message.size() > limits::link_said_bytes_max)
      throw ChannelClosed("the other host's worker takes nothing");
    const auto head = std::as_bytes(std::span(&header, 1));
    rest_.insert(rest_.end(), head.begin(), head.end());
    rest_.insert(rest_.end(), message.begin(), message.end());
    said_at_ = Clock::now();
    flush_locked();
    if (!rest_.empty()) waker.signal();
  }
  bool flush() {
    const std::lock_guard lock(mutex_);
    return flush_locked();
  }
  bool waits() {
    const std::lock_guard lock(mutex_);
    return !rest_.empty();
  }
  Clock::time_point said_at() {
    const std::lock_guard lock(mutex_);
    return said_at_;
  }
  bool pump() { return reader_.pump(); }

  const std::shared_ptr<Channel> channel;
  Waker waker;

 private:
  bool flush_locked() {
    std::size_t sent = 0;
    while (sent < rest_.size()) {
      const std::array<Channel::Bytes, 1> piece{std::span<const std::byte>(rest_).subspan(sent)};
      const std::size_t more = channel->send_some(piece);
      if (more == 0) break;
      sent += more;
    }
    rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(sent));
    return sent > 0;
  }

  std::optional<std::span<std::byte>> place(const FrameHeader&, std::span<const std::byte>) override {
    throw ProtocolError("contents on a link's own connection");
  }
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte>) override {
    if (header.kind == FrameKind::heartbeat) return;
    if (header.kind != FrameKind::control) throw ProtocolError("a frame that does not belong on a link");
    MessageReader reader(message);
    const auto control = reader.root<wire::Control>();
    if (!control.isPeer()) throw ProtocolError("a message that does not belong on a link");
    const auto peer = control.getPeer();
    Word word;
    switch (peer.which()) {
      case wire::PeerWord::WANTED: word = Wanted{peer.getWanted().getTransfer(), peer.getWanted().getChunks()}; break;
      case wire::PeerWord::BEGINS: word = Begins{peer.getBegins()}; break;
      case wire::PeerWord::LANDED: word = Landed{peer.getLanded()}; break;
      case wire::PeerWord::PASSED: word = Passed{peer.getPassed()}; break;
      default: throw ProtocolError("a word that links do not have");
    }
    {
      const std::lock_guard lock(link_.mutex_);
      link_.bound(link_.heard_.size());
      link_.heard_.push_back(word);
    }
    link_.waker_.signal();
  }

  PeerLink& link_;
  FrameReader reader_;
  std::mutex mutex_;
  std::vector<std::byte> rest_;
  std::uint32_t sequence_ = 1;
  Clock::time_point said_at_ = Clock::now();
};

PeerLink::PeerLink(std::uint32_t number, End end, Waker& waker, Compression compression,
                   std::chrono::milliseconds silence)
    : number_(number),
      end_(end),
      waker_(waker),
      silence_(silence),
      lanes_(
          waker, compression,
          [this](const ClientRequests::Chunks& wanted) {
            say([&](wire::PeerWord::Builder word) {
              auto told = word.initWanted();
              told.setTransfer(wanted.transfer);
              told.setChunks(wanted.chunks);
            });
          },
          room_of(end)) {}

PeerLink::~PeerLink() {
  close();
  if (!out_memory_.empty()) rdma::StableMemory::of_process().remove(out_memory_.bytes().data());
}

std::uint64_t PeerLink::memory_of(End end) {
  if (end == End::source) return out_bytes;
  return limits::link_chunks * limits::lane_chunk_bytes + limits::link_small_chunks * limits::lane_small_chunk_bytes;
}

// --- connections ----------------------------------------------------------------------------------------------------

bool PeerLink::take(std::uint32_t channel, std::shared_ptr<Channel> connection,
                    const std::function<void(Channel&)>& first) {
  give_up_after(silence_, connection->descriptor());
  const std::lock_guard lock(mutex_);
  if (closed_ || channel > limits::link_lanes || !channels_.insert(channel).second) {
    connection->close();
    return false;
  }
  if (first) first(*connection);
  if (channel != 0) {
    lanes_.add_lane(std::move(connection), 1, 1);
    return true;
  }
  line_ = std::make_shared<Line>(*this, std::move(connection));
  thread_ = std::thread([this, line = line_] { attend(*line); });
  ::pthread_setname_np(thread_.native_handle(), "fargpu-link");
  return true;
}

void PeerLink::attend(Line& line) {
  try {
    const auto interval = std::chrono::duration_cast<Channel::Timeout>(silence_) / limits::heartbeats_per_silence;
    auto heard_at = Clock::now();
    for (;;) {
      const bool heard = line.pump(), said = line.flush();
      const auto now = Clock::now();
      if (heard) heard_at = now;
      if (heard || said) continue;
      if (now - heard_at >= silence_) throw ChannelClosed("the other host's worker does not answer any more");
      if (now - line.said_at() >= interval) line.say(FrameKind::heartbeat, {});
      line.channel->wait({.readable = true, .writable = line.waits()}, interval, &line.waker);
    }
  } catch (const kj::Exception& error) {
    lose(error.getDescription().cStr());
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

// Any thread.
void PeerLink::lose(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (lost_why_.empty()) lost_why_ = why;
  }
  waker_.signal();
}

void PeerLink::close() {
  std::shared_ptr<Line> line;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    line = line_;
  }
  if (line) line->channel->close();
  if (thread_.joinable()) thread_.join();
  lanes_.close();
}

void PeerLink::abandon() {
  failure_ = "the session is over";
  close();
  lanes_.forget_all();
  sending_.clear();
  receiving_.clear();
  awaiting_.clear();
}

void PeerLink::fail(const std::string& why) {
  if (!failure_.empty()) return;
  failure_ = why.empty() ? "it ended" : why;
  close();
  lanes_.forget_all();
  for (const auto& [transfer, sending] : std::exchange(sending_, {})) sending.lost();
  for (const auto& [transfer, receiving] : std::exchange(receiving_, {})) receiving.lost();
  for (const auto& [number, awaiting] : std::exchange(awaiting_, {})) awaiting.lost();
  wanted_early_.clear();
  began_early_.clear();
  passed_early_.clear();
}

// --- words ----------------------------------------------------------------------------------------------------------

// Nobody that keeps to the protocol says so much that no call has asked for.
void PeerLink::bound(std::size_t things) {
  if (things >= limits::link_words_max) throw ProtocolError("more words on a link than it may have waiting");
}

void PeerLink::say(const std::function<void(wire::PeerWord::Builder)>& fill) {
  if (!failure_.empty()) return;
  std::shared_ptr<Line> line;
  {
    const std::lock_guard lock(mutex_);
    line = line_;
  }
  try {
    if (!line) throw ChannelClosed("it has no connection");
    MessageWriter writer;
    fill(writer.root<wire::Control>().initPeer());
    line->say(FrameKind::control, writer.finish());
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

void PeerLink::say_begins(std::uint32_t transfer) {
  say([&](wire::PeerWord::Builder word) { word.setBegins(transfer); });
}
void PeerLink::say_landed(std::uint32_t transfer) {
  say([&](wire::PeerWord::Builder word) { word.setLanded(transfer); });
}
void PeerLink::say_passed(std::uint64_t number) {
  say([&](wire::PeerWord::Builder word) { word.setPassed(number); });
}

bool PeerLink::collect() {
  if (!failure_.empty()) return false;
  std::vector<Word> heard;
  std::string lost;
  {
    const std::lock_guard lock(mutex_);
    heard.swap(heard_);
    lost = lost_why_;
  }
  try {
    if (!lost.empty()) throw ChannelClosed(lost);
    for (const Word& word : heard) {
      if (!failure_.empty()) return true;  // by what the last one had done
      hear(word);
    }
    return lanes_.collect() || !heard.empty();
  } catch (const std::exception& error) {
    fail(error.what());
    return true;
  }
}

// A word may come ahead of the call that it concerns: the client has told both workers, each by its own connection.
void PeerLink::hear(const Word& word) {
  const bool of_target = std::holds_alternative<Wanted>(word) || std::holds_alternative<Landed>(word);
  if (of_target != (end_ == End::source)) throw ProtocolError("a word of the wrong end of a link");
  if (const auto* const wanted = std::get_if<Wanted>(&word)) {
    if (const auto found = sending_.find(wanted->transfer); found != sending_.end()) {
      const auto go_on = found->second.wanted;
      return go_on(wanted->chunks);
    }
    bound(wanted_early_.size());
    std::uint32_t& early = wanted_early_[wanted->transfer];
    early = std::max(early, wanted->chunks);
  } else if (const auto* const landed = std::get_if<Landed>(&word)) {
    const auto found = sending_.find(landed->transfer);
    if (found == sending_.end()) throw ProtocolError("a transfer has landed that there is not");
    const auto go_on = found->second.landed;
    go_on();
  } else if (const auto* const begins = std::get_if<Begins>(&word)) {
    if (const auto found = receiving_.find(begins->transfer); found != receiving_.end()) {
      const auto go_on = found->second.begins;
      return go_on();
    }
    bound(began_early_.size());
    if (!began_early_.insert(begins->transfer).second) throw ProtocolError("a transfer begins twice");
  } else {
    const std::uint64_t number = std::get<Passed>(word).number;
    if (auto found = awaiting_.extract(number)) return found.mapped().passed();
    bound(passed_early_.size());
    if (!passed_early_.insert(number).second) throw ProtocolError("an event has passed twice");
  }
}

void PeerLink::send(std::uint32_t transfer, Sending sending) {
  const auto go_on = sending.wanted;
  bound(sending_.size());
  if (!sending_.emplace(transfer, std::move(sending)).second)
    throw ProtocolError("a transfer on a link has the number of one that goes on");
  if (const auto early = wanted_early_.extract(transfer)) go_on(early.mapped());
}

void PeerLink::receive(std::uint32_t transfer, Receiving receiving) {
  const auto go_on = receiving.begins;
  bound(receiving_.size());
  if (!receiving_.emplace(transfer, std::move(receiving)).second)
    throw ProtocolError("a transfer on a link has the number of one that goes on");
  if (began_early_.erase(transfer) > 0) go_on();
}

void PeerLink::await(std::uint64_t number, Awaiting awaiting) {
  if (passed_early_.erase(number) > 0) return awaiting.passed();
  bound(awaiting_.size());
  if (!awaiting_.emplace(number, std::move(awaiting)).second)
    throw ProtocolError("an event on a link has the number of one that is waited for");
}

void PeerLink::forget(std::uint32_t transfer) {
  sending_.erase(transfer);
  receiving_.erase(transfer);
}

// --- memory ---------------------------------------------------------------------------------------------------------

void PeerLink::pin(DriverTable& driver, const ContextState& context) {
  if (end_ == End::target) return lanes_.pin(driver, context);
  if (out_memory_.empty()) {
    out_memory_ = Pages(out_bytes);
    if (out_memory_.empty()) return fail("no memory for what it carries");
    out_ = StagingSpace(out_memory_.bytes());
    rdma::StableMemory::of_process().add(out_memory_.bytes().data(), out_memory_.bytes().size());
  }
  if (out_pinned_in_) return;
  const std::span<std::byte> bytes = out_memory_.bytes();
  if (driver.cuMemHostRegister_v2(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
    out_pinned_in_ = &context;
}

void PeerLink::context_closes(DriverTable& driver, const ContextState& context) {
  lanes_.context_closes(driver, context);
  if (out_pinned_in_ != &context) return;
  driver.cuMemHostUnregister(out_memory_.bytes().data());
  out_pinned_in_ = nullptr;
}

}  // namespace fargpu::server
