#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "exec/warp.h"

namespace fargpu::softgpu {

/// The arguments of a printf in a kernel: laid out in memory as members of a struct, after the
/// default argument promotions.
class PrintArguments {
 public:
  PrintArguments(Warp& warp, const Instruction& at, int lane, uint64_t address)
      : warp_(warp), at_(at), lane_(lane), address_(address) {}

  uint64_t next(uint32_t bytes);
  std::string string_at(uint64_t address);
  bool has_failed() const { return has_failed_; }

 private:
  Warp& warp_;
  const Instruction& at_;
  int lane_;
  uint64_t address_;
  bool has_failed_ = false;
};

/// Formats as C's printf does and returns the number of arguments used.
int format_print(std::string_view format, PrintArguments& arguments, std::string& text);

}  // namespace fargpu::softgpu
