#include "stats.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_facts.h"
#include "client/base/log.h"
#include "protocol/compression.h"
#include "client/objects/thread.h"

namespace fargpu::client::stats {

const bool enabled = log::stats_wanted();
const bool tracing = log::trace_wanted();
std::atomic<std::uint64_t> symbol_counts[symbol_count];

constinit OpcodeCounts opcode_counts[opcode_max + 1];

void trace(Symbol symbol, CUresult result) noexcept {
  try {
    log::report(fmt::format("{} {} [{}]", facts_of(symbol).name, result_name(result), Thread::current().id()));
  } catch (...) {}
}

std::uint64_t round_trips() {
  std::uint64_t sum = 0;
  for (unsigned i = 1; i <= opcode_max; ++i) sum += of(static_cast<Opcode>(i)).waited;
  return sum;
}

void print(std::uint64_t bytes_sent, std::uint64_t bytes_received) {
  std::string text = "calls of this process\n";
  text += fmt::format("  {:<58}{:>12}  {}\n", "call", "count", "served");
  std::vector<std::pair<std::uint64_t, unsigned>> calls;
  for (unsigned i = 0; i < symbol_count; ++i)
    if (const std::uint64_t n = symbol_counts[i]) calls.emplace_back(n, i);
  std::sort(calls.rbegin(), calls.rend());
  constexpr const char* served[] = {"generated", "local", "special", "refused"};
  for (const auto& [n, i] : calls) {
    const SymbolFacts& facts = facts_of(static_cast<Symbol>(i));
    text += fmt::format("  {:<58}{:>12}  {}\n", facts.name, n, served[static_cast<int>(facts.service)]);
  }
  text += fmt::format("  {:<38}{:>10}{:>12}{:>10}{:>14}{:>14}\n", "sent to the worker", "frames", "round trips", "cached", "bytes",
                      "waited us");
  std::vector<std::pair<std::uint64_t, unsigned>> opcodes;
  for (unsigned i = 1; i <= opcode_max; ++i) {
    const OpcodeCounts& c = of(static_cast<Opcode>(i));
    if (c.sent || c.recalled) opcodes.emplace_back(c.sent + c.recalled, i);
  }
  std::sort(opcodes.rbegin(), opcodes.rend());
  for (const auto& [n, i] : opcodes) {
    const OpcodeCounts& c = of(static_cast<Opcode>(i));
    text += fmt::format("  {:<38}{:>10}{:>12}{:>10}{:>14}{:>14}\n", opcode_name(static_cast<std::uint16_t>(i)), c.sent.load(),
                        c.waited.load(), c.recalled.load(), c.bytes.load(), c.nanoseconds.load() / 1000);
  }
  text += fmt::format("  round trips {}, bytes sent {}, bytes received {}", round_trips(), bytes_sent, bytes_received);
  const auto compressed = [&](const char* way, const CompressionCounts::Way& counts) {
    if (const std::uint64_t before = counts.before)
      text += fmt::format("\n  compressed {}: {} bytes as {}", way, before, counts.after.load());
  };
  compressed("to the host", compression_counts.out);
  compressed("from the host", compression_counts.in);
  log::report(text);
}

}  // namespace fargpu::client::stats
