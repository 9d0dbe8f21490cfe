#pragma once

#include "exec/float_format.h"
#include "exec/instruction.h"
#include "ptx/type.h"

// Data movement within registers and conversion (PTX ISA 9.7.9: mov, cvt).

namespace fargpu::softgpu::ops {

using ptx::Type;

/// Copies values of 1, 2, 4, 8 or 16 bytes.
Handler copy(uint32_t bytes);
/// Copies the low bytes of wider values, or extends narrower ones with zeros or the sign.
Handler resize(uint32_t to_bytes, uint32_t from_bytes, bool is_signed);

/// mov with vectors. Operands: result, then `count` parts, lowest first.
Handler pack(uint32_t to_bytes, uint32_t count);
/// Operands: `count` parts, lowest first, then the source.
Handler unpack(uint32_t from_bytes, uint32_t count);

/// How a conversion rounds: for integer results the .rni family, else the .rn family.
struct ConvertForm {
  Type to = Type::none;
  Type from = Type::none;
  RoundingMode rounding = RoundingMode::nearest_even;
  bool round_to_integer = false;  // .rni and its like
  bool flush = false;             // .ftz
  bool saturate = false;          // .sat
  bool saturate_finite = false;   // .satfinite
  bool relu = false;
};
/// What Instruction::immediate must hold for the handlers below.
int64_t convert_flags(const ConvertForm& form);
/// cvt of one value. Operands: result, source.
Handler convert(const ConvertForm& form);
/// cvt of two values into a pair. Operands: result, upper source, lower source.
Handler convert_pair(const ConvertForm& form);
/// cvt of a pair of 8-bit numbers to f16x2, and back.
Handler convert_short_pair(const ConvertForm& form);

}  // namespace fargpu::softgpu::ops
