#include "content_choice.h"

#include "protocol/line_rate.h"

namespace fargpu::client {
namespace {

using namespace std::chrono_literals;

constexpr unsigned unknown_enough = 8;  // in a row, to expect no more
constexpr unsigned asked_of = 8;        // one of so many that are sent

/// Hashing has to be this much faster than the line, which is not worth the processors' time where it is fast anyway.
constexpr double margin = 1.25;

/// So many answers tell how fast the host is, of as many chunks at least as its threads read at a time. A look takes
/// more chunks, because some answers may be that they are not known.
constexpr unsigned host_answers_enough = 32, host_answers_most = 64, host_look_chunks = 48;

/// After so many chunks that are named, so many are sent.
constexpr unsigned named_between_looks = 2048, look_chunks = 8;

/// A program that keeps sending what no host knows, such as its batches, does not gain by this. It shows by the time
/// that it goes on; time in which it sends nothing counts for little.
constexpr auto patience = 120s;
constexpr auto gap_most = 1s;
constexpr std::uint64_t trial_bytes = 64u << 20;  // after a rest
constexpr std::uint64_t worth_of_known = 8;       // a byte that the host knew makes up for so many that it did not

}  // namespace

ContentChoice::Way ContentChoice::next(std::uint64_t bytes, std::optional<double> line_rate, Clock::time_point now) {
  if (never()) return Way::plain;
  if (!always() && rests(bytes, now)) return Way::plain;
  if (!always() && !gains(bytes, line_rate)) {
    if (too_fast_bytes_ < measured_again_after) return Way::plain;
    too_fast_bytes_ = 0;
    return Way::asked;
  }
  if (expects_known_) return !always() && looks_again() ? Way::kept : Way::named;
  missed_ += bytes;
  return ++turn_ % asked_of == 0 ? Way::asked : Way::kept;
}

// A slow line shows by the first chunks that are sent. Until then it counts as fast: on such a line nothing is named
// for a start, either.
bool ContentChoice::gains(std::uint64_t bytes, std::optional<double> line_rate) {
  if (!line_rate) return false;
  if (*line_rate < LineRate::fast_from && *line_rate * margin * hash_seconds_per_byte_ < threads_)
    return host_keeps_up(bytes, *line_rate);
  too_fast_bytes_ += bytes;
  return false;
}

// A host that reads what it knows from a slow disk brings it no sooner than the line does. What was read once may be in
// the host's memory the next time: some is named now and then, more and more seldom.
bool ContentChoice::host_keeps_up(std::uint64_t bytes, double line_rate) {
  if (host_answers_ >= host_answers_enough) {
    host_slow_ = line_rate * host_seconds_per_byte_ > 1;
    if (host_slow_) host_look_ = 0;
    else host_look_after_ = measured_again_after;
  }
  if (!host_slow_) return true;
  if (host_look_ > 0) {
    --host_look_;
    return true;
  }
  host_slow_bytes_ += bytes;
  if (host_slow_bytes_ < host_look_after_) return false;
  host_slow_bytes_ = 0;
  host_look_after_ *= 2;
  host_look_ = host_look_chunks;
  host_answers_ = 0;
  return false;
}

// While several answers are awaited, each takes the time since the one before it; and none takes what the line does.
void ContentChoice::measure_host(std::uint64_t bytes, Clock::time_point said, Clock::time_point now) {
  const auto took = std::min(now - said - quickest_, now - last_answer_);
  const double each = std::chrono::duration<double>(took).count() / static_cast<double>(bytes);
  if (host_answers_ < host_answers_most) ++host_answers_;
  host_seconds_per_byte_ += (each - host_seconds_per_byte_) / host_answers_;
}

// As long as everything is known, nothing is sent that would tell how fast the line is.
bool ContentChoice::looks_again() {
  if (++named_in_row_ <= named_between_looks) return false;
  if (named_in_row_ == named_between_looks + look_chunks) named_in_row_ = 0;
  return true;
}

bool ContentChoice::rests(std::uint64_t bytes, Clock::time_point now) {
  if (missed_ > 0) missing_for_ += std::min<Clock::duration>(now - last_, gap_most);
  last_ = now;
  if (resting_ == 0 && missed_ <= allowance_ && missing_for_ <= patience) return false;
  if (resting_ == 0) {
    resting_ = std::min(rest_next_, std::max(terms_.bytes_max, rest_first));
    rest_next_ = 2 * resting_;
    allowance_ = std::min(trial_bytes, terms_.bytes_max);
    missed_ = 0;
    missing_for_ = {};
    expects_known_ = false;
  }
  resting_ -= std::min(resting_, bytes);
  return true;
}

void ContentChoice::answered(Way way, bool known, std::uint64_t bytes, Clock::time_point said, Clock::time_point now) {
  quickest_ = std::min(quickest_, now - said);
  // Behind one that was not known it may have waited for bytes that were sent.
  if (known && way == Way::named && unknown_in_row_ == 0 && bytes > 0) measure_host(bytes, said, now);
  last_answer_ = now;
  if (!known) {
    if (way == Way::named) missed_ += bytes;
    if (++unknown_in_row_ >= unknown_enough) expects_known_ = false;
    return;
  }
  unknown_in_row_ = 0;
  expects_known_ = true;
  missed_ -= std::min(missed_, worth_of_known * bytes);
  if (missed_ > 0) return;
  missing_for_ = {};
  allowance_ = terms_.bytes_max;
  rest_next_ = rest_first;
}

// Threads that others hold up look slow. One that is much faster shows what there is again.
void ContentChoice::hashed(std::uint64_t bytes, Clock::duration took) {
  if (bytes == 0) return;
  const double now = std::chrono::duration<double>(took).count() / static_cast<double>(bytes);
  const bool anew = hash_seconds_per_byte_ == 0 || now < hash_seconds_per_byte_ / 2;
  hash_seconds_per_byte_ += (now - hash_seconds_per_byte_) / (anew ? 1 : 16);
}

}  // namespace fargpu::client
