#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace fargpu::softgpu {

/// Why an image cannot be loaded.
class ImageError : public std::runtime_error {
 public:
  enum class Kind : uint8_t { invalid_image, no_binary };
  ImageError(Kind kind, const std::string& reason) : std::runtime_error(reason), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// The PTX texts of one image: one that a program was compiled to, or several that are to be
/// linked.
struct Image {
  std::vector<std::string> texts;
};

/// Finds the PTX in what a program passes for loading: PTX text, a fatbin container, or the
/// wrapper around containers. Of several texts of a container the newest that the device can run
/// is taken. The memory is the program's and says itself how long it is; everything in it is
/// checked before it is followed.
Image read_image(const void* data);

/// Reads an image of a known size, for linking.
Image read_image(const void* data, uint64_t bytes);

/// A container with PTX texts to be linked; what linking gives to the program.
std::string make_linked_image(const std::vector<std::string>& texts);

}  // namespace fargpu::softgpu
