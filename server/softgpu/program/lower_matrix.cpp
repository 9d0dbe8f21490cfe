#include <algorithm>
#include <charconv>
#include <optional>

#include "exec/ops/matrix.h"
#include "program/lower_address.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ops::Element;
using ptx::OperandKind;
using ptx::Space;
using ptx::Type;

struct Shape {
  int m = 0, n = 0, k = 0;
};

/// m16n8k16
Shape take_shape(Lowering& l) {
  for (std::string_view modifier : l.instruction().modifiers) {
    size_t n = modifier.find('n'), k = modifier.find('k');
    if (modifier.front() != 'm' || n == std::string_view::npos || k == std::string_view::npos || n > k) continue;
    Shape shape;
    auto number = [&](size_t begin, size_t end, int& out) {
      auto [stop, error] = std::from_chars(modifier.data() + begin, modifier.data() + end, out);
      return error == std::errc() && stop == modifier.data() + end;
    };
    if (!number(1, n, shape.m) || !number(n + 1, k, shape.n) || !number(k + 1, modifier.size(), shape.k)) continue;
    l.take(modifier);
    return shape;
  }
  l.unsupported("matrix shape");
}

Element take_element(Lowering& l) {
  switch (l.take_type()) {
    case Type::f16: return Element::f16;
    case Type::bf16: return Element::bf16;
    case Type::tf32: return Element::tf32;
    case Type::f32: return Element::f32;
    case Type::f64: return Element::f64;
    case Type::s8: return Element::s8;
    case Type::u8: return Element::u8;
    case Type::s32: return Element::s32;
    default: l.unsupported("matrix elements");
  }
}

Type register_type(Element element) { return element == Element::f64 ? Type::b64 : Type::b32; }

std::vector<Value> registers(Lowering& l, const ptx::Operand& operand, Element element, size_t count,
                             bool is_destination) {
  std::vector<const ptx::Operand*> elements;
  if (operand.kind == OperandKind::vector)
    for (const ptx::Operand& one : operand.elements) elements.push_back(&one);
  else elements.push_back(&operand);
  if (elements.size() != count)
    l.fail("matrix in " + std::to_string(elements.size()) + " registers where " + std::to_string(count) +
           " are needed");
  std::vector<Value> values;
  for (const ptx::Operand* one : elements)
    values.push_back(is_destination ? l.destination(*one, register_type(element))
                                    : l.source(*one, register_type(element)));
  return values;
}

size_t registers_for(int rows, int columns, Element element) {
  uint32_t bits = ops::bits_of(element);
  uint32_t register_bits = std::max(32u, bits);
  return static_cast<size_t>(rows * columns) * bits / (32 * register_bits);
}

void emit_multiply(Lowering& l, std::shared_ptr<ops::MultiplyForm> form) {
  l.expect_operands(4);
  std::vector<Value> definitions = registers(l, l.operand(0), form->d, form->d_registers, true);
  std::vector<Value> uses = registers(l, l.operand(1), form->a, form->a_registers, false);
  std::vector<Value> b = registers(l, l.operand(2), form->b, form->b_registers, false);
  std::vector<Value> c = registers(l, l.operand(3), form->c, form->c_registers, false);
  uses.insert(uses.end(), b.begin(), b.end());
  uses.insert(uses.end(), c.begin(), c.end());
  ops::find_places(*form);
  l.emit_with_details(ops::multiply_matrices(), definitions, uses, std::move(form));
}

void set_shape(ops::MultiplyForm& form, const Shape& shape) {
  form.m = static_cast<uint8_t>(shape.m);
  form.n = static_cast<uint8_t>(shape.n);
  form.k = static_cast<uint8_t>(shape.k);
}

bool is_integer(Element element) { return element == Element::s8 || element == Element::u8 || element == Element::s32; }

/// Elements that can be multiplied with one another and added up to the result.
bool fit_together(const ops::MultiplyForm& form) {
  if (form.d == Element::f64) return form.a == Element::f64 && form.b == Element::f64 && form.c == Element::f64;
  if (form.d == Element::s32) return is_integer(form.a) && is_integer(form.b) && form.c == Element::s32;
  bool is_float_result = form.d == Element::f32 || form.d == Element::f16;
  return is_float_result && form.a == form.b && !is_integer(form.a) && form.a != Element::f64;
}

