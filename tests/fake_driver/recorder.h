#pragma once
// What the fake driver remembers of each call, and what tests tell it to answer.

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace fargpu::fake {

/// One call: made on entry, asked for a scripted result.
class Recorded {
 public:
  template <class... Args>
  explicit Recorded(const char* name, const Args&... args) {
    enter(name, {word(args)...});
  }
  bool scripted() const { return scripted_; }
  CUresult result() const { return result_; }

 private:
  template <class T>
  static std::uint64_t word(const T& value) {
    std::uint64_t out = 0;
    std::memcpy(&out, &value, std::min(sizeof(value), sizeof(out)));
    return out;
  }
  void enter(const char* name, std::vector<std::uint64_t> arguments);

  bool scripted_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace fargpu::fake
