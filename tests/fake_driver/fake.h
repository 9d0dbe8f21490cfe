#pragma once
// The fake driver as tests see it: a library of its own (so that its functions do not meet the client's of the same
// names), loaded by path, with a few functions beside CUDA's.
//
// What it does: memory has real storage, so that copies and memsets can be checked; streams execute at once; events
// happen at once unless the GPU is paused. Images are PTX texts: their .entry directives give kernels and parameters.
// Kernels do nothing but be remembered, except those named below. Other images are taken to hold every kernel asked
// for, without parameters, so that real libraries get through their start. Everything else answers
// CUDA_ERROR_NOT_SUPPORTED, or what a test scripted.
//
//   fill32(u64 address, u32 count, u32 value)    writes words to device or mapped host memory
//   crash()                                      the context fails with CUDA_ERROR_ILLEGAL_ADDRESS from now on
//   hang()                                       never ends: whatever waits for the GPU waits for ever, the end of a
//   context as well

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

#include "driver_table.h"

namespace fargpu::fake {

/// `__managed__` variables of every module, all of one storage, filled with a byte. They lie where a session with this
/// band of the driver's has them: the second shares a page with the first, the third a granule of the client's with
/// both.
struct ManagedVariable {
  const char* name;
  std::uint64_t address;
  std::uint64_t bytes;
  unsigned char initial;
};
#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t driver_band = 0x5610'0000'0000;
#else
inline constexpr std::uint64_t driver_band = 0x3d10'0000'0000;
#endif
inline constexpr std::uint64_t driver_band_bytes = 1u << 30;
inline constexpr ManagedVariable managed_variables[] = {{"managed_words", driver_band + 0x100, 4000, 0x11},
                                                        {"managed_flag", driver_band + 0x100 + 4000, 4, 0x22},
                                                        {"managed_table", driver_band + 0x8000, 200'000, 0x33}};

inline constexpr std::byte left_behind{0xA5};

struct Launch {
  std::string kernel;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  std::uint64_t stream;
  std::vector<std::byte> parameters;
  unsigned attributes;
  std::size_t thread;  ///< that made it; equal for equal threads
};

/// Handed out by the library under the name "fargpu_fake_controls".
struct Controls {
  /// Forgets calls, launches and scripts; objects stay.
  void (*reset)();
  /// How often a function was called.
  std::size_t (*calls)(const char* name);
  /// The arguments of the most recent call.
  std::vector<std::uint64_t> (*last_arguments)(const char* name);
  /// The next `times` calls return this without doing anything.
  void (*script)(const char* name, CUresult result, int times);
  /// Calls of a function wait while it is held.
  void (*hold)(const char* name, bool held);
  /// While paused, nothing that is recorded or submitted completes.
  void (*pause)(bool paused);
  std::vector<Launch> (*launches)();
  /// Until it is told otherwise, new memory is as it was left:
  /// that of cuMemCreate by the last owner of as many bytes, other
  /// memory full of `left_behind`.
  void (*leave)(bool leave);
  /// Bytes in cuMemCreate memory that exist now.
  std::uint64_t (*memory_bytes)();
  /// Objects of all kinds that exist now (contexts, streams, events, modules, ...).
  std::size_t (*objects)();
};

/// The loaded library: a table like any driver's, and the controls.
class FakeDriver {
 public:
  /// Path from FARGPU_FAKE_DRIVER, or the one the build gave.
  static FakeDriver& instance();
  server::DriverTable& table() { return table_; }
  const Controls* operator->() const { return controls_; }

 private:
  FakeDriver();
  server::DriverTable table_;
  const Controls* controls_ = nullptr;
};

}  // namespace fargpu::fake
