#include "turns.h"

#include <algorithm>
#include <utility>

namespace fargpu::server {
namespace {

using scheduler::never;
using scheduler::Time;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Between marks where turns do not end.
constexpr Time mark_interval = milliseconds(1);
/// What work is taken for before any of its kind was seen.
constexpr Time unknown_duration = microseconds(500);
/// For how long there must be nothing to do before a turn is over: a program that waits for each launch pauses that
/// long.
constexpr Time linger = microseconds(500);
/// Work of which nothing completes for so long may be waiting for other work of the session: one more piece is given.
constexpr Time stall = milliseconds(20);
constexpr std::size_t known_max = 4096;
/// A piece that is longer than what may be given ahead is given when less than this is left of what runs: the GPU then
/// goes on without a pause. Not where a lease of higher priority may come, which would wait for both.
constexpr Time lead = scheduler::ahead_usual / 10;
/// Work that took so many times as long as expected is of a kind that is not known after all.
constexpr int surprise = 4;
/// How long to sleep at least and at most while the GPU works and others wait for its end, and where a latency-critical
/// program does.
constexpr Time look_least = microseconds(20), look_most = microseconds(500), look_critical = microseconds(30);
constexpr Time critical_for = milliseconds(100);  // what takes longer than that is in no hurry

}  // namespace

Turns::Turns(Contexts& contexts, const Captures& captures, Completions& completions, std::size_t devices,
             TurnOptions options)
    : contexts_(contexts),
      captures_(captures),
      completions_(completions),
      device_count_(devices),
      options_(std::move(options)) {
  turn_.granted = turn_.quiet = !options_.asks;
}

void Turns::hear(const scheduler::Turn& turn) {
  const std::lock_guard lock(word_mutex_);
  word_ = turn;
}

Time Turns::expected(Kind kind) const {
  const auto found = known_.find(kind);
  return found == known_.end() || found->second.seen == 0 ? unknown_duration : found->second.took;
}

// As many pieces at once as have been seen: what is taken for short wrongly costs the others one piece, not all that
// would have fitted.
bool Turns::trusted(Kind kind) const {
  const auto found = known_.find(kind);
  return found == known_.end() || found->second.given < std::max(1u, found->second.seen);
}

// How long the work that was given will still take.
Time Turns::left(Time at) const {
  if (marks_.empty()) return Time(0);
  const Mark& first = marks_.begin()->second;
  return std::max(Time(0), ahead_ - std::clamp(at - std::max(last_fired_, first.given), Time(0), first.expected));
}

bool Turns::may_give(Kind kind) {
  if (std::exchange(giving_, false) || (turn_.quiet && waiting_.empty())) return true;
  if (!waiting_.empty()) return false;
  const Time at = now();
  if (!in_turn(at)) return false;
  if (marks_.empty() || turn_.ahead == never) return true;
  const Time before = left(at);
  const bool shallow =
      before + expected(kind) <= turn_.ahead || (turn_.ahead >= scheduler::ahead_usual && before <= lead);
  if (shallow && trusted(kind) && (turn_.until == never || before < turn_.until - at)) return true;
  if (at - last_progress_ < stall) return false;
  last_progress_ = at;
  return true;
}

void Turns::wait(Kind kind, std::function<void()> job) {
  if (waiting_.empty()) waiting_since_ = now();
  waiting_.push_back({kind, std::move(job)});
}

void Turns::given(StreamState& stream) {
  if (kind_ == 0 || !counted()) return;
  if (turn_.quiet && stream.unmarked && options_.work_max.count() == 0) return;  // known to have work
  const Time at = now();
  set_active(stream, true, at);
  if (turn_.quiet && options_.work_max.count() == 0 &&
      (completions_.follow(stream) || at - stream.marked < mark_interval)) {
    if (!stream.unmarked) unmarked_.push_back(&stream);
    stream.unmarked = true;
    return;
  }
  mark(stream, at);
  if (!told_.busy) tell(at);  // at once: others may have to give way
}

void Turns::mark(StreamState& stream, Time at) {
  const std::uint64_t id = next_mark_++;
  if (marks_.empty()) last_progress_ = last_fired_ = at;
  const Mark& mark = marks_[id] = {&stream, stream.context->device, kind_, expected(kind_), at};
  if (known_.size() >= known_max) std::erase_if(known_, [](const auto& entry) { return entry.second.given == 0; });
  ++known_[kind_].given;
  ahead_ += mark.expected;
  ++stream.marks;
  stream.marked = at;
  completions_.after(stream, Completions::Kind::release, [this, id](CUresult) { passed(id); });
}

void Turns::passed(std::uint64_t id) { fired_.push_back(id); }

// What has completed since the last look took the time since then, each of it the same part.
void Turns::measure(Time at) {
  if (fired_.empty()) return;
  std::vector<std::uint64_t> fired;
  fired.swap(fired_);
  std::size_t count = 0;
  Time first = never;
  for (const std::uint64_t id : fired) {
    const auto found = marks_.find(id);
    if (found == marks_.end()) continue;
    first = std::min(first, found->second.given);
    ++count;
  }
  const Time took =
      count == 0 ? Time(0) : std::max(Time(0), at - std::max(last_fired_, first)) / static_cast<std::int64_t>(count);
  for (const std::uint64_t id : fired) {
    const auto found = marks_.find(id);
    if (found == marks_.end()) continue;
    const Mark mark = found->second;
    marks_.erase(found);
    ahead_ -= mark.expected;
    Known& known = known_[mark.kind];
    --known.given;
    if (!turn_.quiet) learn(known, took);
    if (!mark.stream) continue;
    if (--mark.stream->marks == 0 && !mark.stream->unmarked) set_active(*mark.stream, false, at);
  }
  last_fired_ = last_progress_ = at;
}

void Turns::learn(Known& known, Time took) {
  if (known.seen == 0 || (took > surprise * known.took && took > unknown_duration)) {
    known.took = took;
    known.seen = 1;
    return;
  }
  // What took long once is soon forgotten.
  known.took = took > known.took ? (3 * known.took + took) / 4 : (known.took + took) / 2;
  ++known.seen;
}

void Turns::set_active(StreamState& stream, bool active, Time at) {
  if (stream.active == active) return;
  stream.active = active;
  Device& device = devices_[stream.context->device];
  if (active) {
    ++active_streams_;
    if (device.streams++ == 0) device.since = at;
  } else {
    if (--active_streams_ == 0) idle_since_ = at;
    if (--device.streams == 0) device.used += at - device.since;
  }
}

void Turns::forget(StreamState& stream) {
  for (auto& [id, mark] : marks_)
    if (mark.stream == &stream) mark.stream = nullptr;
  if (stream.unmarked) std::erase(unmarked_, &stream);
  set_active(stream, false, now());
}

bool Turns::poll() {
  if (!counted()) return false;
  bool progress = take_word();
  if (!marks_.empty() || !unmarked_.empty() || !waiting_.empty() || must_tell_ || told_.wants || told_.busy || busy()) {
    const Time at = now();
    measure(at);
    progress |= mark_again(at);
    progress |= give_waiting();
    tell(at);
    if (options_.work_max.count() > 0 && !marks_.empty() && at - last_fired_ > options_.work_max)
      hung_ = "the GPU has completed none of the session's work for " +
              std::to_string(options_.work_max.count() / 1'000'000'000) +
              " s, which is as long as kernels may take here (kernel_seconds_max)";
  }
  return progress;
}

bool Turns::take_word() {
  std::optional<scheduler::Turn> word;
  {
    const std::lock_guard lock(word_mutex_);
    word.swap(word_);
  }
  if (!word) return false;
  turn_ = *word;
  must_tell_ = !turn_.quiet;
  told_ = {};
  return true;
}

// Streams with work behind their last mark, where marks are few: while they are looked at for another reason they need
// none.
bool Turns::mark_again(Time at) {
  bool progress = false;
  for (std::size_t i = 0; i < unmarked_.size();) {
    StreamState& stream = *unmarked_[i];
    if (stream.marks > 0 || (turn_.quiet && (completions_.follow(stream) || at - stream.marked < mark_interval))) {
      ++i;
      continue;
    }
    unmarked_[i] = unmarked_.back();
    unmarked_.pop_back();
    stream.unmarked = false;
    progress = true;
    if (contexts_.make_current(*stream.context) && !captures_.capturing(stream)) mark(stream, at);
    else set_active(stream, false, at);
  }
  return progress;
}

bool Turns::give_waiting() {
  if (waiting_.empty()) return false;
  bool progress = false;
  std::deque<Waiting> rest;
  rest.swap(waiting_);  // may_give() is about what comes first
  while (!rest.empty() && may_give(rest.front().kind)) {
    const auto job = std::move(rest.front().job);
    rest.pop_front();
    giving_ = progress = true;  // for this one, not for what comes behind it
    job();
    giving_ = false;
  }
  for (Waiting& late : waiting_) rest.push_back(std::move(late));  // that came meanwhile
  waiting_.swap(rest);
  const Time at = now();
  if (waiting_since_ > Time(0) && !in_turn(at)) waited_ += at - waiting_since_;
  waiting_since_ = waiting_.empty() ? Time(0) : at;
  return progress;
}

void Turns::tell(Time at) {
  if (!options_.tell || turn_.quiet) return;
  const scheduler::Activity is{.wants = !waiting_.empty(), .busy = busy()};
  if (!is.wants && !is.busy) {
    if (!must_tell_ && !told_.wants && !told_.busy) return;
    if (turn_.granted && at - idle_since_ < linger) return;
    say(is, std::max(idle_since_, turn_.granted ? Time(0) : at));
    if (turn_.until != never) turn_.granted = false;  // having nothing to do is the end of a turn that has one
    return;
  }
  // Within a turn it is of interest only that there is work.
  const bool known = in_turn(at) ? told_.busy || (told_.wants && !is.busy) : is == told_;
  if (!known || must_tell_) say(is, at);
}

void Turns::say(const scheduler::Activity& activity, Time since) {
  must_tell_ = false;
  told_ = activity;
  options_.tell(activity, turn_.number, since);
}

Time Turns::due() const {
  if (!counted()) return never;
  Time next = never;
  if (!unmarked_.empty()) next = mark_interval;
  if (!turn_.quiet && (must_tell_ || told_.wants || told_.busy)) next = std::min(next, linger);
  if (!turn_.quiet && !marks_.empty()) next = std::min(next, next_look(now()));
  return next;
}

// When to ask the GPU again: often where the end of its work is expected, since from there on others have it, or the
// next piece follows.
Time Turns::next_look(Time at) const {
  const Mark& first = marks_.begin()->second;
  const Time end = std::max(last_fired_, first.given) + first.expected;
  const Time slack = first.expected / 32 + microseconds(50);
  Time next = look_least;
  if (at < end - slack) next = end - slack - at;
  else if (at > end + slack)
    next = std::min((at - end) / 4, turn_.ahead == never && at < end + critical_for ? look_critical : look_most);
  if (!waiting_.empty() && in_turn(at) && left(at) > lead) next = std::min(next, left(at) - lead);
  return std::max(next, look_least);
}

std::vector<std::uint64_t> Turns::busy_ns() const {
  std::vector<std::uint64_t> list(device_count_);
  for (const auto& [ordinal, device] : devices_) {
    const Time running = device.streams > 0 ? now() - device.since : Time(0);
    if (ordinal >= 0 && static_cast<std::size_t>(ordinal) < list.size())
      list[static_cast<std::size_t>(ordinal)] = static_cast<std::uint64_t>((device.used + running).count());
  }
  return list;
}

std::uint64_t Turns::waited_ns() const { return static_cast<std::uint64_t>(waited_.count()); }

}  // namespace fargpu::server
