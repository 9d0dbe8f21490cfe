#include <algorithm>

#include "exec/ops/texture.h"
#include "program/lowering.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::OperandKind;
using ptx::Type;

/// How coordinates are given: their number, and whether a layer stands before them.
struct Geometry {
  uint8_t dimensions = 0;
  bool is_layered = false;
};

Geometry take_geometry(Lowering& l) {
  switch (l.take_one_of({"1d", "2d", "3d", "a1d", "a2d", "cube", "acube"})) {
    case 0: return {1, false};
    case 1: return {2, false};
    case 2: return {3, false};
    case 3: return {1, true};
    case 4: return {2, true};
    case 5: return {3, false};
    case 6: return {3, true};
    default: l.unsupported();
  }
}

/// The object's handle: in a register, as textures and surfaces of the bindless kind are.
Value handle_of(Lowering& l, const ptx::Operand& address) {
  if (address.kind != OperandKind::address || address.elements.empty())
    l.fail("operand must be a texture or surface with coordinates");
  if (address.elements[0].kind != OperandKind::reg) l.unsupported("texture references");
  return l.source(address.elements[0], Type::u64);
}

std::vector<const ptx::Operand*> elements_of(const ptx::Operand& operand) {
  std::vector<const ptx::Operand*> elements;
  if (operand.kind == OperandKind::vector)
    for (const ptx::Operand& element : operand.elements) elements.push_back(&element);
  else elements.push_back(&operand);
  return elements;
}

/// Layer and coordinates behind the handle; vectors may be padded to four elements.
void append_coordinates(Lowering& l, const ptx::Operand& address, const Geometry& geometry, Type type,
                        std::vector<Value>& uses) {
  if (address.elements.size() != 2) l.unsupported("separate samplers");
  auto coordinates = elements_of(address.elements[1]);
  size_t needed = geometry.dimensions + geometry.is_layered;
  if (coordinates.size() < needed) l.fail("too few coordinates");
  for (size_t i = 0; i < needed; ++i)
    uses.push_back(l.source(*coordinates[i], geometry.is_layered && i == 0 ? Type::b32 : type));
}

void lower_tex(Lowering& l) {
  auto form = std::make_shared<ops::TextureForm>();
  bool is_base = l.take("base");
  if (l.take("level")) form->mode = ops::TextureMode::level;
  if (l.take("grad")) form->mode = ops::TextureMode::gradient;
  if (is_base && form->mode != ops::TextureMode::plain) l.fail("conflicting modes");
  Geometry geometry = take_geometry(l);
  form->dimensions = geometry.dimensions;
  form->is_layered = geometry.is_layered;
  int width = l.take_one_of({"v4", "v2"});
  Type type = l.take_type(), coordinate_type = l.take_type();
  bool is_packed_half = type == Type::f16x2;
  if (is_packed_half || width < 0) l.unsupported();
  form->gives_half = type == Type::f16;
  form->has_integer_coordinates = coordinate_type == Type::s32;

  auto results = elements_of(l.operand(0));
  if (results.size() != (width == 0 ? 4u : 2u)) l.fail("number of results");
  form->result_count = static_cast<uint8_t>(results.size());
  std::vector<Value> definitions, uses;
  for (const ptx::Operand* result : results) definitions.push_back(l.destination(*result, type));
  uses.push_back(handle_of(l, l.operand(1)));
  append_coordinates(l, l.operand(1), geometry, coordinate_type, uses);
  if (form->mode == ops::TextureMode::level) {
    l.expect_operands(3);
    uses.push_back(l.source(2, coordinate_type));
  } else if (form->mode == ops::TextureMode::gradient) {
    l.expect_operands(4);
    for (size_t i : {2, 3}) {
      auto gradient = elements_of(l.operand(i));
      if (gradient.size() < geometry.dimensions) l.fail("too few gradients");
      for (size_t d = 0; d < geometry.dimensions; ++d) uses.push_back(l.source(*gradient[d], Type::f32));
    }
  } else {
    l.expect_operands(2);
  }
  l.emit_with_details(ops::texture(), definitions, uses, std::move(form));
}