// ---- mma -----------------------------------------------------------------------------------------------------------

void lower_mma(Lowering& l) {
  if (!l.take("sync")) l.fail("expected .sync");
  l.take("aligned");
  if (l.take("sp") || l.take("sp::ordered_metadata")) l.unsupported("sparse matrices");
  Shape shape = take_shape(l);
  if (!l.take("row") || !l.take("col")) l.unsupported("layout");
  auto form = std::make_shared<ops::MultiplyForm>();
  form->saturate = l.take("satfinite");
  l.take("rn");
  form->d = take_element(l);
  form->a = take_element(l);
  form->b = take_element(l);
  form->c = take_element(l);
  set_shape(*form, shape);
  // The fragments of all these shapes follow one rule; others do not exist or differ.
  bool is_known = shape.n == 8 && ((shape.m == 16 && form->d != Element::f64) ||
                                   (shape.m == 8 && form->d == Element::s32) || form->d == Element::f64);
  uint32_t bits = ops::bits_of(form->a);
  int least_k = 4 * static_cast<int>(std::max(32u, bits) / bits);
  is_known &= shape.k % least_k == 0 && shape.k <= 32 && (shape.m == 16 || shape.m == 8);
  if (!is_known || !fit_together(*form)) l.unsupported();
  form->a_registers = static_cast<uint8_t>(registers_for(shape.m, shape.k, form->a));
  form->b_registers = static_cast<uint8_t>(registers_for(shape.k, shape.n, form->b));
  form->c_registers = static_cast<uint8_t>(registers_for(shape.m, shape.n, form->c));
  form->d_registers = static_cast<uint8_t>(registers_for(shape.m, shape.n, form->d));
  emit_multiply(l, std::move(form));
}

// ---- wmma ----------------------------------------------------------------------------------------------------------

/// Registers of a fragment. Those of f16 factors hold each element twice.
uint8_t fragment_registers(int rows, int columns, Element element, bool is_factor) {
  size_t count = registers_for(rows, columns, element);
  if (is_factor && element == Element::f16) count = 8;
  return static_cast<uint8_t>(count);
}

void require_fragment_shape(Lowering& l, const Shape& shape) {
  int area = shape.m * shape.n;
  bool is_known = (area == 256 && (shape.k == 16 || shape.k == 8)) || (shape.m == 8 && shape.n == 8 && shape.k == 4);
  if (!is_known || shape.m > 32 || shape.n > 32) l.unsupported("matrix shape");
}

void lower_wmma_multiply(Lowering& l) {
  l.ignore({"sync", "aligned", "rn"});
  // How the factors lay in memory does not matter any more.
  for (int i = 0; i < 2; ++i)
    if (l.take_one_of({"row", "col"}) < 0) l.fail("expected layouts");
  Shape shape = take_shape(l);
  require_fragment_shape(l, shape);
  auto form = std::make_shared<ops::MultiplyForm>();
  form->is_fragment = true;
  form->saturate = l.take("satfinite");
  set_shape(*form, shape);
  Element first = take_element(l), second = take_element(l);
  // With two types the factors are f16.
  bool has_four_types = !l.next_modifier().empty();
  form->d = first;
  if (has_four_types) {
    form->a = second;
    form->b = take_element(l);
    form->c = take_element(l);
  } else {
    form->c = second;
  }
  if (!fit_together(*form)) l.unsupported();
  form->a_registers = fragment_registers(shape.m, shape.k, form->a, true);
  form->b_registers = fragment_registers(shape.k, shape.n, form->b, true);
  form->c_registers = fragment_registers(shape.m, shape.n, form->c, false);
  form->d_registers = fragment_registers(shape.m, shape.n, form->d, false);
  emit_multiply(l, std::move(form));
}

struct FragmentOperation {
  std::shared_ptr<ops::FragmentForm> form;
  Space space;
};

