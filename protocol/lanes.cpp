#include "lanes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "device_bytes.h"
#include "errors.h"
#include "program_memory.h"
#include "quiet_thread.h"
#include "words.h"
#include "resumable_channel.h"
#include "straight_sender.h"

namespace fargpu {
namespace {

constexpr std::array<std::byte, 4096> zeros{};

// What is lent is told of late. So it is done only while so many jobs for each lane wait that it will be confirmed
// before the last of them has left, and given up soon when there is nothing more to send.
constexpr std::size_t lending_queue_min = 2;
constexpr auto lent_look = std::chrono::microseconds(20), lent_idle_max = std::chrono::microseconds(200);

/// What a word carries behind its header.
struct WordBody {
  ContentName name{};
  std::uint64_t bytes = 0;
};
static_assert(sizeof(WordBody) == 40);

bool has_body(ContentWord::Kind kind) { return kind == ContentWord::Kind::named || kind == ContentWord::Kind::asked; }

/// In a frame's opcode: its bytes are worth keeping.
constexpr std::uint16_t kept_bytes = 1;

ContentWord read_word(const FrameHeader& header, std::span<const std::byte> message) {
  ContentWord word{static_cast<ContentWord::Kind>(header.opcode), {header.subject, header.thread}};
  if (header.opcode < static_cast<std::uint16_t>(ContentWord::Kind::named) ||
      header.opcode > static_cast<std::uint16_t>(ContentWord::Kind::unknown) ||
      message.size() != (has_body(word.kind) ? sizeof(WordBody) : 0))
    throw ProtocolError("a frame that does not belong on a lane");
  if (message.empty()) return word;
  WordBody body;
  std::memcpy(&body, message.data(), sizeof(body));
  word.name = body.name;
  word.bytes = body.bytes;
  return word;
}

void send_word(Channel& channel, const ContentWord& word, std::uint32_t sequence) {
  const WordBody body{word.name, word.bytes};
  FrameHeader header;
  header.kind = FrameKind::data;
  header.opcode = static_cast<std::uint16_t>(word.kind);
  header.sequence = sequence;
  header.subject = word.chunk.transfer;
  header.thread = word.chunk.number;
  if (has_body(word.kind)) header.message_bytes = sizeof(body);
  const std::array<Channel::Bytes, 2> pieces{std::as_bytes(std::span(&header, 1)),
                                             std::as_bytes(std::span(&body, 1)).first(header.message_bytes)};
  send_all(channel, pieces);
}

// Sends a whole frame. If the bytes cannot be read, `unreadable` is called, and then zeros take the place of those that
// had not left. `waited`: the connection did not take it at once.
void send_frame(Channel& channel, const FrameHeader& header, std::span<const std::byte> bytes, bool& waited,
                const std::function<void()>& unreadable) {
  const std::size_t padding = padded(bytes.size()) - bytes.size();
  std::span<const std::byte> head = std::as_bytes(std::span(&header, 1));
  bool readable = true;
  while (!head.empty() || !bytes.empty()) {
    const std::array<Channel::Bytes, 2> pieces{
        head, readable ? bytes : std::span(zeros).first(std::min(bytes.size(), zeros.size()))};
    std::size_t sent = 0;
    try {
      sent = channel.send_some(pieces);
    } catch (const ChannelClosed&) {
      throw;
    } catch (const SystemError&) {
      readable = false;
      if (unreadable) unreadable();
      continue;
    }
    if (sent == 0) {
      waited = true;
      channel.wait({.writable = true}, Channel::forever);
      continue;
    }
    const std::size_t of_head = std::min(sent, head.size());
    head = head.subspan(of_head);
    bytes = bytes.subspan(sent - of_head);
  }
  const std::array<Channel::Bytes, 1> rest{std::span(zeros).first(padding)};
  send_all(channel, rest);
}

}  // namespace

void ChunkHandler::keep(std::span<const std::byte>) { throw ProtocolError("bytes to be kept, of which nobody spoke"); }
void ChunkHandler::heard(const ContentWord&) { throw ProtocolError("a word about contents where nothing is kept"); }

/// The frames of one lane.
class Lanes::Arriving final : FrameHandler {
 public:
  Arriving(Lanes& lanes, Channel& channel, std::uint32_t taken_before)
      : lanes_(lanes), reader_(channel, *this, taken_before) {}
  bool pump() { return reader_.pump(); }

