#pragma once
// Contents of memory in fewer bytes, where the link is slower than making them so. A frame that carries its bulk bytes
// so says it in its header; what they are on the wire is told in docs/internals/wire-format.md.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace fargpu {

/// As the client wishes (control.capnp).
enum class Compression : std::uint8_t {
  never,
  automatic,  ///< where it gains time: the link was measured slower than the codec, and the contents compress
  always,     ///< whatever becomes smaller
};

/// What this process has sent and received so: bytes as they were, and as they travelled.
struct CompressionCounts {
  struct Way {
    std::atomic<std::uint64_t> before{0}, after{0};
  } out, in;
};
extern CompressionCounts compression_counts;

/// One sender's. Used by one thread at a time.
class Compressor {
 public:
  using Bytes = std::span<const std::byte>;

  explicit Compressor(Compression mode) : mode_(mode) {}

  /// What to send in the place of these bytes, which may be a program's; nothing if they are to be sent as they are.
  /// Valid until the next call. `senders` share the link: while one packs, the others send.
  Bytes pack(Bytes bytes, unsigned senders);
  Bytes pack(Bytes bytes);

  /// What pack() gave, or the bytes themselves, were sent and took so long; `waited`: the link did not take them at
  /// once.
  void sent(std::size_t wire_bytes, bool packed, std::chrono::nanoseconds took, bool waited);

  bool idle() const { return mode_ == Compression::never; }

 private:
  struct Cost {
    double ns_per_byte = 0;
    double ratio = 1;
  };
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::size_t try_pack(Bytes bytes, Cost& cost);
  bool gains(const Cost& cost, unsigned senders) const;
  void rest();

  const Compression mode_;
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> plain_, packed_;
  double link_ns_per_byte_ = 0;  // without what is packed: 0 while nothing was sent
  bool willing_ = false;         // the last contents were worth it
  unsigned resting_ = 0;         // so many are sent as they are before the next look
  unsigned rest_next_ = 1;
  unsigned packed_in_row_ = 0;
};

/// The other end's.
class Decompressor {
 public:
  /// How many bytes these are in truth. Throws ProtocolError if that cannot be.
  static std::size_t size_of(std::span<const std::byte> packed);
  /// Writes them to `to`, which is of that size, and nowhere else. Throws ProtocolError if they are not what they say.
  void unpack(std::span<const std::byte> packed, std::span<std::byte> to);

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
};

}  // namespace fargpu
