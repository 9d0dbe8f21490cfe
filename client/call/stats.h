#pragma once
// FARGPU_LOG=stats: at exit, per call, how often it was made, how it was served, and what it cost.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "opcodes.h"
#include "symbols.h"

namespace fargpu::client::stats {

struct OpcodeCounts {
  std::atomic<std::uint64_t> sent{0};         ///< frames that left
  std::atomic<std::uint64_t> waited{0};       ///< of these, round trips
  std::atomic<std::uint64_t> recalled{0};     ///< answered from the cache of replies
  std::atomic<std::uint64_t> bytes{0};        ///< out, with bulk
  std::atomic<std::uint64_t> nanoseconds{0};  ///< spent waiting

  /// A frame leaves. Under the command stream's lock, so that one thread at a time writes.
  void leaves(std::uint64_t frame_bytes) {
    sent.store(sent.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    bytes.store(bytes.load(std::memory_order_relaxed) + frame_bytes, std::memory_order_relaxed);
  }
};

extern const bool enabled;
extern const bool tracing;
extern std::atomic<std::uint64_t> symbol_counts[symbol_count];
extern OpcodeCounts opcode_counts[opcode_max + 1];
inline OpcodeCounts& of(Opcode opcode) { return opcode_counts[static_cast<unsigned>(opcode)]; }

inline void count(Symbol symbol) {
  if (enabled) [[unlikely]]
    symbol_counts[static_cast<unsigned>(symbol)].fetch_add(1, std::memory_order_relaxed);
}

/// FARGPU_LOG=trace: a call as it returns, with the time, the thread, its arguments and what it copies.
void trace(Symbol symbol, std::span<const std::uint64_t> arguments, CUresult result) noexcept;

/// Blocking round trips so far.
std::uint64_t round_trips();

using Clock = std::chrono::steady_clock;

/// Of contents that were named instead of sent.
struct ContentCounts {
  std::uint64_t named = 0;  ///< blocks
  std::uint64_t known = 0;  ///< of these, those that the host had
  std::uint64_t known_bytes = 0;
  std::uint64_t remembered = 0;  ///< names of files' contents, for which nothing was hashed
  Clock::duration hashing{0};    ///< on threads of the library's own
};

/// What of a session counts and times elsewhere.
struct SessionTotals {
  std::string host;
  std::string medium;      ///< what its calls go by
  Clock::duration ran{0};  ///< since the first cuInit
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_direct = 0;   ///< of copies between hosts: those that went directly
  std::uint64_t bytes_relayed = 0;  ///< and through this process
  std::size_t lanes = 0;
  std::size_t lanes_in_use = 0;  ///< to the host, at the end
  ContentCounts contents;
};

/// Writes one line with what people want to know first, and the tables.
void print(const SessionTotals& totals);

}  // namespace fargpu::client::stats
