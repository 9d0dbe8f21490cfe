#include "resumable_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "device_bytes.h"
#include "errors.h"
#include "words.h"

namespace fargpu {
namespace {

constexpr std::size_t raw_bytes = 32u << 10;          // received at once, where headers may be among it
constexpr std::size_t direct_bytes_min = 8u << 10;    // more of one record goes where it belongs without that
constexpr std::size_t resent_bytes_max = 256u << 10;  // in one record
constexpr std::size_t pieces_max = 7;                 // besides a header
// A piece of this length may be a program's memory; who sends puts what is its own first, or together.
constexpr std::size_t foreign_bytes_min = 8u << 10;
constexpr std::size_t bounce_bytes = 256u << 10;  // of memory of a GPU, at once, by a connection that cannot have it
constexpr std::size_t looks_max = 1024;           // at what came before a break
/// How long a thread that waits for room sleeps before it looks again at who receives; a thread that receives wakes it.
constexpr Channel::Timeout look = std::chrono::milliseconds(5);

/// Counts a thread while it waits for something.
class Counted {
 public:
  Counted(std::atomic<unsigned>& threads, bool waits) : threads_(threads), waits_(waits) {
    if (waits_) threads_.fetch_add(1);
  }
  ~Counted() {
    if (waits_) threads_.fetch_sub(1);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<unsigned>& threads_;
  const bool waits_;
};

// Whether the other end's kernel has been silent for so long about what was sent. TCP_USER_TIMEOUT of the kernel does
// not do: it ends also connections whose other end says that it has no room, as one does that is busy for long.
bool is_silent(const Channel& connection) {
  constexpr std::uint32_t silent_ms = 3000;
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(connection.descriptor(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked > 0 &&
         info.tcpi_last_ack_recv >= silent_ms && info.tcpi_last_data_recv >= silent_ms;
}

}  // namespace

void watch_connection(const Channel& connection) {
  constexpr int on = 1, idle_s = 1, interval_s = 1, probes = 3;
  const int descriptor = connection.descriptor();
  const auto set = [&](int level, int option, int value) {
    (void)::setsockopt(descriptor, level, option, &value, sizeof(value));  // fails where it is no TCP, harmlessly
  };
  set(SOL_SOCKET, SO_KEEPALIVE, on);
  set(IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, probes);
}

ResumableChannel::ResumableChannel(std::shared_ptr<Channel> connection, std::size_t log_bytes, Hooks hooks)
    : peer_(connection->peer()),
      log_bytes_(log_bytes),
      hooks_(std::move(hooks)),
      log_(log_bytes),
      raw_(raw_bytes),
      connection_(std::move(connection)),
      straight_(dynamic_cast<StraightSender*>(connection_.get())) {
  changed_.signal();
}

// --- states ---------------------------------------------------------------------------------------------------------

void ResumableChannel::require_open() const {
  if (phase_.load(std::memory_order_acquire) != Phase::over) return;
  const std::lock_guard lock(state_mutex_);
  throw ChannelClosed(over_);
}

bool ResumableChannel::resuming() const { return phase_.load(std::memory_order_acquire) == Phase::broken; }

std::uint32_t ResumableChannel::epoch() const {
  const std::lock_guard lock(state_mutex_);
  return epoch_;
}

// What came before the end is not lost: who sends may notice the break first.
bool ResumableChannel::break_off(const std::shared_ptr<Channel>& connection, const Break& what) {
  {
    const std::lock_guard receiving(receive_mutex_);
    if (phase_.load() != Phase::whole || connection_ != connection) return false;
    try {
      for (std::size_t looks = 0; looks < looks_max && keep_some(*connection); ++looks) {}
    } catch (const std::exception&) {  // its end
    }
    const std::lock_guard lock(state_mutex_);
    if (phase_.load() != Phase::whole) return false;
    break_ = what;
    phase_.store(Phase::broken);
    changed_.drain();
  }
  connection->close();
  return true;
}

void ResumableChannel::broke(const std::shared_ptr<Channel>& connection, const std::string& why, bool ended) {
  const Break what{.why = why, .ended = ended, .at = Clock::now()};
  if (break_off(connection, what) && hooks_.broke) hooks_.broke(what);
}

bool ResumableChannel::suspect(const std::string& why) {
  if (const auto connection = current()) broke(connection, why, /*ended=*/false);
  return phase_.load() != Phase::over;
}

std::shared_ptr<Channel> ResumableChannel::current() const {
  const std::lock_guard lock(state_mutex_);
  return phase_.load(std::memory_order_relaxed) == Phase::whole ? connection_ : nullptr;
}

std::uint64_t ResumableChannel::fence() {
  if (const auto connection = current())
    break_off(connection, {.why = "another connection takes its place", .ended = false, .at = Clock::now()});
  require_open();
  const std::lock_guard receiving(receive_mutex_);
  return consumed_.load(std::memory_order_relaxed) + inbox_bytes_.load(std::memory_order_relaxed);
}

void ResumableChannel::resume(std::shared_ptr<Channel> connection, std::uint32_t epoch, std::uint64_t peer_received) {
  {
    const std::lock_guard sending(send_mutex_);
    const std::lock_guard receiving(receive_mutex_);
    const std::lock_guard lock(state_mutex_);
    if (phase_.load() == Phase::over) throw ChannelClosed(over_);
    if (phase_.load() == Phase::whole) throw ProtocolError("a connection is resumed that is not broken");
    if (peer_received < log_.begin() || peer_received > shown_.load())
      throw ProtocolError(peer_ + " says it has received " + std::to_string(peer_received) + " bytes, of which " +
                          std::to_string(log_.begin()) + " to " + std::to_string(shown_.load()) + " can be");
    connection_ = connection;
    straight_ = dynamic_cast<StraightSender*>(connection.get());
    epoch_ = epoch;
    sent_ = std::min(peer_received, log_.end());
    ahead_ = static_cast<std::size_t>(peer_received - sent_);
    header_left_ = record_left_ = record_missing_ = 0;
    raw_begin_ = raw_end_ = 0;
    resending_ = sent_ < log_.end();
    acknowledgement_due_ = true;  // an earlier one may not have arrived
    heard_ = false;
    phase_.store(Phase::whole);
    changed_.signal();
  }
}

void ResumableChannel::catch_up(const std::shared_ptr<Channel>& connection) {
  try {
    while (true) {
      {
        const std::lock_guard sending(send_mutex_);
        if (connection_ != connection || phase_.load() != Phase::whole) return;
        send_missing(*connection);
        if (sent_ == log_.end()) {
          resending_ = false;
          break;
        }
      }
      connection->wait({.writable = true}, look);
    }
  } catch (const ChannelClosed& closed) {
    broke(connection, closed.what(), false);
    return;
  } catch (const DeviceBytesError& error) {  // what has to be sent again is lost
    give_up(error.what());
    return;
  }
  settle_acknowledgement();
}

void ResumableChannel::let_out() noexcept {
  if (const auto connection = current()) connection->let_out();
}

std::string ResumableChannel::medium() const {
  const std::lock_guard lock(state_mutex_);
  return connection_->medium();
}

void ResumableChannel::show_up() {
  acknowledgement_due_ = true;
  settle_acknowledgement();
}

void ResumableChannel::give_up(const std::string& why) noexcept {
  const std::lock_guard lock(state_mutex_);
  if (phase_.load() == Phase::over) return;
  over_ = words(why);
  phase_.store(Phase::over);
  changed_.signal();
  // Under the lock, which every thread takes that learns of the end: the owner of the connection may destroy it then.
  connection_->close();
}

void ResumableChannel::judge_patience() {
  if (!hooks_.impatience) return;
  Break what;
  {
    const std::lock_guard lock(state_mutex_);
    if (phase_.load() != Phase::broken) return;
    what = break_;
  }
  if (const std::string words = hooks_.impatience(what); !words.empty()) give_up(words);
}

// --- sending --------------------------------------------------------------------------------------------------------

void ResumableChannel::begin_record(std::size_t bytes) {
  acknowledgement_due_ = false;
  ResumableHeader header;
  header.bytes = static_cast<std::uint32_t>(bytes);
  header.epoch = epoch_;
  header.consumed = consumed_.load(std::memory_order_acquire);
  std::memcpy(header_.data(), &header, sizeof(header));
  told_.store(header.consumed, std::memory_order_relaxed);
  header_left_ = sizeof(header);
  record_left_ = bytes;
  shown_.store(std::max(shown_.load(std::memory_order_relaxed), sent_ + bytes), std::memory_order_release);
}

// Whether these bytes lie where this connection cannot have them.
bool ResumableChannel::bounces(const void* address) const {
  return DeviceBytes::contains(address) && !(straight_ && straight_->takes_device_bytes());
}

// Shows the connection what is left of the record: the same bytes each time until it has them. Returns how many of the
// pieces it took.
std::size_t ResumableChannel::send_record(Channel& connection, std::span<const Bytes> pieces) {
  std::array<Bytes, pieces_max + 1> parts;
  std::size_t count = 0, room = record_left_;
  if (header_left_ > 0) parts[count++] = Bytes(header_).last(header_left_);
  for (const Bytes& piece : pieces) {
    if (piece.empty()) continue;
    if (room == 0 || count == parts.size()) break;
    parts[count] = piece.first(std::min(room, piece.size()));
    if (bounces(piece.data())) {
      parts[count] = parts[count].first(std::min(parts[count].size(), bounce_bytes));
      send_bounce_.resize(bounce_bytes);
      copy_wherever(send_bounce_.data(), parts[count].data(), parts[count].size());
      parts[count] = Bytes(send_bounce_).first(parts[count].size());
      ++count;
      break;  // the buffer is full, or what comes behind has its turn
    }
    room -= parts[count++].size();
  }
  const std::size_t sent = connection.send_some(std::span<const Bytes>(parts.data(), count));
  const std::size_t of_header = std::min(sent, header_left_);
  header_left_ -= of_header;
  record_left_ -= sent - of_header;
  return sent - of_header;
}

// Sends the rest of an acknowledgement that has left in part. False if it has not left altogether.
bool ResumableChannel::finish_header(Channel& connection) {
  while (header_left_ > 0) {
    const std::size_t before = header_left_;
    send_record(connection, {});
    if (header_left_ == before) return false;
  }
  return true;
}

std::size_t ResumableChannel::send_new(Channel& connection, std::span<const Bytes> pieces) {
  log_.drop_before(std::min(peer_consumed_.load(std::memory_order_acquire), sent_));
  std::size_t bytes = 0, count = 0;
  for (const Bytes& piece : pieces)
    if (!piece.empty() && count++ < pieces_max) bytes += piece.size();
  if (ahead_ > 0) {
    const std::size_t known = std::min(bytes, ahead_);
    ahead_ -= known;
    log(pieces, known);
    return known;
  }
  if (record_left_ == 0) {
    if (!finish_header(connection)) return 0;
    bytes = std::min(bytes, log_.room());
    if (bytes == 0) return 0;
    begin_record(bytes);
  }
  if (straight_) straight_->lend(lent_);
  const std::size_t taken = send_record(connection, pieces);
  log(pieces, taken);
  return taken;
}

void ResumableChannel::log(std::span<const Bytes> pieces, std::size_t bytes) {
  sent_ += bytes;
  bool first = true;
  for (const Bytes& piece : pieces) {
    if (bytes == 0) break;
    const std::size_t part = std::min(bytes, piece.size());
    const bool lent = piece.data() >= lent_.data() && piece.data() + piece.size() <= lent_.data() + lent_.size();
    if (part > 0 && DeviceBytes::contains(piece.data())) {
      if (!lent) throw std::logic_error("memory of a GPU is sent that was not lent");
      log_.lend(piece.first(part));
    } else if (more_ && lent) {
      log_.lend(piece.first(part));
    } else {
      log_.append(piece.first(part), !first && piece.size() >= foreign_bytes_min);
    }
    bytes -= part;
    first = false;
  }
  end_.store(sent_, std::memory_order_release);
}

void ResumableChannel::lend(Bytes bytes, bool more) {
  const std::lock_guard sending(send_mutex_);
  lent_ = bytes;
  more_ = more;
}

bool ResumableChannel::needs(Bytes bytes) {
  const std::lock_guard sending(send_mutex_);
  log_.drop_before(std::min(peer_consumed_.load(std::memory_order_acquire), sent_));
  return log_.has_lent(bytes) || (straight_ && straight_->needs(bytes));
}

void ResumableChannel::copy_lent() {
  const std::lock_guard sending(send_mutex_);
  copy_loans();
}

void ResumableChannel::copy_loans() {
  log_.copy_loans([this](Bytes bytes) { lost_.push_back(bytes); });
}

bool ResumableChannel::lost(Bytes bytes) {
  const std::lock_guard sending(send_mutex_);
  return std::erase_if(lost_, [&](Bytes one) {
           return one.data() < bytes.data() + bytes.size() && bytes.data() < one.data() + one.size();
         }) > 0;
}

// What the last connection did not bring.
void ResumableChannel::send_missing(Channel& connection) {
  while (sent_ < log_.end()) {
    if (record_left_ == 0) {
      if (!finish_header(connection)) return;
      begin_record(std::min<std::size_t>(static_cast<std::size_t>(log_.end() - sent_), resent_bytes_max));
    }
    const std::size_t before = header_left_;
    std::size_t taken = 0;
    try {
      taken = send_record(connection, log_.from(sent_));
    } catch (const SystemError&) {  // the program has taken away what it had lent
      if (!log_.lends()) throw;
      copy_loans();
      continue;
    }
    sent_ += taken;
    if (taken == 0 && header_left_ == before) return;
  }
}

std::size_t ResumableChannel::send_some(std::span<const Bytes> pieces) {
  std::shared_ptr<Channel> failed;
  std::string why;
  bool ended = false;
  std::size_t taken = 0;
  {
    const std::lock_guard sending(send_mutex_);
    unsent_.store(true, std::memory_order_relaxed);
    if (phase_.load(std::memory_order_acquire) != Phase::whole || resending_.load(std::memory_order_relaxed)) {
      require_open();
      return 0;
    }
    try {
      taken = send_new(*connection_, pieces);
      if (taken > 0) unsent_.store(false, std::memory_order_release);
    } catch (const ChannelClosed& closed) {
      failed = connection_;
      why = closed.what();
      ended = is_end(closed);
    }
  }
  if (failed) broke(failed, why, ended);
  else if (acknowledgement_due_.load()) settle_acknowledgement();
  return taken;
}

bool ResumableChannel::has_room() const {
  return !resending_.load() && end_.load(std::memory_order_acquire) < peer_consumed_.load() + log_bytes_;
}

// A thread that sends now looks at this once more when it is done.
void ResumableChannel::settle_acknowledgement() {
  while (acknowledgement_due_.load()) {
    std::shared_ptr<Channel> failed;
    std::string why;
    bool ended = false;
    {
      const std::unique_lock sending(send_mutex_, std::try_to_lock);
      if (!sending || phase_.load() != Phase::whole || resending_.load() || record_left_ > 0) return;
      try {
        if (header_left_ == 0) begin_record(0);
        if (!finish_header(*connection_)) {
          acknowledgement_due_ = true;
          return;
        }
      } catch (const ChannelClosed& closed) {
        failed = connection_;
        why = closed.what();
        ended = is_end(closed);
      }
    }
    if (failed) return broke(failed, why, ended);
  }
}

// --- receiving ------------------------------------------------------------------------------------------------------

void ResumableChannel::read_header(const std::byte* at) {
  ResumableHeader header;
  std::memcpy(&header, at, sizeof(header));
  if (header.epoch != epoch_) throw ProtocolError(peer_ + " sends of another connection");
  if (header.bytes > log_bytes_) throw ProtocolError(peer_ + " sends more at once than may be on its way");
  if (header.consumed > shown_.load(std::memory_order_acquire) || header.consumed < peer_consumed_.load())
    throw ProtocolError(peer_ + " confirms what it cannot have received");
  peer_consumed_.store(header.consumed);  // before the look at who waits for it, as they look in the other order
  if (room_waiters_.load() > 0) sleepers_.wake();
  record_missing_ = header.bytes;
}

// Whether there is something to use, or a header to read.
bool ResumableChannel::fill_raw(Channel& connection) {
  if (raw_begin_ > 0) {
    std::memmove(raw_.data(), raw_.data() + raw_begin_, raw_end_ - raw_begin_);
    raw_end_ -= std::exchange(raw_begin_, 0);
  }
  const std::size_t got = connection.receive_some(std::span(raw_).subspan(raw_end_));
  raw_end_ += got;
  if (got > 0) heard_.store(true, std::memory_order_release);
  return got > 0;
}

/// Hands over the bytes of records, without their headers.
template <class Use>
void ResumableChannel::use_raw(Use&& use) {
  while (true) {
    while (record_missing_ == 0) {
      if (raw_end_ - raw_begin_ < sizeof(ResumableHeader)) return;
      read_header(raw_.data() + raw_begin_);
      raw_begin_ += sizeof(ResumableHeader);
    }
    const std::size_t used = use(Bytes(raw_).subspan(raw_begin_, std::min(record_missing_, raw_end_ - raw_begin_)));
    if (used == 0) return;
    raw_begin_ += used;
    record_missing_ -= used;
  }
}

std::size_t ResumableChannel::receive(Channel& connection, std::span<std::byte> buffer) {
  std::size_t got = 0;
  const auto use = [&](Bytes bytes) {
    const std::size_t part = std::min(bytes.size(), buffer.size() - got);
    if (part > 0) copy_wherever(buffer.data() + got, bytes.data(), part);
    got += part;
    return part;
  };
  use_raw(use);
  if (got > 0) return got;
  if (raw_begin_ == raw_end_ && std::min(record_missing_, buffer.size()) >= direct_bytes_min) {
    got = receive_straight(connection, buffer.first(std::min(record_missing_, buffer.size())));
    record_missing_ -= got;
    return got;
  }
  while (got == 0 && fill_raw(connection)) use_raw(use);
  return got;
}

std::size_t ResumableChannel::receive_straight(Channel& connection, std::span<std::byte> buffer) {
  if (!bounces(buffer.data())) return connection.receive_some(buffer);
  receive_bounce_.resize(bounce_bytes);
  const std::size_t got =
      connection.receive_some(std::span(receive_bounce_).first(std::min(buffer.size(), bounce_bytes)));
  copy_wherever(buffer.data(), receive_bounce_.data(), got);
  return got;
}

// Takes what has come before anybody asks for it. It is no more than the other end may have on its way.
bool ResumableChannel::keep_some(Channel& connection) {
  const auto use = [&](Bytes bytes) {
    keep(bytes);
    return bytes.size();
  };
  use_raw(use);
  const bool came = fill_raw(connection);
  use_raw(use);
  return came;
}

void ResumableChannel::keep(Bytes bytes) {
  const std::size_t kept = inbox_bytes_.load(std::memory_order_relaxed);
  if (kept + bytes.size() > log_bytes_) throw ProtocolError(peer_ + " sends more than may be on its way");
  if (inbox_begin_ == inbox_.size()) {
    inbox_.clear();
    inbox_begin_ = 0;
  }
  inbox_.insert(inbox_.end(), bytes.begin(), bytes.end());
  inbox_bytes_.store(kept + bytes.size(), std::memory_order_release);
}

std::size_t ResumableChannel::take_kept(std::span<std::byte> buffer) {
  const std::size_t kept = inbox_bytes_.load(std::memory_order_relaxed), part = std::min(kept, buffer.size());
  if (part == 0) return 0;
  copy_wherever(buffer.data(), inbox_.data() + inbox_begin_, part);
  inbox_begin_ += part;
  inbox_bytes_.store(kept - part, std::memory_order_release);
  if (part == kept) {
    inbox_ = {};
    inbox_begin_ = 0;
  }
  return part;
}

std::size_t ResumableChannel::receive_some(std::span<std::byte> buffer) {
  if (buffer.empty()) return 0;
  std::shared_ptr<Channel> failed;
  std::string why;
  bool ended = false, broken = false;
  std::size_t got = 0;
  {
    const std::lock_guard receiving(receive_mutex_);
    got = take_kept(buffer);
    if (got == 0) {
      broken = phase_.load(std::memory_order_acquire) != Phase::whole;
      try {
        if (!broken) got = receive(*connection_, buffer);
      } catch (const ChannelClosed& closed) {
        failed = connection_;
        why = closed.what();
        ended = is_end(closed);
      }
    }
    if (got > 0) consumed_.store(consumed_.load(std::memory_order_relaxed) + got, std::memory_order_release);
  }
  if (failed) broke(failed, why, ended);
  if (broken) {
    judge_patience();
    require_open();
  }
  if (got > 0 && consumed_.load(std::memory_order_relaxed) - told_.load(std::memory_order_relaxed) >= log_bytes_ / 4)
    acknowledgement_due_ = true;
  if (acknowledgement_due_.load()) settle_acknowledgement();
  return got;
}

// --- waiting --------------------------------------------------------------------------------------------------------

Channel::Interest ResumableChannel::wait_for_connection(Timeout timeout, Waker* waker) {
  // Patience may end meanwhile.
  constexpr Timeout longest = std::chrono::milliseconds(250);
  const Timeout slice = timeout < Timeout::zero() ? longest : std::min(timeout, longest);
  std::array<pollfd, 2> polled{};
  polled[0] = {changed_.descriptor(), POLLIN, 0};
  polled[1] = {waker ? waker->descriptor() : -1, POLLIN, 0};
  const timespec time{slice.count() / 1'000'000'000, slice.count() % 1'000'000'000};
  ::ppoll(polled.data(), polled.size(), &time, nullptr);
  if (waker && polled[1].revents) waker->drain();
  judge_patience();
  return {};  // the thread that waits looks again
}

// A connection whose other end is silent breaks here, sooner or later: threads wait again and again.
Channel::Interest ResumableChannel::wait_on(const std::shared_ptr<Channel>& connection, Interest interest,
                                            Timeout timeout, Waker* waker) {
  constexpr Timeout longest = std::chrono::seconds(1);
  const Timeout slice = timeout < Timeout::zero() ? longest : std::min(timeout, longest);
  const Interest ready = connection->wait(interest, slice, waker);
  if (ready.readable || ready.writable) return ready;
  const auto now = Clock::now().time_since_epoch();
  if (now - looked_at_.load(std::memory_order_relaxed) < longest) return ready;
  looked_at_.store(now, std::memory_order_relaxed);
  if (is_silent(*connection))
    broke(connection, "connection to " + peer_ + " lost: it does not confirm what is sent", /*ended=*/false);
  return ready;
}

Channel::Interest ResumableChannel::wait(Interest interest, Timeout timeout, Waker* waker) {
  if (phase_.load() == Phase::over) return interest;
  if (interest.readable && inbox_bytes_.load(std::memory_order_acquire) > 0) return {.readable = true};
  const auto connection = current();
  if (!connection) return wait_for_connection(timeout, waker);
  const bool full = interest.writable && !has_room();
  // Room comes with what is received. If nobody else is about to receive, it is received here, and kept.
  const bool receives = full && !interest.readable && readers_.load() == 0;
  Interest asked = interest;
  if (full) {
    asked.writable = false;
    asked.readable = interest.readable || receives;
    timeout = timeout < Timeout::zero() ? look : std::min(timeout, look);
  }
  const bool due = acknowledgement_due_.load();
  if (due) asked.writable = true;
  Interest ready;
  {
    const Counted reader(readers_, interest.readable), waiter(room_waiters_, full);
    if (interest.readable) {  // a thread that received for want of room, before it could see this one, has kept it
      const std::lock_guard receiving(receive_mutex_);
      if (inbox_bytes_.load() > 0) return {.readable = true};
    }
    std::optional<Sleepers::Sleeper> sleeper;
    if (full) {
      sleeper.emplace(sleepers_, waker);
      if (has_room()) timeout = Timeout::zero();
    }
    ready = wait_on(connection, asked, timeout, sleeper ? &sleeper->waker() : waker);
  }
  if (due && ready.writable) settle_acknowledgement();
  if (!full) return {.readable = interest.readable && ready.readable, .writable = interest.writable && ready.writable};
  if (receives && ready.readable) receive_ahead(connection);
  return {.readable = interest.readable && ready.readable, .writable = has_room()};
}

void ResumableChannel::receive_ahead(const std::shared_ptr<Channel>& connection) {
  try {
    const std::unique_lock receiving(receive_mutex_, std::try_to_lock);
    if (receiving && readers_.load() == 0 && connection_ == connection && phase_.load() == Phase::whole)
      keep_some(*connection);
  } catch (const ChannelClosed& closed) {
    broke(connection, closed.what(), is_end(closed));
  }
}

}  // namespace fargpu
