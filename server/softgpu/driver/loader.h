#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "exec/program.h"
#include "image/image.h"

namespace fargpu::softgpu {

/// The options of a load or link that take results back.
class JitOptions {
 public:
  /// Throws INVALID_VALUE. The values stay the program's, and are written at the end.
  JitOptions(unsigned count, const CUjit_option* options, void** values);

  /// Writes an error message to the program's buffer, cut to its size.
  void report_error(const std::string& message);
  /// Says how long it took, and that the buffers are as empty as they are.
  void finish(double milliseconds);

 private:
  struct Buffer {
    char* text = nullptr;
    size_t bytes = 0;
    void** size_value = nullptr;
    size_t used = 0;
  };
  Buffer info_, error_;
  void** wall_time_ = nullptr;
};

/// Parses and builds; throws the driver's error, with the reason in the log buffer and, where the
/// program has none, on stderr.
std::shared_ptr<const Program> load_program(const void* data, JitOptions& options);
std::shared_ptr<const Program> load_program(const Image& image, JitOptions& options);
/// The contents of a file; throws FILE_NOT_FOUND, or INVALID_IMAGE for an empty one.
std::string read_image_file(const char* path);
/// For linking: the texts within an input; throws as load_program does.
std::vector<std::string> texts_of(const void* data, size_t bytes, JitOptions& options);

}  // namespace fargpu::softgpu
