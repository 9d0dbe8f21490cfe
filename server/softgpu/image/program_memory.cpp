#include "image/program_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fargpu::softgpu {
namespace {

constexpr uint64_t page_bytes = 4096;
constexpr uint64_t copy_bytes_max = uint64_t{2} << 30;

/// True if every page of the range is mapped.
bool is_mapped(uint64_t begin, uint64_t bytes) {
  unsigned char resident;
  for (uint64_t page = begin & ~(page_bytes - 1); page < begin + bytes; page += page_bytes)
    if (mincore(reinterpret_cast<void*>(page), 1, &resident) != 0) return false;
  return true;
}

/// The kernel does the copying, and refuses what cannot be read. Where it may not be asked, at
/// least nothing unmapped is touched.
bool copy(uint64_t from, char* to, uint64_t bytes) {
  iovec local = {to, bytes}, remote = {reinterpret_cast<void*>(from), bytes};
  ssize_t done = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  if (done >= 0) return static_cast<uint64_t>(done) == bytes;
  if (errno == EFAULT || !is_mapped(from, bytes)) return false;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return true;
}

}  // namespace

std::optional<std::string> copy_program_memory(const void* address, uint64_t bytes) {
  if (bytes > copy_bytes_max) return std::nullopt;
  // In pieces: a size that is not true should not cost its memory.
  constexpr uint64_t piece_max = uint64_t{1} << 20;
  std::string result;
  auto from = reinterpret_cast<uint64_t>(address);
  while (result.size() < bytes) {
    uint64_t done = result.size();
    uint64_t piece = std::min(piece_max, bytes - done);
    result.resize(done + piece);
    if (!copy(from + done, result.data() + done, piece)) return std::nullopt;
  }
  return result;
}

std::optional<std::string> copy_program_text(const void* address) {
  std::string result;
  auto from = reinterpret_cast<uint64_t>(address);
  while (result.size() < copy_bytes_max) {
    // Never across the end of a page: the text may end just before it.
    uint64_t done = result.size();
    uint64_t piece = page_bytes - (from + done) % page_bytes;
    result.resize(done + piece);
    if (!copy(from + done, result.data() + done, piece)) return std::nullopt;
    if (const void* end = std::memchr(result.data() + done, '\0', piece)) {
      result.resize(static_cast<size_t>(static_cast<const char*>(end) - result.data()));
      return result;
    }
  }
  return std::nullopt;
}

}  // namespace fargpu::softgpu