 private:
  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte>) override {
    if (header.kind != FrameKind::data || header.message_bytes != 0 || header.opcode > kept_bytes ||
        header.bulk_bytes > limits::lane_chunk_bytes)
      throw ProtocolError("a frame that does not belong on a lane");
    std::span<std::byte> place = lanes_.handler_.place({header.subject, header.thread}, header.bulk_bytes);
    wanted_ = !place.empty();
    if (wanted_) return place;
    unwanted_.resize(header.bulk_bytes);
    return std::span(unwanted_);
  }

  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) override {
    if (header.kind != FrameKind::data) throw ProtocolError("a frame that does not belong on a lane");
    if (bulk.empty()) return lanes_.handler_.heard(read_word(header, message));
    lanes_.bytes_received_.fetch_add(reader_.wire_bytes(), std::memory_order_relaxed);
    if (wanted_ && header.opcode == kept_bytes) lanes_.handler_.keep(bulk);
    if (wanted_) lanes_.handler_.landed({header.subject, header.thread}, bulk, !reader_.spoiled());
    lanes_.note_taken(header.detail);
  }

  Lanes& lanes_;
  FrameReader reader_;
  std::vector<std::byte> unwanted_;
  bool wanted_ = false;
};

void Lanes::add(std::shared_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before) {
  const std::lock_guard lock(mutex_);
  if (closed_) return channel->close();  // others may have it too
  Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>());
  lane.channel = std::move(channel);
  lane.number = lanes_.size() - 1;
  try {
    lane_count_.add();
    lane.sender = quiet_thread("fargpu-lane-out", [this, &lane, sent_before] { send_all_jobs(lane, sent_before); });
    lane.receiver = quiet_thread(
        "fargpu-lane-in", [this, &channel = *lane.channel, taken_before] { receive_all(channel, taken_before); });
  } catch (...) {
    lane.channel->close();  // the other side, which counts on the lane, loses it
    throw;
  }
}

std::size_t Lanes::count() const {
  const std::lock_guard lock(mutex_);
  return lanes_.size();
}

void Lanes::use_all() {
  const std::lock_guard lock(mutex_);
  lane_count_.fix();
}

unsigned Lanes::in_use() const {
  const std::lock_guard lock(mutex_);
  return lane_count_.in_use();
}

std::optional<double> Lanes::line_rate() const {
  const std::lock_guard lock(mutex_);
  return line_rate_.bytes_per_second();
}

bool Lanes::resuming() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->channel->resuming(); });
}

bool Lanes::suspect(const std::string& why) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : lanes_) channels.push_back(lane->channel);
  }
  bool any = false;
  for (const auto& channel : channels) any |= channel->suspect(why);
  return any;
}

bool Lanes::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void Lanes::send(Chunk chunk, Bytes bytes, Told told, Sending how) {
  add_job({.chunk = chunk, .bytes = bytes, .told = std::move(told), .how = how});
}

void Lanes::send(Chunk chunk, std::size_t bytes, Gather gather, Told told, Sending how) {
  add_job({.chunk = chunk, .gathered_bytes = bytes, .gather = std::move(gather), .told = std::move(told), .how = how});
}

void Lanes::say(const ContentWord& word) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  // No honest peer has so many words unanswered.
  if (words_.size() >= limits::content_words_max) throw ProtocolError("words about contents that nobody takes");
  words_.push_back(word);
  wake(1);
}

void Lanes::add_job(Job job) {
  const std::lock_guard lock(mutex_);
  job.ordinal = static_cast<std::uint32_t>(given_.fetch_add(1, std::memory_order_release) + 1);
  jobs_.push_back(std::move(job));
  wake(1);
}

// Under the mutex. Always the first lanes, so that those in use keep what their connections have learnt of the line.
void Lanes::wake(std::size_t jobs) {
  for (const auto& lane : lanes_) {
    if (jobs == 0 || lane->number >= lane_count_.in_use()) return;
    if (!std::exchange(lane->idle, false)) continue;
    lane->work.notify_one();
    --jobs;
  }
}

void Lanes::note_sent(std::uint64_t bytes, std::chrono::nanoseconds took, bool waited,
                      std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  line_rate_.sent(bytes, took, waited, jobs_.empty() ? 1 : lane_count_.in_use());
  lane_count_.sent(bytes, !jobs_.empty(), now);
  wake(jobs_.size());  // more lanes may be in use now
}

