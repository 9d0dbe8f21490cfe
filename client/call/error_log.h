#pragma once
// The log of failed calls that programs read by cuLogsDumpToMemory and its like. CUDA Driver API, "Error Log Management
// Functions"; CUDA Programming Guide, "Error Log Management".

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "symbols.h"

namespace fargpu::client {

/// Keeps the last messages, as many as fit the size that the driver gives them. Iterators are numbers of messages.
/// Threads: any.
class ErrorLog {
 public:
  static constexpr std::size_t bytes_max = 25600;  ///< as the driver's, says cuLogsDumpToMemory

  ErrorLog();
  ErrorLog(const ErrorLog&) = delete;
  ErrorLog& operator=(const ErrorLog&) = delete;

  /// A call failed.
  void note(Symbol symbol, CUresult result) noexcept;
  void add(CUlogLevel level, std::string message);

  std::uint32_t end() const;
  /// The messages from `iterator` on, as lines of at most `room` bytes: the latest, where not all fit, under a line
  /// that says so. Nothing if there are messages and not even one fits. Moves the iterator to the end.
  bool read(std::uint32_t& iterator, std::size_t room, std::string& text) const;
  std::uint32_t first() const;

  CUlogsCallbackHandle add_callback(CUlogsCallback callback, void* data);
  bool remove_callback(CUlogsCallbackHandle handle);

 private:
  struct Callback {
    CUlogsCallback function;
    void* data;
  };
  std::uint32_t first_locked() const { return end_ - static_cast<std::uint32_t>(messages_.size()); }

  mutable std::mutex mutex_;
  std::deque<std::string> messages_;
  std::size_t bytes_ = 0;
  std::uint32_t end_ = 0;  // number of the next message
  std::map<std::uintptr_t, Callback> callbacks_;
  std::uintptr_t next_callback_ = 1;
  int file_ = -1;  // CUDA_LOG_FILE
};

ErrorLog& error_log();
/// Notes a call that failed. A log that cannot be had is not worth a program.
void note_error(Symbol symbol, CUresult result) noexcept;

}  // namespace fargpu::client