void lower_tld4(Lowering& l) {
  auto form = std::make_shared<ops::TextureForm>();
  form->mode = ops::TextureMode::gather;
  int component = l.take_one_of({"r", "g", "b", "a"});
  if (component < 0) l.fail("expected a component");
  form->component = static_cast<uint8_t>(component);
  if (!l.take("2d") || !l.take("v4")) l.unsupported();
  Type type = l.take_type(), coordinate_type = l.take_type();
  if (coordinate_type != Type::f32) l.unsupported();
  l.expect_operands(2);
  std::vector<Value> definitions, uses;
  for (const ptx::Operand* result : elements_of(l.operand(0))) definitions.push_back(l.destination(*result, type));
  if (definitions.size() != 4) l.fail("number of results");
  uses.push_back(handle_of(l, l.operand(1)));
  append_coordinates(l, l.operand(1), {2, false}, coordinate_type, uses);
  l.emit_with_details(ops::texture(), definitions, uses, std::move(form));
}

// ---- surfaces ------------------------------------------------------------------------------------------------------

void lower_surface(Lowering& l, bool is_store) {
  auto form = std::make_shared<ops::SurfaceForm>();
  form->is_store = is_store;
  form->is_formatted = l.take("p");
  if (!form->is_formatted && !l.take("b")) l.fail("expected .b or .p");
  if (form->is_formatted && !is_store) l.unsupported();
  Geometry geometry = take_geometry(l);
  form->dimensions = geometry.dimensions;
  form->is_layered = geometry.is_layered;
  l.ignore({"ca", "cg", "cs", "cv", "wb", "wt"});
  int width = l.take_one_of({"v2", "v4"});
  form->count = static_cast<uint8_t>(width == 0 ? 2 : width == 1 ? 4 : 1);
  Type type = l.take_type();
  int bounds = l.take_one_of({"trap", "clamp", "zero"});
  if (bounds < 0) l.fail("expected a treatment of bounds");
  form->bounds = static_cast<ops::SurfaceBounds>(bounds);
  l.expect_operands(2);
  const ptx::Operand& address = l.operand(is_store ? 0 : 1);
  auto values = elements_of(l.operand(is_store ? 1 : 0));
  if (values.size() != form->count) l.fail("number of values");
  form->element_bytes = static_cast<uint8_t>(ptx::size_of(type));
  uint32_t register_bytes = form->element_bytes;
  for (const ptx::Operand* value : values) register_bytes = std::max(register_bytes, l.register_bytes(*value));
  form->register_bytes = static_cast<uint8_t>(register_bytes);
  Type register_type = register_bytes == 1   ? Type::b8
                       : register_bytes == 2 ? Type::b16
                       : register_bytes == 4 ? Type::b32
                                             : Type::b64;
  std::vector<Value> definitions, uses = {handle_of(l, address)};
  append_coordinates(l, address, geometry, Type::b32, uses);
  for (const ptx::Operand* value : values) {
    if (is_store) uses.push_back(l.source(*value, register_type));
    else definitions.push_back(l.destination(*value, register_type));
  }
  l.emit_with_details(ops::surface(), definitions, uses, std::move(form));
}

void lower_suld(Lowering& l) { lower_surface(l, false); }
void lower_sust(Lowering& l) { lower_surface(l, true); }

void lower_query(Lowering& l, bool is_surface) {
  int query = l.take_one_of({"width", "height", "depth", "channel_data_type", "channel_order", "normalized_coords",
                             "array_size", "num_mipmap_levels"});
  // Numbers that stand for formats are those of texture references.
  if (query < 0 || query == 3 || query == 4) l.unsupported();
  if (l.take_type() != Type::b32) l.unsupported();
  l.expect_operands(2);
  IrInstruction& ask = l.emit(ops::query_texture(), {l.destination(0, Type::b32)}, {handle_of(l, l.operand(1))});
  ask.immediate = query;
  ask.flags = is_surface;
}

void lower_txq(Lowering& l) { lower_query(l, false); }
void lower_suq(Lowering& l) { lower_query(l, true); }

}  // namespace

void add_texture_lowering(LoweringTable& table) {
  table["tex"] = &lower_tex;
  table["tld4"] = &lower_tld4;
  table["suld"] = &lower_suld;
  table["sust"] = &lower_sust;
  table["txq"] = &lower_txq;
  table["suq"] = &lower_suq;
}

}  // namespace fargpu::softgpu::program
