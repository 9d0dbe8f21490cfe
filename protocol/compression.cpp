#include "compression.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "errors.h"
#include "limits.h"
#include "program_memory.h"

namespace fargpu {
namespace {

using Clock = std::chrono::steady_clock;

// The first level that codes by entropy, which is what numbers of models gain by; it packs some hundred MB a second.
constexpr int level = 1;
constexpr std::size_t sample_bytes = 64u << 10;
constexpr unsigned rest_max = 64;
constexpr unsigned look_at_link_every = 64;
// No codec keeps up with a link that takes a byte in less than this.
constexpr double fast_link_ns_per_byte = 1;

struct Prefix {
  std::uint32_t plain_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Prefix) == limits::compressed_prefix_bytes);

}  // namespace

constinit CompressionCounts compression_counts;

void Compressor::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
void Decompressor::Free::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

// Into packed_, behind the prefix; 0 if it does not become smaller by a sixteenth, or there is no memory. The bytes are
// copied first: a program may change them, or take them away, meanwhile.
std::size_t Compressor::try_pack(Bytes bytes, Cost& cost) {
  const auto begin = Clock::now();
  cost = {};
  try {
    if (!context_) context_.reset(ZSTD_createCCtx());
    plain_.resize(bytes.size());
    packed_.resize(sizeof(Prefix) + bytes.size() - bytes.size() / 16);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  if (!context_) return 0;
  if (!read_program_memory(bytes.data(), plain_.data(), bytes.size())) return 0;  // sending the plain bytes will tell
  const Prefix prefix{static_cast<std::uint32_t>(bytes.size())};
  std::memcpy(packed_.data(), &prefix, sizeof(prefix));
  const std::size_t size = ZSTD_compressCCtx(context_.get(), packed_.data() + sizeof(prefix),
                                             packed_.size() - sizeof(prefix), plain_.data(), plain_.size(), level);
  const double took = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
  cost.ns_per_byte = took / static_cast<double>(bytes.size());
  if (ZSTD_isError(size)) return 0;
  cost.ratio = static_cast<double>(size) / static_cast<double>(bytes.size());
  return sizeof(prefix) + size;
}

void Compressor::rest() {
  willing_ = false;
  resting_ = rest_next_;
  rest_next_ = std::min(2 * rest_next_, rest_max);
}

// As long as all senders together keep the link busy, packing costs nothing but its own sender's time: of `senders`
// bytes that were sent in turn, each taking link / senders, this one's now takes cost + ratio * link / senders, beside
// the others.
bool Compressor::gains(const Cost& cost, unsigned senders) const {
  return cost.ratio < 1 && cost.ns_per_byte < (1 - cost.ratio / senders) * link_ns_per_byte_;
}

Compressor::Bytes Compressor::pack(Bytes bytes) { return pack(bytes, 1); }

Compressor::Bytes Compressor::pack(Bytes bytes, unsigned senders) {
  if (mode_ == Compression::never || bytes.size() < limits::compressed_bytes_min) return {};
  Cost cost;
  if (mode_ == Compression::automatic) {
    if (link_ns_per_byte_ < fast_link_ns_per_byte) return {};
    if (resting_ > 0) {
      --resting_;
      return {};
    }
    if (willing_ && ++packed_in_row_ >= look_at_link_every) {  // how fast it is now shows only what is sent as it is
      packed_in_row_ = 0;
      return {};
    }
    if (!willing_ && bytes.size() > 2 * sample_bytes) {
      try_pack(bytes.subspan(bytes.size() / 2, sample_bytes), cost);
      if (!gains(cost, senders)) {
        rest();
        return {};
      }
    }
  }
  const std::size_t size = try_pack(bytes, cost);
  if (mode_ == Compression::automatic) {
    if (!gains(cost, senders)) {
      rest();
    } else {
      willing_ = true;
      rest_next_ = 1;
    }
  }
  if (size == 0) return {};
  compression_counts.out.before.fetch_add(bytes.size(), std::memory_order_relaxed);
  compression_counts.out.after.fetch_add(size, std::memory_order_relaxed);
  return std::span(packed_).first(size);
}

void Compressor::sent(std::size_t wire_bytes, bool packed, std::chrono::nanoseconds took, bool waited) {
  if (mode_ != Compression::automatic || wire_bytes < limits::compressed_bytes_min) return;
  if (packed && !waited) return;  // the codec was what held it up
  const double now = static_cast<double>(took.count()) / static_cast<double>(wire_bytes);
  link_ns_per_byte_ += (now - link_ns_per_byte_) / 4;
}

std::size_t Decompressor::size_of(std::span<const std::byte> packed) {
  Prefix prefix;
  if (packed.size() <= sizeof(prefix)) throw ProtocolError("a compressed frame without contents");
  std::memcpy(&prefix, packed.data(), sizeof(prefix));
  if (prefix.plain_bytes > limits::bulk_bytes_max || packed.size() - sizeof(prefix) >= prefix.plain_bytes ||
      prefix.reserved != 0)
    throw ProtocolError("a compressed frame that says it holds " + std::to_string(prefix.plain_bytes) + " bytes");
  return prefix.plain_bytes;
}

void Decompressor::unpack(std::span<const std::byte> packed, std::span<std::byte> to) {
  if (!context_) context_.reset(ZSTD_createDCtx());
  if (!context_) throw std::bad_alloc();
  const auto block = packed.subspan(sizeof(Prefix));
  // One frame of the codec's, and nothing behind it.
  if (ZSTD_findFrameCompressedSize(block.data(), block.size()) != block.size() ||
      ZSTD_decompressDCtx(context_.get(), to.data(), to.size(), block.data(), block.size()) != to.size())
    throw ProtocolError("a compressed frame that does not hold what it says");
  compression_counts.in.before.fetch_add(to.size(), std::memory_order_relaxed);
  compression_counts.in.after.fetch_add(packed.size(), std::memory_order_relaxed);
}

}  // namespace fargpu
