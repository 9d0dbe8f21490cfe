#include "captured_output.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "protocol/errors.h"

namespace fargpu::server {

CapturedOutput::CapturedOutput(int descriptor) {
  memory_ = ::memfd_create("printed", MFD_CLOEXEC);
  if (memory_ < 0) throw SystemError(std::string("memfd_create: ") + std::strerror(errno));
  // Appending, because the writers and this object share no position.
  if (::fcntl(memory_, F_SETFL, O_APPEND) != 0 || ::dup2(memory_, descriptor) < 0) {
    const int error = errno;
    ::close(memory_);
    throw SystemError("taking over descriptor " + std::to_string(descriptor) + ": " + std::strerror(error));
  }
}

CapturedOutput::~CapturedOutput() { ::close(memory_); }

// CUDA Binary Utilities and the PTX ISA: calls of printf are calls of vprintf, which code names, and those of assert of
// __assertfail.
bool may_print(std::span<const std::byte> image) {
  constexpr std::array<std::string_view, 2> names{"vprintf", "__assertfail"};
  constexpr std::array<unsigned char, 4> container{0x50, 0xed, 0x55, 0xba};
  if (image.size() >= container.size() && std::memcmp(image.data(), container.data(), container.size()) == 0)
    return true;
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return ::memmem(image.data(), image.size(), name.data(), name.size()) != nullptr;
  });
}

void CapturedOutput::collect(const std::function<void(std::span<const std::byte>)>& hand_on) {
  struct stat status {};
  if (::fstat(memory_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) == taken_) return;
  std::array<std::byte, piece_bytes> piece;
  while (true) {
    const ssize_t got = ::pread(memory_, piece.data(), piece.size(), static_cast<off_t>(taken_));
    if (got <= 0) break;
    hand_on(std::span(piece).first(static_cast<std::size_t>(got)));
    taken_ += static_cast<std::uint64_t>(got);
  }
  // Truncating could lose what is written meanwhile; giving back the memory of what was taken cannot.
  ::fallocate(memory_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(taken_));
}

}  // namespace fargpu::server
