// FrameReader: whatever bytes arrive, in whatever pieces, it hands over exactly the frames that are in them, or says
// what is wrong.

#include <algorithm>
#include <optional>

#include "fuzz.h"
#include "protocol/compression.h"
#include "protocol/errors.h"
#include "protocol/frame_reader.h"

namespace fargpu {
namespace {

struct Frame {
  FrameHeader header;
  std::vector<std::byte> message, bulk;
};

/// Bytes that arrive in pieces.
class Arriving final : public Channel {
 public:
  Arriving(std::span<const std::byte> bytes, unsigned rhythm) : rest_(bytes), rhythm_(rhythm) {}
  std::size_t send_some(std::span<const Bytes>) override { return 0; }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (rest_.empty()) throw ChannelClosed("over");
    rhythm_ = rhythm_ * 1103515245 + 12345;
    const std::size_t piece = rhythm_ >> 16 & 1 ? rest_.size() : (rhythm_ >> 17) % 40;
    const std::size_t bytes = std::min({piece, rest_.size(), buffer.size()});
    std::copy_n(rest_.begin(), bytes, buffer.begin());
    rest_ = rest_.subspan(bytes);
    return bytes;
  }
  Interest wait(Interest interest, Timeout, Waker*) override { return interest; }
  void close() noexcept override {}
  std::string peer() const override { return "bytes"; }

 private:
  std::span<const std::byte> rest_;
  unsigned rhythm_;
};

struct Collector final : FrameHandler {
  explicit Collector(unsigned rhythm) : rhythm(rhythm) {}
  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte> message) override {
    fuzz::expect(header.bulk_bytes > 0 && message.size() == header.message_bytes,
                 "place() for a frame that is not there");
    rhythm = rhythm * 1103515245 + 12345;
    if (rhythm >> 16 & 1) return std::nullopt;
    // Of the exact length, so that a step beyond is seen; more than any input has would only take time.
    static std::vector<std::byte> large(limits::bulk_bytes_max);
    if (header.bulk_bytes > 16'384) return std::span(large).first(header.bulk_bytes);
    bulk.assign(header.bulk_bytes, std::byte{0});
    return std::span(bulk);
  }
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk_bytes) override {
    fuzz::expect(reinterpret_cast<std::uintptr_t>(message.data()) % 8 == 0, "a message that cannot be read in place");
    fuzz::expect(bulk_bytes.size() == header.bulk_bytes &&
                     (bulk_bytes.empty() || bulk_bytes.size() > 16'384 || bulk_bytes.data() == bulk.data()),
                 "bulk bytes elsewhere");
    taken.push_back({header, {message.begin(), message.end()}, {bulk_bytes.begin(), bulk_bytes.end()}});
  }
  unsigned rhythm;
  std::vector<std::byte> bulk;
  std::vector<Frame> taken;
};

bool unpack(Frame& frame) {
  try {
    std::vector<std::byte> plain(Decompressor::size_of(frame.bulk));
    Decompressor().unpack(frame.bulk, plain);
    mark_plain(frame.header, plain.size());
    frame.bulk = std::move(plain);
    return true;
  } catch (const ProtocolError&) {
    return false;
  }
}

// By the book: docs/internals/wire-format.md, "Frames".
std::vector<Frame> read_plainly(std::span<const std::byte> bytes) {
  std::vector<Frame> frames;
  while (bytes.size() >= sizeof(FrameHeader)) {
    Frame frame;
    std::memcpy(&frame.header, bytes.data(), sizeof(FrameHeader));
    const FrameHeader& h = frame.header;
    const bool compressed = is_compressed(h);
    const auto kind = static_cast<unsigned>(h.kind) & ~unsigned{frame_compressed};
    if (h.message_bytes % 8 != 0 || h.message_bytes > limits::message_bytes_max ||
        h.bulk_bytes > limits::bulk_bytes_max)
      break;
    if (kind < 1 || kind > 6 || (compressed && h.bulk_bytes == 0)) break;
    const std::size_t whole = sizeof(h) + h.message_bytes + padded(h.bulk_bytes);
    if (bytes.size() < whole || h.sequence != frames.size() + 1) break;
    const auto message = bytes.subspan(sizeof(h), h.message_bytes),
               bulk = bytes.subspan(sizeof(h) + h.message_bytes, h.bulk_bytes);
    frame.message.assign(message.begin(), message.end());
    frame.bulk.assign(bulk.begin(), bulk.end());
    if (compressed && !unpack(frame)) break;
    frames.push_back(std::move(frame));
    bytes = bytes.subspan(whole);
  }
  return frames;
}

}  // namespace

namespace fuzz {

std::vector<Input> seeds() {
  std::vector<Input> all;
  for (const auto& [message, bulk] : {std::pair{0u, 0u}, {16u, 0u}, {8u, 5u}, {64u, 64u}, {0u, 1u}, {2048u, 300u}}) {
    Input input{7};
    for (std::uint32_t sequence = 1; sequence <= 3; ++sequence) {
      FrameHeader header;
      header.message_bytes = message;
      header.bulk_bytes = bulk;
      header.sequence = sequence;
      header.kind = FrameKind::call;
      append_value(input, header);
      input.resize(input.size() + message + padded(bulk), static_cast<std::uint8_t>(sequence));
    }
    all.push_back(std::move(input));
  }
  Compressor compressor(Compression::always);
  const std::vector<std::byte> contents(20'000, std::byte{1});
  const auto packed = compressor.pack(contents);
  Input input{7};
  FrameHeader header;
  mark_compressed(header, packed.size());
  header.sequence = 1;
  header.kind = static_cast<FrameKind>(static_cast<std::uint16_t>(FrameKind::call) | frame_compressed);
  append_value(input, header);
  for (const std::byte byte : packed) input.push_back(static_cast<std::uint8_t>(byte));
  input.resize(input.size() + padded(packed.size()) - packed.size());
  all.push_back(std::move(input));
  return all;
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  Arriving channel(bytes, data[0]);
  Collector collector(data[0]);
  try {
    FrameReader reader(channel, collector, 0);
    for (;;) reader.pump(1 + data[0] % 3);
  } catch (const ChannelClosed&) {
  } catch (const ProtocolError&) {}
  const std::vector<Frame> plain = read_plainly(bytes);
  // The reader may be waiting for a place when the bytes are over.
  fuzz::expect(collector.taken.size() <= plain.size(), "frames that are not there");
  for (std::size_t i = 0; i < collector.taken.size(); ++i) {
    const Frame &got = collector.taken[i], &wanted = plain[i];
    fuzz::expect(std::memcmp(&got.header, &wanted.header, sizeof(FrameHeader)) == 0 && got.message == wanted.message &&
                     got.bulk == wanted.bulk,
                 "a frame that differs from what was sent");
  }
  return 0;
}
