#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace fargpu::softgpu {

/// What processes share of an event: how often it was recorded, and how far streams have got. It
/// lies in a file of memory, whose name is the handle that they pass to each other.
class SharedEvent {
 public:
  /// Takes away what killed processes left of theirs.
  static void sweep();
  /// Throws OPERATING_SYSTEM.
  static std::shared_ptr<SharedEvent> create();
  /// Throws INVALID_VALUE if it is none, or none any more.
  static std::shared_ptr<SharedEvent> open(const CUipcEventHandle& handle);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();

  CUipcEventHandle handle() const;

  /// Another recording has begun: its number.
  uint64_t begin_record();
  /// The stream has got there.
  void end_record(uint64_t number);

  /// The last recording of any process; 0 if there was none.
  uint64_t last() const;
  bool is_over(uint64_t number) const;
  /// False if the process that made this recording has ended before the stream got there.
  bool is_alive(uint64_t number) const;

 private:
  struct Page;
  SharedEvent(std::string name, bool is_own);
  void map();

  const std::string name_;
  const bool is_own_;   // made by this process, whose end is that of the name
  int file_ = -1;       // holds this process's locks
  int questions_ = -1;  // asks about locks: those of one's own file are not seen
  Page* page_ = nullptr;
  std::mutex mutex_;  // among this process's threads
};

}  // namespace fargpu::softgpu
