#include "fatbin.h"

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <limits>

namespace fargpu {
namespace {

constexpr std::uint64_t piece_header_bytes = 64;
constexpr std::uint64_t flag_lz4 = 0x2000, flag_zstd = 0x8000;
// Nothing that nvcc makes compresses better than this, so that a small hostile piece cannot ask for much memory.
constexpr std::uint64_t ratio_max = 4096;

/// Little-endian numbers at offsets of a piece of memory, with its bounds checked.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T read(std::uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset)
      throw FatbinError("the image ends within a header");
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  std::string_view part(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > bytes_.size() || bytes > bytes_.size() - offset) throw FatbinError("the image ends within an entry");
    return bytes_.substr(offset, bytes);
  }
  std::uint64_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

bool unpack_lz4(std::string_view stored, std::string& code) {
  const int written =
      LZ4_decompress_safe(stored.data(), code.data(), static_cast<int>(stored.size()), static_cast<int>(code.size()));
  return written >= 0 && static_cast<std::uint64_t>(written) == code.size();
}

bool unpack_zstd(std::string_view stored, std::string& code) {
  const std::size_t written = ZSTD_decompress(code.data(), code.size(), stored.data(), stored.size());
  return !ZSTD_isError(written) && written == code.size();
}

}  // namespace

std::uint64_t fatbin_bytes(std::string_view header) {
  const Reader reader(header);
  const auto contents = reader.read<std::uint64_t>(8);
  const std::uint64_t header_bytes = reader.read<std::uint16_t>(6);
  if (contents > std::numeric_limits<std::uint64_t>::max() - header_bytes)
    throw FatbinError("malformed header of a fatbin");
  return header_bytes + contents;
}

std::vector<FatbinPiece> fatbin_pieces(std::string_view container) {
  const Reader reader(container);
  std::uint64_t offset = reader.read<std::uint16_t>(6);
  if (offset < fatbin_header_bytes) throw FatbinError("malformed header of a fatbin");
  std::vector<FatbinPiece> pieces;
  while (offset < reader.size()) {
    const std::uint64_t header_bytes = reader.read<std::uint32_t>(offset + 4);
    const auto stored_bytes = reader.read<std::uint64_t>(offset + 8);
    if (header_bytes < piece_header_bytes) throw FatbinError("malformed entry of a fatbin");
    reader.part(offset, header_bytes);
    FatbinPiece piece;
    piece.kind = reader.read<std::uint16_t>(offset);
    piece.compressed_bytes = reader.read<std::uint32_t>(offset + 16);
    piece.architecture = reader.read<std::uint32_t>(offset + 28);
    piece.flags = reader.read<std::uint64_t>(offset + 40);
    piece.bytes = reader.read<std::uint64_t>(offset + 56);
    piece.stored = reader.part(offset + header_bytes, stored_bytes);
    pieces.push_back(piece);
    offset += header_bytes + stored_bytes;
  }
  return pieces;
}

std::string fatbin_code(const FatbinPiece& piece, std::uint64_t bytes_max) {
  if ((piece.flags & (flag_lz4 | flag_zstd)) == 0) {
    if (piece.stored.size() > bytes_max) throw FatbinError("entry of a fatbin is too large");
    return std::string(piece.stored);
  }
  if (piece.compressed_bytes > piece.stored.size()) throw FatbinError("compressed entry of a fatbin is cut off");
  const std::string_view stored = piece.stored.substr(0, piece.compressed_bytes);
  if (piece.bytes > bytes_max || piece.bytes > std::numeric_limits<int>::max() ||
      piece.bytes / ratio_max > stored.size() || stored.size() > std::numeric_limits<int>::max())
    throw FatbinError("compressed entry of a fatbin cannot be unpacked");
  std::string code(piece.bytes, '\0');
  if (!((piece.flags & flag_zstd) != 0 ? unpack_zstd(stored, code) : unpack_lz4(stored, code)))
    throw FatbinError("compressed entry of a fatbin cannot be unpacked");
  return code;
}

}  // namespace fargpu
