#pragma once
// Text that another machine sent, before it meets a terminal or a log: one line, of bounded length, nothing that steers a terminal.

#include <string>
#include <string_view>

namespace fargpu {

inline std::string printable(std::string_view text, std::size_t bytes_max = 128) {
  std::string result(text.substr(0, bytes_max));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto byte = static_cast<unsigned char>(result[i]);
    const auto next = static_cast<unsigned char>(i + 1 < result.size() ? result[i + 1] : 0);
    if (byte < 0x20 || byte == 0x7F) result[i] = '?';
    else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) result[i] = result[i + 1] = '?';  // control characters of two bytes
  }
  return result;
}

}  // namespace fargpu
