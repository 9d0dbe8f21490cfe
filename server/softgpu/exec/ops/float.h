#pragma once

#include "exec/instruction.h"
#include "exec/ops/elementwise.h"
#include "ptx/type.h"

// Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5). Each function gives the handler of one
// instruction form, or null if there is no such form.

namespace fargpu::softgpu::ops {

using ptx::Type;

/// Modifiers of a floating-point instruction.
struct FloatForm {
  Type type = Type::f32;
  Rounding rounding = Rounding::nearest_even;
  bool flush = false;     // .ftz
  bool saturate = false;  // .sat
  bool relu = false;
};

Handler float_add(const FloatForm& form);
Handler float_subtract(const FloatForm& form);
Handler float_multiply(const FloatForm& form);
Handler float_fma(const FloatForm& form);
Handler float_divide(const FloatForm& form);
Handler float_square_root(const FloatForm& form);
Handler float_reciprocal(const FloatForm& form);

struct MinMaxForm {
  Type type = Type::f32;
  bool is_max = false;
  bool flush = false;
  bool propagate_nan = false;  // .NaN
  bool sign_xor_abs = false;   // .xorsign.abs
};
Handler float_min_max(const MinMaxForm& form);

Handler float_negate(Type type, bool flush);
Handler float_absolute(Type type, bool flush);
Handler copy_sign(Type type);
enum class FloatClass { finite, infinite, number, not_a_number, normal, subnormal };
Handler test_property(FloatClass property, Type type);

/// Instructions with .approx. Results are the correctly rounded ones or close to them, well within
/// the errors that the PTX ISA allows.
enum class Approximation { reciprocal, reciprocal_sqrt, square_root, divide, sine, cosine, log2, exp2, tanh };
Handler approximate(Approximation function, Type type, bool flush);

}  // namespace fargpu::softgpu::ops
