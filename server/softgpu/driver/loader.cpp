#include "driver/loader.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "common/log.h"
#include "driver/failure.h"
#include "program/build.h"
#include "ptx/error.h"
#include "ptx/parser.h"

namespace fargpu::softgpu {
namespace {

/// Runs a step of loading and turns what it throws into the driver's errors.
template <class Step>
auto reporting(JitOptions& options, Step step) {
  auto fail = [&](CUresult code, const std::string& message) {
    options.report_error(message);
    log_once(message);  // a library may try hundreds of images
    throw Failure(code);
  };
  try {
    return step();
  } catch (const ImageError& error) {
    fail(error.kind() == ImageError::Kind::no_binary ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_IMAGE,
         error.what());
  } catch (const ptx::UnsupportedVersion& error) {
    fail(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, std::string("PTX ") + error.what());
  } catch (const ptx::SyntaxError& error) {
    fail(CUDA_ERROR_INVALID_PTX, std::string("PTX ") + error.what());
  } catch (const program::LinkError& error) {
    fail(CUDA_ERROR_INVALID_PTX, std::string("link error: ") + error.what());
  }
  throw Failure(CUDA_ERROR_UNKNOWN);
}

}  // namespace

JitOptions::JitOptions(unsigned count, const CUjit_option* options, void** values) {
  require(count == 0 || (options != nullptr && values != nullptr));
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER: info_.text = static_cast<char*>(values[i]); break;
      case CU_JIT_ERROR_LOG_BUFFER: error_.text = static_cast<char*>(values[i]); break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        info_.bytes = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values[i]));
        info_.size_value = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        error_.bytes = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values[i]));
        error_.size_value = &values[i];
        break;
      case CU_JIT_WALL_TIME: wall_time_ = &values[i]; break;
      default: require(options[i] >= 0 && options[i] < CU_JIT_NUM_OPTIONS);
    }
  }
  for (Buffer* buffer : {&info_, &error_})
    if (buffer->text != nullptr && buffer->bytes != 0) buffer->text[0] = '\0';
}

void JitOptions::report_error(const std::string& message) {
  if (error_.text == nullptr || error_.bytes == 0) return;
  error_.used = std::min(message.size(), error_.bytes - 1);
  std::memcpy(error_.text, message.data(), error_.used);
  error_.text[error_.used] = '\0';
  if (error_.size_value != nullptr) *error_.size_value = reinterpret_cast<void*>(error_.used);
}

void JitOptions::finish(double milliseconds) {
  for (Buffer* buffer : {&info_, &error_})
    if (buffer->size_value != nullptr) *buffer->size_value = reinterpret_cast<void*>(buffer->used);
  if (wall_time_ != nullptr) {
    auto bits = std::bit_cast<uint32_t>(static_cast<float>(milliseconds));
    *wall_time_ = reinterpret_cast<void*>(static_cast<uintptr_t>(bits));
  }
}

std::shared_ptr<const Program> load_program(const Image& image, JitOptions& options) {
  auto start = std::chrono::steady_clock::now();
  auto program = reporting(options, [&] {
    std::vector<std::unique_ptr<ptx::Module>> modules;
    std::vector<const ptx::Module*> pointers;
    for (const std::string& text : image.texts) {
      modules.push_back(ptx::parse(text));
      pointers.push_back(modules.back().get());
    }
    return program::build(pointers);
  });
  std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  options.finish(elapsed.count());
  return program;
}

std::shared_ptr<const Program> load_program(const void* data, JitOptions& options) {
  require(data != nullptr);
  Image image = reporting(options, [&] { return read_image(data); });
  return load_program(image, options);
}

std::string read_image_file(const char* path) {
  require(path != nullptr);
  std::ifstream file(path, std::ios::binary);
  require(file.good(), CUDA_ERROR_FILE_NOT_FOUND);
  std::string contents{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  require(!contents.empty(), CUDA_ERROR_INVALID_IMAGE);
  return contents;
}

std::vector<std::string> texts_of(const void* data, size_t bytes, JitOptions& options) {
  require(data != nullptr && bytes != 0);
  return reporting(options, [&] { return read_image(data, bytes).texts; });
}

}  // namespace fargpu::softgpu
