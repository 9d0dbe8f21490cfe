#pragma once
// What kernels print, on its way to the program's standard output and standard error.

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

namespace fargpu::client {

/// Text that arrived waits for a thread of the program that returns from a call: that is when the driver prints too,
/// and such a thread may wait for a stream's lock or for the reader of its other end, where the receiving thread must
/// not. Written by the C library's streams, so that it comes in order with what the program prints itself. Threads:
/// any.
class WaitingPrints {
 public:
  /// Bytes that may wait. With more the oldest are lost, as in the driver's own buffer.
  static constexpr std::size_t bytes_max = 64u << 20;

  enum Stream { output, errors };
  void add(Stream stream, std::string_view text);
  /// By a thread that holds no lock of ours.
  void write() noexcept {
    if (waiting_.load(std::memory_order_acquire)) [[unlikely]]
      write_all();
  }

 private:
  void write_all() noexcept;
  void write_text(std::string& waiting, std::FILE* stream) noexcept;

  std::mutex mutex_;
  std::array<std::string, 2> texts_;
  std::atomic<bool> waiting_{false};
};

/// Never destroyed.
extern WaitingPrints& waiting_prints;

}  // namespace fargpu::client
