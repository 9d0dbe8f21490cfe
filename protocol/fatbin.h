#pragma once
// What lies in a fatbin: the container of nvcc's code for several architectures. CUDA Toolkit, "CUDA Binary Utilities"
// names the kinds; the layout is not documented.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fargpu {

/// The container, or a piece of it, is malformed; what() says where.
class FatbinError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Code for one architecture. `stored` lies within the container.
struct FatbinPiece {
  static constexpr std::uint16_t ptx = 1, elf = 2;
  std::uint16_t kind = 0;
  std::uint32_t architecture = 0;  ///< 90 for compute capability 9.0
  std::uint64_t flags = 0;
  std::uint64_t compressed_bytes = 0;  ///< of `stored`, where that is compressed
  std::uint64_t bytes = 0;             ///< of the code, where it is compressed
  std::string_view stored;
};

/// What nvcc's object files hand to the driver.
struct FatbinWrapper {
  std::uint32_t magic = 0x466243b1;
  std::uint32_t version = 1;
  const void* container = nullptr;
  /// Version 1: a file name. Version 2: a list of the images before linking, of which `container` is the result.
  const void* more = nullptr;
};

/// What a container begins with.
struct FatbinContainer {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;  ///< behind the header
};

inline constexpr std::uint32_t fatbin_magic = 0xba55ed50;  ///< of a container
inline constexpr std::uint64_t fatbin_header_bytes = sizeof(FatbinContainer);

/// The size of the container that begins with this header. Throws FatbinError.
std::uint64_t fatbin_bytes(std::string_view header);

/// The pieces of a whole container, whose bytes may be anybody's: all is checked before it is followed. Throws
/// FatbinError.
std::vector<FatbinPiece> fatbin_pieces(std::string_view container);

/// The code of a piece, with its padding. Throws FatbinError, also where it has more than `bytes_max` bytes.
std::string fatbin_code(const FatbinPiece& piece, std::uint64_t bytes_max = std::uint64_t{1} << 30);

}  // namespace fargpu
