#pragma once

#include <stdexcept>
#include <string>

namespace fargpu::softgpu::ptx {

/// The text is not valid PTX. The line counts from one.
class SyntaxError : public std::runtime_error {
 public:
  SyntaxError(uint32_t line, const std::string& reason)
      : std::runtime_error("line " + std::to_string(line) + ": " + reason), line_(line) {}
  uint32_t line() const { return line_; }

 private:
  uint32_t line_;
};

/// The text is of a version of PTX that came later.
class UnsupportedVersion : public SyntaxError {
 public:
  using SyntaxError::SyntaxError;
};

}  // namespace fargpu::softgpu::ptx