FragmentOperation take_fragment(Lowering& l, int role) {
  l.ignore({"sync", "aligned"});
  auto form = std::make_shared<ops::FragmentForm>();
  int layout = l.take_one_of({"row", "col"});
  if (layout < 0) l.fail("expected a layout");
  form->is_row_major = layout == 0;
  Shape shape = take_shape(l);
  require_fragment_shape(l, shape);
  form->rows = static_cast<uint8_t>(role == 1 ? shape.k : shape.m);
  form->columns = static_cast<uint8_t>(role == 0 ? shape.k : shape.n);
  Space space = take_space(l);
  form->element = take_element(l);
  form->register_count = fragment_registers(form->rows, form->columns, form->element, role != 2);
  return {std::move(form), space};
}

Value stride_of(Lowering& l, const ops::FragmentForm& form) {
  if (l.operand_count() > 2) return l.source(2, Type::u32);
  return l.constant(form.is_row_major ? form.columns : form.rows, 4);
}

void lower_wmma(Lowering& l) {
  if (l.take("mma")) return lower_wmma_multiply(l);
  bool is_load = l.take("load");
  if (!is_load && !l.take("store")) l.unsupported();
  int role = is_load ? l.take_one_of({"a", "b", "c"}) : (l.take("d") ? 2 : -1);
  if (role < 0) l.fail("expected a matrix");
  FragmentOperation fragment = take_fragment(l, role);
  l.expect_operands(2, 3);
  Value address = generic_address(l, l.operand(is_load ? 1 : 0), fragment.space);
  Value stride = stride_of(l, *fragment.form);
  std::vector<Value> values =
      registers(l, l.operand(is_load ? 0 : 1), fragment.form->element, fragment.form->register_count, is_load);
  if (is_load) {
    l.emit_with_details(ops::load_fragment(), values, {address, stride}, std::move(fragment.form));
  } else {
    values.insert(values.begin(), {address, stride});
    l.emit_with_details(ops::store_fragment(), {}, values, std::move(fragment.form));
  }
}

// ---- tiles ---------------------------------------------------------------------------------------------------------

std::shared_ptr<ops::TileForm> take_tiles(Lowering& l) {
  if (!l.take("sync")) l.fail("expected .sync");
  l.take("aligned");
  if (!l.take("m8n8")) l.unsupported("matrix shape");
  int count = l.take_one_of({"x1", "x2", "x4"});
  if (count < 0) l.fail("expected a number of matrices");
  auto form = std::make_shared<ops::TileForm>();
  form->count = static_cast<uint8_t>(1 << count);
  form->is_transposed = l.take("trans");
  return form;
}

void lower_ldmatrix(Lowering& l) {
  auto form = take_tiles(l);
  Space space = take_space(l);
  if (l.take_type() != Type::b16) l.unsupported();
  l.expect_operands(2);
  std::vector<Value> values = registers(l, l.operand(0), Element::f32, form->count, true);
  Value address = generic_address(l, l.operand(1), space);
  l.emit_with_details(ops::load_tiles(), values, {address}, std::move(form));
}

void lower_stmatrix(Lowering& l) {
  auto form = take_tiles(l);
  Space space = take_space(l);
  if (l.take_type() != Type::b16) l.unsupported();
  l.expect_operands(2);
  std::vector<Value> values = registers(l, l.operand(1), Element::f32, form->count, false);
  values.insert(values.begin(), generic_address(l, l.operand(0), space));
  l.emit_with_details(ops::store_tiles(), {}, values, std::move(form));
}

void lower_movmatrix(Lowering& l) {
  l.ignore({"sync", "aligned", "m8n8"});
  if (!l.take("trans")) l.fail("expected .trans");
  if (l.take_type() != Type::b16) l.unsupported();
  l.expect_operands(2);
  l.emit_with_details(ops::transpose_tile(), {l.destination(0, Type::b32)}, {l.source(1, Type::b32)},
                      std::make_shared<ops::TileForm>());
}

}  // namespace

void add_matrix_lowering(LoweringTable& table) {
  table["mma"] = &lower_mma;
  table["wmma"] = &lower_wmma;
  table["ldmatrix"] = &lower_ldmatrix;
  table["stmatrix"] = &lower_stmatrix;
  table["movmatrix"] = &lower_movmatrix;
}

}  // namespace fargpu::softgpu::program
