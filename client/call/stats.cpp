#include "stats.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "argument_text.h"
#include "cuda_facts.h"
#include "trace.h"
#include "trace_details.h"
#include "client/base/life.h"
#include "client/base/log.h"
#include "protocol/compression.h"
#include "protocol/text.h"
#include "client/objects/thread.h"

namespace fargpu::client::stats {

const bool enabled = log::stats_wanted();
const bool tracing = log::trace_wanted();
std::atomic<std::uint64_t> symbol_counts[symbol_count];

constinit OpcodeCounts opcode_counts[opcode_max + 1];

void trace(Symbol symbol, std::span<const std::uint64_t> arguments, CUresult result) noexcept {
  if (life() == Life::forked || life() == Life::ended) return;  // what a line takes may be gone
  try {
    Thread& thread = Thread::current();
    const auto details = std::exchange(thread.traced.details, nullptr);
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    tm local{};
    ::localtime_r(&now.tv_sec, &local);
    log::report(fmt::format("{:02}:{:02}:{:02}.{:06} thread {}: {}({}) {}{}", local.tm_hour, local.tm_min, local.tm_sec,
                            now.tv_nsec / 1000, thread.id(), facts_of(symbol).name,
                            argument_text(symbol, arguments, result, trace::name_of_function()), result_name(result),
                            details ? details->text() : ""));
  } catch (...) {}
}

namespace {

std::string amount(std::uint64_t bytes) {
  constexpr std::uint64_t kib = 1024;
  return bytes < kib         ? fmt::format("{} bytes", bytes)
         : bytes < kib * kib ? fmt::format("{:.0f} KiB", static_cast<double>(bytes) / kib)
                             : bytes_text(bytes);
}

// "3.2 s at HOST by TCP, of which 0.4 s (12%) waited for the host in 14 round trips; 23 KiB out, 41 KiB in"
std::string summary(const SessionTotals& totals) {
  std::uint64_t waited_ns = 0;
  for (unsigned i = 1; i <= opcode_max; ++i) waited_ns += of(static_cast<Opcode>(i)).nanoseconds;
  const double ran = std::chrono::duration<double>(totals.ran).count(), waited = static_cast<double>(waited_ns) / 1e9;
  const std::uint64_t trips = round_trips();
  // Threads that wait at the same time may together wait for longer than the program runs.
  const std::string share =
      waited > ran ? ", of all its threads together," : fmt::format(" ({:.0f}%)", ran > 0 ? 100 * waited / ran : 0);
  return fmt::format("{:.3g} s at {} by {}, of which {:.2g} s{} waited for the host in {}; {} out, {} in", ran,
                     totals.host, totals.medium, waited, share, so_many(trips, "round trip"), amount(totals.bytes_sent),
                     amount(totals.bytes_received));
}

}  // namespace

std::uint64_t round_trips() {
  std::uint64_t sum = 0;
  for (unsigned i = 1; i <= opcode_max; ++i) sum += of(static_cast<Opcode>(i)).waited;
  return sum;
}

void print(const SessionTotals& totals) {
  std::string text = summary(totals) + "\n";
  text += fmt::format("  {:<58}{:>12}  {}\n", "call", "count", "answered by");
  std::vector<std::pair<std::uint64_t, unsigned>> calls;
  for (unsigned i = 0; i < symbol_count; ++i)
    if (const std::uint64_t n = symbol_counts[i]) calls.emplace_back(n, i);
  std::sort(calls.rbegin(), calls.rend());
  constexpr const char* served[] = {"host", "client", "client or host", "none: it is not served"};
  for (const auto& [n, i] : calls) {
    const SymbolFacts& facts = facts_of(static_cast<Symbol>(i));
    text += fmt::format("  {:<58}{:>12}  {}\n", facts.name, n, served[static_cast<int>(facts.service)]);
  }
  text += fmt::format("  {:<38}{:>10}{:>12}{:>10}{:>14}{:>14}\n", "sent to the host", "messages", "round trips",
                      "cached", "bytes", "waited us");
  std::vector<std::pair<std::uint64_t, unsigned>> opcodes;
  for (unsigned i = 1; i <= opcode_max; ++i) {
    const OpcodeCounts& c = of(static_cast<Opcode>(i));
    if (c.sent || c.recalled) opcodes.emplace_back(c.sent + c.recalled, i);
  }
  std::sort(opcodes.rbegin(), opcodes.rend());
  for (const auto& [n, i] : opcodes) {
    const OpcodeCounts& c = of(static_cast<Opcode>(i));
    text += fmt::format("  {:<38}{:>10}{:>12}{:>10}{:>14}{:>14}\n", opcode_name(static_cast<std::uint16_t>(i)),
                        c.sent.load(), c.waited.load(), c.recalled.load(), c.bytes.load(), c.nanoseconds.load() / 1000);
  }
  text += fmt::format("  round trips {}, bytes sent {}, bytes received {}", round_trips(), totals.bytes_sent,
                      totals.bytes_received);
  if (totals.bytes_direct + totals.bytes_relayed > 0)
    text += fmt::format("\n  from host to host: bytes that went directly {}, through this program {}",
                        totals.bytes_direct, totals.bytes_relayed);
  if (totals.lanes > 0) text += fmt::format("\n  bulk lanes {}, in use {}", totals.lanes, totals.lanes_in_use);
  if (const ContentCounts& contents = totals.contents; contents.named > 0)
    text += fmt::format(
        "\n  known contents: {} of {} blocks that were named, {} bytes not sent; {:.2g} s of hashing, "
        "names of {} blocks remembered",
        contents.known, contents.named, contents.known_bytes, std::chrono::duration<double>(contents.hashing).count(),
        contents.remembered);
  const auto compressed = [&](const char* way, const CompressionCounts::Way& counts) {
    if (const std::uint64_t before = counts.before)
      text += fmt::format("\n  compressed {}: {} bytes as {}", way, before, counts.after.load());
  };
  compressed("to the host", compression_counts.out);
  compressed("from the host", compression_counts.in);
  log::report(text);
}

}  // namespace fargpu::client::stats
