#pragma once
// FARGPU_TRACE=file.json: what the process did with its session, over time, for viewers of traces (Chrome's trace event
// format, as an array of events, whose end may be missing). Written as it happens: the memory it takes has a bound, and
// a process that is killed leaves all but the last moment.

#include <cuda.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "opcodes.h"
#include "protocol/handle.h"
#include "symbols.h"

namespace fargpu::client {

class Thread;
struct Stream;

namespace trace {

extern const bool enabled;
/// FARGPU_LOG=trace is told, too, what calls copy, and the names of kernels.
extern const bool detailed;
using Clock = std::chrono::steady_clock;

void write_call(Thread& thread, Symbol symbol, CUresult result, Clock::time_point begin) noexcept;
void write_frame(Thread& thread, const Stream* stream, Opcode opcode, std::span<const std::byte> message,
                 std::uint64_t bytes) noexcept;
void write_round_trip(Thread& thread, Opcode opcode, CUresult result, std::uint64_t bytes_in,
                      Clock::time_point begin) noexcept;

/// An exported function while it runs.
class Call {
 public:
  Call() {
    if (enabled) [[unlikely]]
      begin_ = Clock::now();
  }
  void returns(Thread& thread, Symbol symbol, CUresult result) noexcept {
    if (enabled) [[unlikely]]
      write_call(thread, symbol, result, begin_);
  }

 private:
  Clock::time_point begin_;
};

enum class Direction { out, in };
void write_transfer(Thread& thread, Direction direction, std::uint64_t bytes, Clock::time_point begin) noexcept;

/// Contents of memory while they travel on the bulk lanes.
class Transfer {
 public:
  Transfer(Thread& thread, Direction direction, std::uint64_t bytes)
      : thread_(thread), direction_(direction), bytes_(bytes) {
    if (enabled) [[unlikely]]
      begin_ = Clock::now();
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    if (enabled) [[unlikely]]
      write_transfer(thread_, direction_, bytes_, begin_);
  }

 private:
  Thread& thread_;
  const Direction direction_;
  const std::uint64_t bytes_;
  Clock::time_point begin_;
};

/// A frame has left, for work on this stream if it is not null.
inline void sent(Thread& thread, const Stream* stream, Opcode opcode, std::span<const std::byte> message,
                 std::uint64_t bytes) noexcept {
  if (detailed) [[unlikely]]
    write_frame(thread, stream, opcode, message, bytes);
}
/// Its answer is here.
inline void answered(Thread& thread, Opcode opcode, CUresult result, std::uint64_t bytes_in,
                     Clock::time_point begin) noexcept {
  if (enabled) [[unlikely]]
    write_round_trip(thread, opcode, result, bytes_in, begin);
}

/// Which session it is, at which host, with what; and how long it took to have it, since then.
struct SessionFacts {
  std::string host;
  std::uint64_t id = 0;
  std::vector<std::string> devices;
  bool shares_memory = false;
  std::function<std::string(Handle)> name_of_function;  ///< empty for one that is unknown; called by any thread
};
void begin_session(const SessionFacts& session, Clock::time_point begin) noexcept;
/// By the session that has begun; of nothing before.
std::function<std::string(Handle)>& name_of_function();
/// Something that has no length.
void note(const std::string& text) noexcept;
/// The session's device memory at that host was away, and is back now. What happened to it: each for so many
/// microseconds, one after the other.
struct MemoryState {
  const char* name = "";
  std::uint64_t us = 0;
};
void memory_returned(const std::string& host, std::uint64_t bytes, const std::array<MemoryState, 4>& states) noexcept;
/// The process ends: nothing more is written.
void finish() noexcept;

}  // namespace trace
}  // namespace fargpu::client