void Lanes::note_taken(std::uint32_t ordinal) {
  {
    std::unique_lock lock(taken_mutex_);
    // Ahead of a lane that stalls, or is being resumed. The lane that brings what is missing does not wait here,
    // because numbers rise within a lane.
    taken_changed_.wait(lock, [&] { return given_up_ || taken_.near(ordinal); });
    if (given_up_) return;
    taken_.add(ordinal);
  }
  taken_changed_.notify_all();
}

bool Lanes::wait_taken(std::uint32_t chunks, std::chrono::nanoseconds silence) {
  std::unique_lock lock(taken_mutex_);
  while (!taken_.reached(chunks)) {
    const std::uint64_t before = taken_.count();
    if (!taken_changed_.wait_for(lock, silence, [&] { return taken_.count() != before || given_up_; }) || given_up_)
      return taken_.reached(chunks);
  }
  return true;
}

void Lanes::give_up() {
  {
    const std::lock_guard lock(taken_mutex_);
    given_up_ = true;
  }
  taken_changed_.notify_all();
}

/// Jobs whose bytes have been given to their lane, which still needs them where they lie: to send them from there, or
/// again, if it is resumed. Copying them would cost as much as sending them, and they will soon have arrived, of a lane
/// that is resumed while more is sent: they are told of as sent when they have.
class Lanes::Lent {
 public:
  explicit Lent(Channel& channel)
      : resumed_(dynamic_cast<ResumableChannel*>(&channel)), straight_(dynamic_cast<StraightSender*>(&channel)) {}

  bool empty() const { return jobs_.empty(); }
  /// Whether the bytes may lie in memory of a GPU.
  bool takes_device_bytes() const { return resumed_ || (straight_ && straight_->takes_device_bytes()); }
  /// The bytes that are sent next: whether they may be `lent`, and whether `more` will be sent soon.
  void begin(Bytes bytes, bool lent, bool more) {
    if (!lent) bytes = {};
    if (resumed_) resumed_->lend(bytes, more);
    else if (straight_) straight_->lend(bytes);
  }
  /// They have left.
  void sent(Job job) {
    left_at_ = std::chrono::steady_clock::now();
    tell_confirmed();
    if (needs(job)) jobs_.push_back(std::move(job));
    else tell(job);
  }
  /// There is nothing more to send just now.
  void look() {
    tell_confirmed();
    if (!resumed_ || jobs_.empty() || std::chrono::steady_clock::now() - left_at_ < lent_idle_max) return;
    resumed_->copy_lent();
    tell_confirmed();
  }

 private:
  bool needs(const Job& job) const {
    return resumed_ ? resumed_->needs(job.bytes) : straight_ && straight_->needs(job.bytes);
  }
  void tell_confirmed() {
    while (!jobs_.empty() && !needs(jobs_.front())) {
      tell(jobs_.front());
      jobs_.pop_front();
    }
  }
  void tell(const Job& job) {
    if (resumed_ && resumed_->lost(job.bytes) && job.told.unreadable) job.told.unreadable();
    job.told.sent();
  }

  ResumableChannel* const resumed_;
  StraightSender* const straight_;
  std::deque<Job> jobs_;
  std::chrono::steady_clock::time_point left_at_;  // the last of them
};

// Waits for one. False when the lanes are closed.
bool Lanes::next(Lane& lane, Next& next, Lent& lent) {
  std::unique_lock lock(mutex_);
  while (!closed_ && ((jobs_.empty() && words_.empty()) || lane.number >= lane_count_.in_use())) {
    wake(words_.size() + jobs_.size());  // what this lane was woken for, others do
    lane.idle = true;
    const auto woken = [&] { return closed_ || !lane.idle; };
    if (lent.empty()) {
      lane.work.wait(lock, woken);
    } else if (!lane.work.wait_for(lock, lent_look, woken)) {
      lock.unlock();
      lent.look();
      lock.lock();
    }
  }
  if (closed_) return false;
  next.word.reset();
  if (!words_.empty()) {
    next.word = words_.front();
    words_.pop_front();
    return true;
  }
  next.job = std::move(jobs_.front());
  jobs_.pop_front();
  next.more = jobs_.size() >= lending_queue_min * lane_count_.in_use();
  return true;
}

/// What a lane needs to send: its connection, the number of the last frame, and its buffers.
struct Lanes::Leaving {
  Leaving(Channel& to, std::uint32_t sent_before, Compression compression)
      : channel(to), sequence(sent_before), lent(to), compressor(compression) {}

