#pragma once
// GPU code in files of the client's machine.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fargpu::client {

/// The bytes of a file, with a null behind them, as PTX wants it. Nothing if there is no such file; no bytes if it is
/// empty, larger than limits::image_bytes_max or no ordinary file.
class InputFile {
 public:
  static std::optional<InputFile> read(const char* path);

  std::span<const std::byte> bytes() const { return {bytes_.data(), bytes_.size() - 1}; }
  std::span<const std::byte> with_null() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(1);
};

}  // namespace fargpu::client
