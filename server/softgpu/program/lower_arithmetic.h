#pragma once

#include "exec/ops/float.h"
#include "program/lowering.h"

// Opcodes such as add take integers and floating-point numbers. These translate the latter; false
// if the instruction at hand is not theirs.

namespace fargpu::softgpu::program {

bool lower_float_binary(Lowering& l, Handler (*choose)(const ops::FloatForm&));
bool lower_float_ternary(Lowering& l);
bool lower_float_unary(Lowering& l, Handler (*choose)(ptx::Type, bool flush));
bool lower_float_divide(Lowering& l);
bool lower_float_min_max(Lowering& l, bool is_max);

}  // namespace fargpu::softgpu::program
