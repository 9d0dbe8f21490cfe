#pragma once
// A copy of the program on its way to the worker, and the two calls of which every way between host and device is made.

#include <algorithm>
#include <optional>
#include <span>

#include "client/call/remote_call.h"
#include "operations.capnp.h"
#include "program_copy.h"

namespace fargpu::client {

/// Some rows of a copy, one slice deep.
struct CopyPart {
  CopyShape shape;
  CopySide target;
  CopySide source;
};

struct CopyJob {
  Thread& thread;
  Stream& stream;
  Copy copy;
  bool host_sees_target = false;  ///< the host finds the outcome in memory that the worker has, without another copy

  CopyPart whole() const { return {copy.shape, copy.target, copy.source}; }
  /// Parts of at most so many bytes, one after the other, until one fails: whole rows, or pieces of one that is too
  /// long.
  template <class Step>
  CUresult for_parts(std::uint64_t bytes_max, Step&& step) const;
};

/// Whether the bytes of a copy from the host go with its call.
enum class Sending {
  with_call,  ///< as the program wants them: what it does with its memory later does not matter
  apart,      ///< they follow, or are taken from where they are when the stream gets there
};

/// Asks for a copy to the device. `source` is where the worker finds the rows.
CUresult copy_in(const CopyJob& job, const CopyShape& shape, const CopySide& target, const CopySide& source,
                 Sending sending);

/// Asks for one whose rows go with the call. With `if_room` nothing is sent, and nothing returned, where the worker
/// makes no room for them.
std::optional<CUresult> copy_frame_in(const CopyJob& job, const CopyShape& shape, const CopySide& target,
                                      std::span<const std::byte> frame, bool if_room);

/// A copy from the device, to be posted or waited for.
class CopyOutCall : public RemoteCall<wire::CopyOut> {
 public:
  CopyOutCall(const CopyJob& job, const CopyShape& shape, const CopySide& source, const CopySide& target);
};

template <class Step>
CUresult CopyJob::for_parts(std::uint64_t bytes_max, Step&& step) const {
  const CopyShape& shape = copy.shape;
  const std::uint64_t rows_max = std::max<std::uint64_t>(1, bytes_max / shape.width);
  for (std::uint64_t z = 0; z < shape.depth; ++z) {
    for (std::uint64_t y = 0; y < shape.height; y += rows_max) {
      for (std::uint64_t x = 0; x < shape.width; x += bytes_max) {
        const CopyShape part{std::min(bytes_max, shape.width - x), std::min(rows_max, shape.height - y)};
        if (const CUresult result = step(CopyPart{part, copy.target.from(x, y, z), copy.source.from(x, y, z)});
            result != CUDA_SUCCESS)
          return result;
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client
