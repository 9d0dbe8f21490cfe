#pragma once
// Bytes for pinned memory that copies will still bring, and what is being read of it meanwhile. HostMemory decides by
// them where the newest bytes of a place are, and when its pages may become what kernels see.

#include <cstdint>
#include <utility>
#include <vector>

namespace fargpu::client {

struct Context;

/// Which bytes are still to come, and by which copy. Threads: one at a time.
class ExpectedBytes {
 public:
  /// What brings them.
  enum class By {
    connection,  ///< the worker's copy of the block, which has them before they come
    lanes,
    thread,  ///< a thread waits for the copy, and says when it is over
  };
  /// Returns the number of the copy, by which its bytes come; 0 but for the connection.
  std::uint32_t add(By by, std::uint64_t begin, std::uint64_t end, const Context& context);

  /// Some have come by the connection: those of the copy with that number, or of any if it is 0. Those of one copy come
  /// in order.
  void arrived(std::uint64_t begin, std::uint64_t end, std::uint32_t number);
  /// None come any more of the copy with that number.
  void over(std::uint32_t number);
  /// The copy by the lanes, or of a thread, has brought all.
  void over(By by, std::uint64_t begin, std::uint64_t end);
  /// The context is gone, and none come of its copies.
  void forget(const Context& context);
  /// The memory is gone.
  void forget(std::uint64_t begin, std::uint64_t end);

  /// A thread reads the memory, or has the lanes read it.
  void begin_reading(std::uint64_t begin, std::uint64_t end) { read_.emplace_back(begin, end); }
  void reading_is_over(std::uint64_t begin, std::uint64_t end);

  bool empty() const { return expected_.empty(); }
  /// Whether any come for one of [begin, end).
  bool any(std::uint64_t begin, std::uint64_t end) const;
  bool any(By by, std::uint64_t begin, std::uint64_t end) const;
  /// Whether a thread reads one of them, or waits for a copy that writes it.
  bool used_by_threads(std::uint64_t begin, std::uint64_t end) const;
  /// The contexts whose copies bring some; they may be gone.
  std::vector<const Context*> contexts(std::uint64_t begin, std::uint64_t end) const;

  /// Where newest bytes are.
  enum class Newest {
    here,
    at_worker,  ///< in the worker's copy of the block
    coming,     ///< here, when all is delivered
  };
  /// The first part of [begin, end) for which one answer holds.
  struct Part {
    std::uint64_t bytes;
    Newest newest;
  };
  Part newest(std::uint64_t begin, std::uint64_t end) const;

 private:
  struct Copy {
    std::uint64_t begin, end;  // still to come
    By by;
    std::uint32_t number;
    const Context* context;

    bool within(std::uint64_t from, std::uint64_t to) const { return begin < to && from < end; }
  };

  std::vector<Copy> expected_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> read_;  // beginnings and ends
  std::uint32_t next_number_ = 1;
};

}  // namespace fargpu::client