  Channel& channel;
  std::uint32_t sequence;
  Lent lent;
  Compressor compressor;
  std::vector<std::byte> gathered;
};

void Lanes::send_next_word(Leaving& leaving, const ContentWord& word) {
  leaving.lent.begin({}, false, false);
  send_word(leaving.channel, word, ++leaving.sequence);
  bytes_sent_.fetch_add(sizeof(FrameHeader) + (has_body(word.kind) ? sizeof(WordBody) : 0), std::memory_order_relaxed);
}

// `more`: as in Next.
void Lanes::send_job(Leaving& leaving, Job& job, bool more) {
  auto& [channel, sequence, lent, compressor, gathered] = leaving;
  if (job.gather) {
    gathered.resize(job.gathered_bytes);
    if (!job.gather(gathered)) {
      std::fill(gathered.begin(), gathered.end(), std::byte{0});
      if (job.told.unreadable) job.told.unreadable();
    }
    job.bytes = gathered;
  }
  const bool on_device = DeviceBytes::contains(job.bytes.data());
  const bool unreachable = on_device && !lent.takes_device_bytes(), copied = job.gather || unreachable;
  if (unreachable) {
    gathered.resize(job.bytes.size());
    copy_wherever(gathered.data(), job.bytes.data(), job.bytes.size());
  }
  const Bytes bytes = copied ? Bytes(gathered) : job.bytes;
  if (job.how.absent) bring_program_memory(job.bytes.data(), job.bytes.size());
  FrameHeader header;
  header.kind = FrameKind::data;
  header.opcode = job.how.keep ? kept_bytes : 0;
  header.detail = job.ordinal;
  header.bulk_bytes = static_cast<std::uint32_t>(job.bytes.size());
  header.sequence = ++sequence;
  header.subject = job.chunk.transfer;
  header.thread = job.chunk.number;
  // To be packed, bytes would have to come to the processor.
  const auto packed = on_device && !copied ? Bytes() : compressor.pack(bytes, in_use());
  if (!packed.empty()) mark_compressed(header, packed.size());
  const auto begin = std::chrono::steady_clock::now();
  bool waited = false;
  lent.begin(job.bytes, packed.empty() && !copied, more);
  send_frame(channel, header, packed.empty() ? bytes : packed, waited, job.told.unreadable);
  const auto end = std::chrono::steady_clock::now();
  compressor.sent(header.bulk_bytes, !packed.empty(), end - begin, waited);
  note_sent(header.bulk_bytes, end - begin, waited, end);
  bytes_sent_.fetch_add(sizeof(header) + padded(header.bulk_bytes), std::memory_order_relaxed);
  lent.sent(std::exchange(job, Job()));  // what it holds is not needed while the lane waits
}

void Lanes::send_all_jobs(Lane& lane, std::uint32_t sent_before) {
  Channel& channel = *lane.channel;
  // Goes after the channel is closed, which lets go of what lies in memory of these jobs. Made within, as it takes
  // memory.
  std::optional<Leaving> leaving;
  try {
    leaving.emplace(channel, sent_before, compression_);
    for (Next what; next(lane, what, leaving->lent);) {
      if (what.word) send_next_word(*leaving, *what.word);
      else send_job(*leaving, what.job, what.more);
    }
  } catch (const std::exception& error) {
    if (!closed()) handler_.lost(words(error.what()));  // before the lane's other thread finds it closed
    channel.close();
    give_up();
  }
}

void Lanes::receive_all(Channel& channel, std::uint32_t taken_before) {
  try {
    Arriving arriving(*this, channel, taken_before);
    while (!closed())
      if (!arriving.pump()) channel.wait({.readable = true}, Channel::forever);
  } catch (const std::exception& error) {
    if (!closed()) handler_.lost(words(error.what()));  // before the lane's other thread finds it closed
    channel.close();
    give_up();
  }
}

void Lanes::close() {
  const std::lock_guard closing(closing_);
  std::vector<std::unique_ptr<Lane>> lanes;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    lanes.swap(lanes_);
    words_.clear();
    jobs_.clear();
    for (const auto& lane : lanes) lane->work.notify_all();
  }
  give_up();
  for (const auto& lane : lanes) lane->channel->close();
  for (const auto& lane : lanes) {
    for (std::thread* const thread : {&lane->sender, &lane->receiver})
      if (thread->joinable()) thread->join();
  }
}

}  // namespace fargpu
