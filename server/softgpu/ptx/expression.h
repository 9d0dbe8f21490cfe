#pragma once

#include <cstdint>

#include "ptx/lexer.h"

namespace fargpu::softgpu::ptx {

/// Value of a constant expression (PTX ISA 4.5): an integer, or a floating-point number.
struct Constant {
  enum class Kind : uint8_t { integer, float32, float64 };
  Kind kind = Kind::integer;
  bool is_unsigned = false;
  uint64_t bits = 0;
};

/// Parses the longest constant expression at the lexer's position.
Constant parse_constant(Lexer& lexer);

/// True if a constant expression can start at the current token.
bool starts_constant(const Lexer& lexer);

}  // namespace fargpu::softgpu::ptx
