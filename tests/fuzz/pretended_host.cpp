#include "pretended_host.h"

#include <algorithm>
#include <cstring>

#include "protocol/errors.h"

namespace fargpu::fuzz {
namespace {

constexpr std::size_t sayings_max = 512;
constexpr unsigned empty_answers_max = 64;

FrameKind kind_of(const Saying& saying) { return static_cast<FrameKind>(saying.word.kind); }

}  // namespace

std::vector<Saying> sayings_of(Bytes input) {
  std::vector<Saying> sayings;
  while (!input.empty() && sayings.size() < sayings_max) {
    Saying& saying = sayings.emplace_back();
    saying.word = input.take<Word>();
    saying.word.kind %= 8;
    saying.message = input.take(std::size_t{saying.word.message_words} * 8);
    saying.message = saying.message.first(saying.message.size() / 8 * 8);
    saying.bulk = input.take(saying.word.stored);
  }
  return sayings;
}

Input input_of(std::span<const std::byte> frames) {
  constexpr std::size_t stored_max = 256;
  Input input;
  while (frames.size() >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, frames.data(), sizeof(header));
    frames = frames.subspan(sizeof(header));
    const std::size_t bulk = padded(header.bulk_bytes);
    if (frames.size() < header.message_bytes + bulk || header.message_bytes / 8 > 0xffff) break;
    Word word;
    word.kind = static_cast<std::uint8_t>(header.kind);
    word.opcode = header.opcode;
    word.detail = header.detail;
    word.message_words = static_cast<std::uint16_t>(header.message_bytes / 8);
    word.stored = static_cast<std::uint16_t>(std::min<std::size_t>(header.bulk_bytes, stored_max));
    word.bulk_bytes = header.bulk_bytes;
    append_value(input, word);
    append(input, frames.first(header.message_bytes));
    append(input, frames.subspan(header.message_bytes, word.stored));
    frames = frames.subspan(header.message_bytes + bulk);
  }
  return input;
}

std::size_t PretendedHost::send_some(std::span<const Channel::Bytes> pieces) {
  if (closed_ || leaving_) throw ChannelClosed("the host has left");
  std::size_t sent = 0;
  for (const Channel::Bytes& piece : pieces) {
    said_.insert(said_.end(), piece.begin(), piece.end());
    sent += piece.size();
  }
  take_frames();
  return sent;
}

void PretendedHost::take_frames() {
  std::size_t at = 0;
  while (said_.size() - at >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, said_.data() + at, sizeof(header));
    check_frame_header(header);
    const std::size_t whole = sizeof(header) + header.message_bytes + padded(header.bulk_bytes);
    if (said_.size() - at < whole) break;
    expect(header.sequence == ++said_frames_, "a frame of the client out of its order");
    if (header.kind == FrameKind::call && header.detail & call_wants_reply)
      asked_.push_back({header.opcode, header.sequence});
    const auto* const begin = reinterpret_cast<const char*>(said_.data() + at);
    expect(::memmem(begin, whole, &secret, sizeof(secret)) == nullptr,
           "the client sends what the program did not offer");
    at += whole;
  }
  said_.erase(said_.begin(), said_.begin() + static_cast<std::ptrdiff_t>(at));
}

std::size_t PretendedHost::receive_some(std::span<std::byte> buffer) {
  if (closed_) throw ChannelClosed("the connection is closed");
  if (out_begin_ == out_.size()) {
    out_.clear();
    out_begin_ = 0;
    if (!leaving_ && !asked_.empty()) {
      const Asked asked = asked_.front();
      asked_.pop_front();
      answer(asked);
    } else if (!leaving_) {  // it reads without having asked: the next that needs no question
      while (next_ < sayings_.size() && out_.empty() && !leaving_) {
        const Saying& saying = sayings_[next_++];
        if (kind_of(saying) != FrameKind::reply && kind_of(saying) != FrameKind::data) say(saying, 0);
      }
      if (out_.empty()) leaving_ = true;
    }
    if (out_.empty()) throw ChannelClosed("the host has left");
  }
  const std::size_t bytes = std::min(buffer.size(), out_.size() - out_begin_);
  std::copy_n(out_.begin() + static_cast<std::ptrdiff_t>(out_begin_), bytes, buffer.begin());
  out_begin_ += bytes;
  return bytes;
}

void PretendedHost::answer(Asked asked) {
  const auto answers = [&](const Saying& saying) {
    return kind_of(saying) == FrameKind::reply && saying.word.opcode == asked.opcode;
  };
  const auto begin = sayings_.begin() + static_cast<std::ptrdiff_t>(next_);
  auto found = std::find_if(begin, sayings_.end(), answers);
  const bool again = found == sayings_.end();
  if (again) found = std::find_if(sayings_.begin(), begin, answers);
  if (again && found == begin) {
    if (++empty_answers_ > empty_answers_max) {
      leaving_ = true;
      return;
    }
    Saying nothing;
    nothing.word.kind = static_cast<std::uint8_t>(FrameKind::reply);
    nothing.word.opcode = asked.opcode;
    say(nothing, asked.number);
    return;
  }
  // The data right ahead of the answer belongs to it; that of calls which the client has not made
  // does not.
  auto data = found;
  while (data != sayings_.begin() && kind_of(data[-1]) == FrameKind::data) --data;
  if (!again) {
    for (auto it = begin; it < data && !leaving_; ++it)
      if (kind_of(*it) != FrameKind::reply && kind_of(*it) != FrameKind::data) say(*it, asked.number);
    next_ = static_cast<std::size_t>(found - sayings_.begin()) + 1;
    data = std::max(data, begin);
  }
  for (auto it = data; it <= found && !leaving_; ++it) say(*it, asked.number);
}

void PretendedHost::say(const Saying& saying, std::uint32_t number) {
  const auto put = [&](std::span<const std::uint8_t> bytes) {
    const auto more = std::as_bytes(bytes);
    out_.insert(out_.end(), more.begin(), more.end());
  };
  if (saying.word.kind == leaves) {
    leaving_ = true;
    return;
  }
  if (saying.word.kind == babbles) {
    put(saying.message);
    return;
  }
  const std::uint8_t spoilt = (saying.word.spoilt & 0xf0) == spoils ? saying.word.spoilt : 0;
  FrameHeader header;
  header.kind = kind_of(saying);
  header.opcode = saying.word.opcode;
  header.detail = saying.word.detail;
  header.subject = spoilt & subject ? saying.word.detail : number;
  header.sequence = ++sequence_ + (spoilt & sequence ? 1 : 0);
  header.message_bytes = static_cast<std::uint32_t>(saying.message.size() + (spoilt & message_length ? 8 : 0));
  header.bulk_bytes = saying.word.bulk_bytes;
  if (!(spoilt & bulk_length)) {
    header.bulk_bytes =
        static_cast<std::uint32_t>(std::min<std::size_t>({header.bulk_bytes, limits::bulk_bytes_max, bulk_left_}));
    bulk_left_ -= header.bulk_bytes;
  }
  if ((saying.word.spoilt & 0xf0) == packs) mark_compressed(header, header.bulk_bytes);
  put({reinterpret_cast<const std::uint8_t*>(&header), sizeof(header)});
  put(saying.message);
  const auto bulk = saying.bulk.first(std::min<std::size_t>(saying.bulk.size(), header.bulk_bytes));
  put(bulk);
  if (!(spoilt & bulk_length)) out_.resize(out_.size() + padded(header.bulk_bytes) - bulk.size());
}

}  // namespace fargpu::fuzz
