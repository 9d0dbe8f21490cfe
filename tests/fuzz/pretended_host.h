#pragma once
// A GPU host that says what an input has it say, to a client in this process.

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "fuzz.h"
#include "protocol/channel.h"
#include "protocol/frame.h"

namespace fargpu::fuzz {

/// One frame of the host in an input: this, then so many words of a message, then bulk bytes.
struct Word {
  std::uint8_t kind = 0;    ///< FrameKind; or `leaves`, `babbles`
  std::uint8_t spoilt = 0;  ///< with `spoils` in the upper half: how its header is wrong
  std::uint16_t opcode = 0;
  std::uint32_t detail = 0;
  std::uint16_t message_words = 0;
  std::uint16_t stored = 0;  ///< of the bulk bytes, in the input; the rest are zeros
  std::uint32_t bulk_bytes = 0;
};
static_assert(sizeof(Word) == 16);

constexpr std::uint8_t leaves = 0,
                       babbles = 7;  ///< closes the connection; sends its message as it is, without a header
constexpr std::uint8_t spoils = 0xA0,
                       packs = 0xC0;  ///< `packs` instead: it says that its bulk bytes are compressed
enum Spoilt : std::uint8_t { sequence = 1, subject = 2, bulk_length = 4, message_length = 8 };

struct Saying {
  Word word;
  std::span<const std::uint8_t> message, bulk;
};
/// The frames of an input. Those that are cut off at its end are as long as there is.
std::vector<Saying> sayings_of(Bytes input);

/// What a host has sent, as an input.
Input input_of(std::span<const std::byte> frames);

/// The host's answers to the calls of a session, by their opcodes: what stands ahead of the next
/// answer to such a call, and the answer, go when the client waits for it. Numbers of frames and
/// calls are put right, so that what is in the frames counts. When nothing is left to say, or to
/// answer, it leaves.
class PretendedHost final : public Channel {
 public:
  /// `first`: its whole answer to attach, a frame.
  PretendedHost(std::vector<std::byte> first, std::vector<Saying> sayings)
      : sayings_(std::move(sayings)), out_(std::move(first)) {}

  std::size_t send_some(std::span<const Channel::Bytes> pieces) override;
  std::size_t receive_some(std::span<std::byte> buffer) override;
  Interest wait(Interest interest, Timeout, Waker* waker) override {
    if (waker) waker->drain();
    return interest;
  }
  void close() noexcept override { closed_ = true; }
  std::string peer() const override { return "a host that says anything"; }

 private:
  struct Asked {
    std::uint16_t opcode;
    std::uint32_t number;
  };
  void take_frames();
  void answer(Asked asked);
  void say(const Saying& saying, std::uint32_t number);

  const std::vector<Saying> sayings_;
  std::size_t next_ = 0;
  std::vector<std::byte> said_;  // by the client: what is not a whole frame yet
  std::uint32_t said_frames_ = 0;
  std::deque<Asked> asked_;
  std::vector<std::byte> out_;
  std::size_t out_begin_ = 0;
  std::uint32_t sequence_ = 1;  // of the answer to attach
  unsigned empty_answers_ = 0;
  std::size_t bulk_left_ = 12u << 20;
  bool leaving_ = false, closed_ = false;
};

/// What the program has and does not offer to the host: must not be found in anything that the
/// client sends.
constexpr std::uint64_t secret = 0x5ec2e75ec2e75ec2;

}  // namespace fargpu::fuzz
