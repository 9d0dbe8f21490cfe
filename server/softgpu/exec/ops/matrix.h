#pragma once

#include <cstdint>
#include <vector>

#include "exec/instruction.h"

// Matrix instructions (PTX ISA 9.7.14: wmma, mma.sync, ldmatrix, stmatrix, movmatrix). All lanes of
// a warp execute them together. Operands and the form are in MoreOperands.

namespace fargpu::softgpu::ops {

/// What the elements of a matrix are.
enum class Element : uint8_t { f16, bf16, tf32, f32, f64, s8, u8, s32 };
uint32_t bits_of(Element element);

/// d = a * b + c, of m x k and k x n matrices.
struct MultiplyForm {
  uint8_t m = 16, n = 8, k = 16;
  Element a = Element::f16, b = Element::f16, c = Element::f32, d = Element::f32;
  uint8_t a_registers = 4, b_registers = 2, c_registers = 4, d_registers = 4;
  bool saturate = false;     // integers
  bool is_fragment = false;  // wmma: matrices are spread over lanes as load_fragment does

  /// Where the elements of each matrix are, row by row: 32 times the number among the elements that
  /// a lane holds, plus the lane; empty for fragments. To be filled in by find_places.
  std::vector<uint16_t> a_places, b_places, c_places, d_places;
};
void find_places(MultiplyForm& form);
/// Operands: registers of d, a, b, c.
Handler multiply_matrices();

/// A matrix in memory for wmma. How it is spread over the lanes is nobody else's business.
struct FragmentForm {
  uint8_t rows = 16, columns = 16;
  Element element = Element::f16;
  bool is_row_major = true;
  uint8_t register_count = 8;
};
/// Operands: registers, address (generic), stride in elements.
Handler load_fragment();
/// Operands: address (generic), stride in elements, registers.
Handler store_fragment();

struct TileForm {
  uint8_t count = 1;  // 8 x 8 matrices of 16-bit elements
  bool is_transposed = false;
};
/// ldmatrix. Operands: registers, address (generic).
Handler load_tiles();
/// stmatrix. Operands: address (generic), registers.
Handler store_tiles();
/// movmatrix. Operands: result, source.
Handler transpose_tile();

}  // namespace fargpu::softgpu::ops
