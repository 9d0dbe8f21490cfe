#pragma once
// What kernels print: the driver writes it to this process's own standard output and standard error, from where it goes
// to the client.

#include <cstdint>
#include <functional>
#include <span>

namespace fargpu::server {

/// Takes over a descriptor of this process: whatever is written to it gathers in memory, so that the writer never
/// waits, and is handed on by collect(). Writing: any thread. Collecting: one.
class CapturedOutput {
 public:
  /// Throws SystemError.
  explicit CapturedOutput(int descriptor);
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  ~CapturedOutput();

  /// Calls hand_on(text) for what was written since the last time, in pieces.
  void collect(const std::function<void(std::span<const std::byte>)>& hand_on);

 private:
  static constexpr std::size_t piece_bytes = 64u << 10;

  int memory_ = -1;
  std::uint64_t taken_ = 0;
};

/// Whether code may call printf or assert on the device. In containers its parts may be compressed: of these nothing is
/// known, and the answer is yes.
bool may_print(std::span<const std::byte> image);

/// The two that programs look at.
struct PrintedByKernels {
  CapturedOutput output{1};
  CapturedOutput errors{2};
};

}  // namespace fargpu::server
