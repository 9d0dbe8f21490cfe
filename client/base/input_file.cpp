#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/limits.h"

namespace fargpu::client {

std::optional<InputFile> InputFile::read(const char* path) {
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  InputFile file;
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<std::uint64_t>(status.st_size) <= limits::image_bytes_max) {
    const auto size = static_cast<std::size_t>(status.st_size);
    file.bytes_.resize(size + 1);
    std::size_t have = 0;
    while (have < size) {
      const ssize_t got = ::read(descriptor, file.bytes_.data() + have, size - have);
      if (got <= 0) break;
      have += static_cast<std::size_t>(got);
    }
    file.bytes_.resize(have + 1);
    file.bytes_.back() = std::byte{0};
  }
  ::close(descriptor);
  return file;
}

}  // namespace fargpu::client
