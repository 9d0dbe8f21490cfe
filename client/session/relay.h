#pragma once
// Bytes that go from one session to another through this process: one thread reads ahead while another one writes.

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "client/copy/copy_job.h"

namespace fargpu::client {

/// Between the two threads. Few pieces are there at once, so that memory is bounded.
class Relay {
 public:
  /// Large enough for the lanes, small enough to be kept a few times.
  static constexpr std::uint64_t piece_bytes = 8u << 20;

  struct Piece {
    CopyPart part;
    std::vector<std::byte> bytes;
  };

  // --- for the thread that reads ---------------------------------------------------------------------------------

  /// Memory for a piece's bytes. Waits until there is room; nothing once the other thread has given up.
  std::optional<std::vector<std::byte>> room(std::size_t bytes);
  void put(Piece piece);
  /// There are no further pieces. The last that the thread does with the relay.
  void end(CUresult result);

  // --- for the thread that writes --------------------------------------------------------------------------------

  /// The next piece; nothing when all have been taken.
  std::optional<Piece> take();
  void give_back(std::vector<std::byte> bytes);
  /// No further piece is wanted.
  void give_up();
  /// Waits for end(), whose result it returns.
  CUresult finish();

 private:
  static constexpr std::size_t pieces_max = 3;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  std::vector<std::vector<std::byte>> spare_;
  std::size_t lent_ = 0;  // given out by room(), and not back
  bool given_up_ = false;
  std::optional<CUresult> result_;
};

}  // namespace fargpu::client
