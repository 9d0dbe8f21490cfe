#include "whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fargpu::site {

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(descriptor) == 0 || errno == EINVAL;  // a device has no disk
}

std::string why_unwritten(int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return std::string("(") + std::strerror(error) + ")" + (full ? "; free space on that disk, then try again" : "");
}

}  // namespace fargpu::site
