#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

namespace fargpu::softgpu {

/// Output of printf in kernels between two synchronisations. Of more than the limit holds the
/// oldest is lost, as in CUDA's circular buffer.
class PrintBuffer {
 public:
  void set_limit(size_t bytes);
  size_t limit() const;
  void append(std::string_view text);
  /// Writes everything to stdout.
  void flush();

 private:
  mutable std::mutex mutex_;
  std::mutex output_mutex_;  // keeps two flushes from mixing their output
  std::deque<std::string> texts_;
  size_t bytes_ = 0;
  size_t limit_bytes_ = size_t{1} << 20;
};

}  // namespace fargpu::softgpu
