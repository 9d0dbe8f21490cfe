#pragma once
// Memory of a GPU through which contents pass between a card and the GPU. The processor cannot touch a byte of it: what
// is neither put by a card nor copied by the GPU is copied here, by a function of the memory's owner.
//
// Only workers have such memory. Nothing is asked of it where there is none but one number.

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>

namespace fargpu {

/// Such memory cannot be read or written. Never an error of the program or of the peer: the session ends with it, since
/// nothing can take the place of the bytes.
struct DeviceBytesError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// All that this process has. Threads: any.
class DeviceBytes {
 public:
  enum class Way {
    in,      ///< from ordinary memory
    out,     ///< to ordinary memory
    within,  ///< both are memory of a GPU
  };
  /// Copies a piece of the memory; returns when that is done. False if it cannot be. Called by any thread, several at
  /// once, and asks nothing of this class.
  using Copy = std::function<bool(Way way, void* to, const void* from, std::size_t bytes)>;

  static void add(std::span<const std::byte> memory, Copy copy);
  /// Returns when nobody copies by its function any more.
  static void remove(const std::byte* begin) noexcept;
  static bool contains(const void* address) noexcept;
  /// Where at least one of the two lies in such memory. False if the owner cannot copy it, or a piece is not all in one
  /// range.
  static bool copy(void* to, const void* from, std::size_t bytes) noexcept;
};

/// As std::memcpy, wherever the two lie. Throws DeviceBytesError.
void copy_wherever(void* to, const void* from, std::size_t bytes);
/// For words about memory that cannot be read or written: throws DeviceBytesError if `address` lies in such memory.
void throw_if_on_device(const void* address);

}  // namespace fargpu
