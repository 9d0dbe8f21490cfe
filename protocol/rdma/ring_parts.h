#pragma once
// Which bytes of a stream came in messages, and which were put by a device, where the two lie apart.

#include <cstddef>
#include <cstdint>
#include <deque>

namespace fargpu::rdma {

/// The parts of what is in a ring. Used under a lock.
class RingParts {
 public:
  /// Messages and puts take turns at most so often in a ring: a device puts more than a message has, unless something
  /// is on its way anyway.
  static constexpr std::size_t parts_max = 4096;

  struct Part {
    std::uint64_t end = 0;  ///< of the stream, where it ends
    bool in_messages = false;
  };

  /// All that comes next, up to `end`. `read`: what comes before was taken. False if there are too many parts.
  bool add(std::uint64_t end, bool in_message, std::uint64_t read) {
    while (!parts_.empty() && parts_.front().end <= read) parts_.pop_front();
    if (!parts_.empty() && parts_.back().in_messages == in_message) {
      parts_.back().end = end;
      return true;
    }
    if (parts_.size() == parts_max) return false;
    parts_.push_back({end, in_message});
    return true;
  }
  /// Where the byte at this position lies, which was added and has not been passed.
  Part at(std::uint64_t position) {
    while (parts_.size() > 1 && parts_.front().end <= position) parts_.pop_front();
    return parts_.front();
  }

 private:
  std::deque<Part> parts_;
};

}  // namespace fargpu::rdma
