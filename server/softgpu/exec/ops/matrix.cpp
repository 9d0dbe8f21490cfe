#include "exec/ops/matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "exec/float_format.h"
#include "exec/memory_access.h"
#include "exec/ops/elementwise.h"
#include "exec/routine.h"
#include "exec/warp.h"

namespace fargpu::softgpu::ops {
namespace {

constexpr int extent_max = 32;

/// Position of one element within the registers of a warp.
struct Place {
  int lane;
  int reg;
  int part;  // within the register, lowest first
};

/// Which matrix of an instruction; a row of `a` is as long as the product is deep.
enum class Role { a, b, result };

/// Where mma.sync keeps an element (PTX ISA, figures of the matrix fragments). Lanes form groups of
/// four; `per_register` elements share a register.
Place place_in_registers(Role role, int row, int column, int rows, int per_register) {
  int group, in_group, reg, part;
  if (role == Role::b) {
    int block = 4 * per_register;
    group = column;
    in_group = row % block / per_register;
    part = row % per_register;
    reg = row / block;
  } else if (role == Role::a) {
    int block = 4 * per_register;
    group = row % 8;
    in_group = column % block / per_register;
    part = column % per_register;
    int half_count = rows / 8;
    reg = column / block * half_count + row / 8;
  } else {
    group = row % 8;
    in_group = column / 2;
    int index = row / 8 * 2 + column % 2;
    reg = index / per_register;
    part = index % per_register;
  }
  return {group * 4 + in_group, reg, part};
}

/// Where wmma keeps an element: one after the other over the lanes.
Place place_in_fragment(int row, int column, int columns, int per_register) {
  int index = row * columns + column;
  int slot = index / warp_size;
  return {index % warp_size, slot / per_register, slot % per_register};
}

uint32_t register_bits(Element element) { return std::max(32u, bits_of(element)); }
int per_register(Element element) { return static_cast<int>(register_bits(element) / bits_of(element)); }

uint64_t read_part(Warp& warp, OperandRef operand, Element element, int lane, int part) {
  if (element == Element::f64) return warp.lanes<uint64_t>(operand)[lane];
  uint32_t bits = warp.lanes<uint32_t>(operand)[lane];
  uint32_t width = bits_of(element);
  if (width == 32) return bits;
  return (bits >> (part * static_cast<int>(width))) & ((1u << width) - 1);
}

// ---- multiplication ------------------------------------------------------------------------------------------------

/// Empty if the lanes hold the elements row by row, as fragments are.
std::vector<uint16_t> places_of(const MultiplyForm& form, Role role, Element element) {
  if (form.is_fragment) return {};
  int rows = role == Role::b ? form.k : form.m;
  int columns = role == Role::a ? form.k : form.n;
  int in_register = per_register(element);
  std::vector<uint16_t> places;
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      Place place = place_in_registers(role, row, column, rows, in_register);
      places.push_back(static_cast<uint16_t>((place.reg * in_register + place.part) * warp_size + place.lane));
    }
  return places;
}

constexpr int elements_max = extent_max * extent_max;

/// The elements of a matrix as numbers, row by row or in the order of places.
template <class Wide>
using Elements = std::array<Wide, elements_max>;

/// Calls decode(bits) for each element, which take `width` bits of registers of Word.
template <class Word, class Wide, class Decode>
[[gnu::always_inline]] inline void unpack(Warp& warp, const OperandRef* registers, int count, int width,
                                          Elements<Wide>& elements, Decode decode) {
  Wide* next = elements.data();
  for (int reg = 0; reg < count; ++reg) {
    const Word* bits = warp.lanes<Word>(registers[reg]);
    for (int shift = 0; shift < static_cast<int>(8 * sizeof(Word)); shift += width)
      for (int lane = 0; lane < warp_size; ++lane) *next++ = static_cast<Wide>(decode(bits[lane] >> shift));
  }
}

template <class Wide>
[[gnu::always_inline]] inline void unpack(Warp& warp, const OperandRef* registers, int count, Element element,
                                          Elements<Wide>& elements) {
  auto words = [&](int width, auto decode) __attribute__((always_inline)) {
    unpack<uint32_t>(warp, registers, count, width, elements, decode);
  };
  switch (element) {
    case Element::f16: return words(16, [](uint32_t bits) { return to_float(Half{static_cast<uint16_t>(bits)}); });
    case Element::bf16: return words(16, [](uint32_t bits) { return to_double(Bfloat{static_cast<uint16_t>(bits)}); });
    case Element::tf32:
      // The low bits of the register are not looked at.
      return words(32, [](uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); });
    case Element::f32: return words(32, [](uint32_t bits) { return std::bit_cast<float>(bits); });
    case Element::f64:
      return unpack<uint64_t>(warp, registers, count, 64, elements,
                              [](uint64_t bits) { return std::bit_cast<double>(bits); });
    case Element::s8: return words(8, [](uint32_t bits) { return static_cast<int8_t>(bits); });
    case Element::u8: return words(8, [](uint32_t bits) { return static_cast<uint8_t>(bits); });
    case Element::s32: return words(32, [](uint32_t bits) { return static_cast<int32_t>(bits); });
  }
}

template <class Wide>
[[gnu::always_inline]] inline void read_matrix(Warp& warp, const OperandRef* registers, int count, Element element,
                                               const std::vector<uint16_t>& places, Elements<Wide>& matrix) {
  if (places.empty()) return unpack(warp, registers, count, element, matrix);
  Elements<Wide> spread;
  unpack(warp, registers, count, element, spread);
  for (size_t i = 0; i < places.size(); ++i) matrix[i] = spread[places[i]];
}

/// The other way round: encode(element) gives the bits of one.
template <class Word, class Wide, class Encode>
[[gnu::always_inline]] inline void pack(Warp& warp, const OperandRef* registers, int count, int width,
                                        const Elements<Wide>& elements, Encode encode) {
  const Wide* next = elements.data();
  for (int reg = 0; reg < count; ++reg) {
    Word* bits = warp.lanes<Word>(registers[reg]);
    if (width == static_cast<int>(8 * sizeof(Word))) {
      for (int lane = 0; lane < warp_size; ++lane) bits[lane] = static_cast<Word>(encode(*next++));
      continue;
    }
    std::fill_n(bits, warp_size, Word{0});
    for (int shift = 0; shift < static_cast<int>(8 * sizeof(Word)); shift += width)
      for (int lane = 0; lane < warp_size; ++lane) bits[lane] |= static_cast<Word>(encode(*next++)) << shift;
  }
}

template <class Wide>
[[gnu::always_inline]] inline void pack(Warp& warp, const OperandRef* registers, int count, Element element,
                                        const Elements<Wide>& elements) {
  switch (element) {
    case Element::f16:
      return pack<uint32_t>(warp, registers, count, 16, elements,
                            [](Wide value) { return round_to<Half>(static_cast<double>(value)).bits; });
    case Element::f32:
      return pack<uint32_t>(warp, registers, count, 32, elements,
                            [](Wide value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); });
    case Element::f64:
      return pack<uint64_t>(warp, registers, count, 64, elements,
                            [](Wide value) { return std::bit_cast<uint64_t>(static_cast<double>(value)); });
    case Element::s32:
      return pack<uint32_t>(warp, registers, count, 32, elements,
                            [](Wide value) { return static_cast<int32_t>(value); });
    default: break;  // what no product has: see fit_together() in program/lower_matrix.cpp
  }
}

template <class Wide>
[[gnu::always_inline]] inline void write_matrix(Warp& warp, const OperandRef* registers, int count, Element element,
                                                const std::vector<uint16_t>& places, const Elements<Wide>& matrix) {
  if (places.empty()) return pack(warp, registers, count, element, matrix);
  Elements<Wide> spread;
  for (size_t i = 0; i < places.size(); ++i) spread[places[i]] = matrix[i];
  pack(warp, registers, count, element, spread);
}

template <class T>
using Vector [[gnu::vector_size(32), gnu::aligned(alignof(T))]] = T;

/// sum += a * b. Products of what is no double are exact as they are.
template <class T>
[[gnu::always_inline]] inline void add_product(T a, const Vector<T>& b, Vector<T>& sum) {
  if constexpr (std::is_same_v<T, double>)
    sum = Vector<T>{std::fma(a, b[0], sum[0]), std::fma(a, b[1], sum[1]), std::fma(a, b[2], sum[2]),
                    std::fma(a, b[3], sum[3])};
  else sum += a * b;
}

/// sum += left * right, of matrices with n columns, as many rows at a time as vector registers hold.
/// Added in the order of k.
template <int n, class Wide>
[[gnu::always_inline]] inline void multiply_add(int m, int depth, const Elements<Wide>& left,
                                                const Elements<Wide>& right, Elements<Wide>& sum) {
  using Many = Vector<Wide>;
  constexpr int columns = n * sizeof(Wide) / sizeof(Many), rows = 8 / columns;
  for (int first = 0; first < m; first += rows) {
    Many* to = reinterpret_cast<Many*>(&sum[first * n]);
    Many part[rows * columns];
#pragma GCC unroll 8
    for (int i = 0; i < rows * columns; ++i) part[i] = to[i];
    for (int k = 0; k < depth; ++k) {
      Many factors[columns];
#pragma GCC unroll 8
      for (int i = 0; i < columns; ++i) factors[i] = reinterpret_cast<const Many*>(&right[k * n])[i];
#pragma GCC unroll 8
      for (int i = 0; i < rows * columns; ++i)
        add_product<Wide>(left[(first + i / columns) * depth + k], factors[i % columns], part[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * columns; ++i) to[i] = part[i];
  }
}

template <class Wide>
[[gnu::always_inline]] inline void multiply(Warp& warp, const MultiplyForm& form, const OperandRef* d) {
  const OperandRef* a = d + form.d_registers;
  const OperandRef* b = a + form.a_registers;
  const OperandRef* c = b + form.b_registers;
  Elements<Wide> left, right, sum;
  read_matrix(warp, a, form.a_registers, form.a, form.a_places, left);
  read_matrix(warp, b, form.b_registers, form.b, form.b_places, right);
  read_matrix(warp, c, form.c_registers, form.c, form.c_places, sum);
  switch (form.n) {
    case 8: multiply_add<8>(form.m, form.k, left, right, sum); break;
    case 16: multiply_add<16>(form.m, form.k, left, right, sum); break;
    case 32: multiply_add<32>(form.m, form.k, left, right, sum); break;
  }
  if constexpr (std::is_same_v<Wide, int64_t>)  // saturated
    for (int i = 0; i < form.m * form.n; ++i)
      sum[i] = std::clamp<int64_t>(sum[i], std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  write_matrix(warp, d, form.d_registers, form.d, form.d_places, sum);
}

using Multiply = void (*)(Warp&, const MultiplyForm&, const OperandRef* registers);

template <class Wide>
void multiply_any(Warp& warp, const MultiplyForm& form, const OperandRef* registers) {
  multiply<Wide>(warp, form, registers);
}
template <class Wide>
[[gnu::target("avx2,fma")]] void multiply_wide(Warp& warp, const MultiplyForm& form, const OperandRef* registers) {
  multiply<Wide>(warp, form, registers);
}
template <class Wide>
constexpr Multiply multiplies[] = {&multiply_any<Wide>, &multiply_wide<Wide>};

void execute_multiply(Warp& warp, const Instruction& instruction, LaneMask, Exchange&) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const MultiplyForm*>(more.details.get());
  bool is_wide = has_wide_vectors();
  Multiply run = form.d == Element::f64   ? multiplies<double>[is_wide]
                 : form.d != Element::s32 ? multiplies<float>[is_wide]
                 // Which wraps around.
                 : form.saturate ? multiplies<int64_t>[is_wide]
                                 : multiplies<uint32_t>[is_wide];
  run(warp, form, more.operands.data());
}

// ---- fragments in memory -------------------------------------------------------------------------------------------

/// Address of the first element of a line: rows in row-major order, else columns.
uint64_t line_address(const FragmentForm& form, uint64_t base, uint32_t stride, int line) {
  return base + uint64_t{stride} * static_cast<uint64_t>(line) * (bits_of(form.element) / 8);
}

/// Loads a matrix of elements that Bits hold into registers of Word.
template <class Bits, class Word>
void load_elements(Warp& warp, const Instruction& instruction, int leader, const FragmentForm& form,
                   const MoreOperands& more) {
  uint64_t base = warp.lanes<uint64_t>(more.operands[form.register_count])[leader];
  uint32_t stride = warp.lanes<uint32_t>(more.operands[form.register_count + 1])[leader];
  int lines = form.is_row_major ? form.rows : form.columns;
  int length = form.is_row_major ? form.columns : form.rows;
  int step = form.is_row_major ? 1 : form.columns;
  std::array<Bits, elements_max> elements;  // row by row
  uint64_t line_bytes = static_cast<uint64_t>(length) * sizeof(Bits);
  uint64_t bytes = line_address(form, 0, stride, lines - 1) + line_bytes;
  const std::byte* all = find_generic(warp, leader, base, bytes, Access::read);
  for (int line = 0; line < lines; ++line) {
    std::array<std::byte, extent_max * sizeof(Bits)> copy;
    const std::byte* from = copy.data();
    if (all != nullptr) from = all + line_address(form, 0, stride, line);
    else if (!read_generic(warp, instruction, leader, line_address(form, base, stride, line), copy.data(), line_bytes))
      return;
    Bits* to = &elements[form.is_row_major ? line * form.columns : line];
    for (int i = 0; i < length; ++i)
      std::memcpy(&to[i * step], from + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
  }
  // Some fragments have room for each element twice.
  int slots = form.rows * form.columns / warp_size, slot = 0;
  for (int reg = 0; reg < form.register_count; ++reg) {
    Word* result = warp.lanes<Word>(more.operands[reg]);
    std::fill_n(result, warp_size, Word{0});
    for (size_t part = 0; part < sizeof(Word) / sizeof(Bits); ++part, ++slot) {
      const Bits* from = &elements[slot % slots * warp_size];
      for (int lane = 0; lane < warp_size; ++lane) result[lane] |= Word{from[lane]} << (8 * sizeof(Bits) * part);
    }
  }
}

void execute_load_fragment(Warp& warp, const Instruction& instruction, LaneMask lanes, Exchange&) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const FragmentForm*>(more.details.get());
  int leader = first_lane(lanes);
  switch (bits_of(form.element)) {
    case 8: return load_elements<uint8_t, uint32_t>(warp, instruction, leader, form, more);
    case 16: return load_elements<uint16_t, uint32_t>(warp, instruction, leader, form, more);
    case 32: return load_elements<uint32_t, uint32_t>(warp, instruction, leader, form, more);
    default: return load_elements<uint64_t, uint64_t>(warp, instruction, leader, form, more);
  }
}

void execute_store_fragment(Warp& warp, const Instruction& instruction, LaneMask lanes, Exchange&) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const FragmentForm*>(more.details.get());
  int leader = first_lane(lanes);
  uint64_t base = warp.lanes<uint64_t>(more.operands[0])[leader];
  uint32_t stride = warp.lanes<uint32_t>(more.operands[1])[leader];
  uint32_t bytes = bits_of(form.element) / 8;
  int lines = form.is_row_major ? form.rows : form.columns;
  int length = form.is_row_major ? form.columns : form.rows;
  std::array<std::byte, extent_max * 8> line_bytes;
  for (int line = 0; line < lines; ++line) {
    for (int i = 0; i < length; ++i) {
      int row = form.is_row_major ? line : i, column = form.is_row_major ? i : line;
      Place place = place_in_fragment(row, column, form.columns, per_register(form.element));
      uint64_t bits = read_part(warp, more.operands[2 + place.reg], form.element, place.lane, place.part);
      std::memcpy(line_bytes.data() + static_cast<size_t>(i) * bytes, &bits, bytes);
    }
    if (!write_generic(warp, instruction, leader, line_address(form, base, stride, line), line_bytes.data(),
                       static_cast<uint64_t>(length) * bytes))
      return;
  }
}

// ---- 8 x 8 tiles ---------------------------------------------------------------------------------------------------

using Tile = std::array<std::array<uint16_t, 8>, 8>;

/// Each lane holds two neighbouring elements of a row.
uint32_t tile_register(const Tile& tile, int lane, bool is_transposed) {
  int row = lane / 4, column = lane % 4 * 2;
  uint32_t low = is_transposed ? tile[column][row] : tile[row][column];
  uint32_t high = is_transposed ? tile[column + 1][row] : tile[row][column + 1];
  return low | high << 16;
}

Tile tile_of_registers(const uint32_t* registers, bool is_transposed) {
  Tile tile;
  for (int lane = 0; lane < warp_size; ++lane) {
    int row = lane / 4, column = lane % 4 * 2;
    auto low = static_cast<uint16_t>(registers[lane]);
    auto high = static_cast<uint16_t>(registers[lane] >> 16);
    (is_transposed ? tile[column][row] : tile[row][column]) = low;
    (is_transposed ? tile[column + 1][row] : tile[row][column + 1]) = high;
  }
  return tile;
}

void execute_load_tiles(Warp& warp, const Instruction& instruction, LaneMask, Exchange&) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const TileForm*>(more.details.get());
  // The lanes 8 i to 8 i + 7 give the addresses of the rows of the i-th matrix.
  Lanes<uint64_t> address;
  std::memcpy(&address, warp.lanes<uint64_t>(more.operands[form.count]), sizeof address);
  for (int i = 0; i < form.count; ++i) {
    Tile tile;
    for (int row = 0; row < 8; ++row) {
      uint64_t from = address.lane[8 * i + row];
      if (from % 16 != 0) {
        warp.raise(FaultKind::misaligned_address, instruction, 8 * i + row,
                   "row of a matrix that is not aligned to 16 bytes");
        return;
      }
      if (!read_generic(warp, instruction, 8 * i + row, from, tile[row].data(), 16)) return;
    }
    uint32_t* result = warp.lanes<uint32_t>(more.operands[i]);
    for (int lane = 0; lane < warp_size; ++lane) result[lane] = tile_register(tile, lane, form.is_transposed);
  }
}

void execute_store_tiles(Warp& warp, const Instruction& instruction, LaneMask, Exchange&) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  auto& form = *static_cast<const TileForm*>(more.details.get());
  const uint64_t* address = warp.lanes<uint64_t>(more.operands[0]);
  for (int i = 0; i < form.count; ++i) {
    Tile tile = tile_of_registers(warp.lanes<uint32_t>(more.operands[1 + i]), form.is_transposed);
    for (int row = 0; row < 8; ++row) {
      uint64_t to = address[8 * i + row];
      if (to % 16 != 0) {
        warp.raise(FaultKind::misaligned_address, instruction, 8 * i + row,
                   "row of a matrix that is not aligned to 16 bytes");
        return;
      }
      if (!write_generic(warp, instruction, 8 * i + row, to, tile[row].data(), 16)) return;
    }
  }
}

void execute_transpose(Warp& warp, const Instruction& instruction, LaneMask, Exchange&) {
  auto& more = *static_cast<const MoreOperands*>(instruction.details);
  Tile tile = tile_of_registers(warp.lanes<uint32_t>(more.operands[1]), false);
  uint32_t* result = warp.lanes<uint32_t>(more.operands[0]);
  for (int lane = 0; lane < warp_size; ++lane) result[lane] = tile_register(tile, lane, true);
}

template <auto execute>
const Instruction* run_together(Warp& warp, const Instruction& instruction, LaneMask) {
  static constexpr Collective collective = {execute, nullptr};
  return warp.run_collective(instruction, collective, all_lanes);
}

}  // namespace

uint32_t bits_of(Element element) {
  switch (element) {
    case Element::f16:
    case Element::bf16: return 16;
    case Element::s8:
    case Element::u8: return 8;
    case Element::f64: return 64;
    default: return 32;
  }
}

void find_places(MultiplyForm& form) {
  form.a_places = places_of(form, Role::a, form.a);
  form.b_places = places_of(form, Role::b, form.b);
  form.c_places = places_of(form, Role::result, form.c);
  form.d_places = places_of(form, Role::result, form.d);
}

Handler multiply_matrices() { return &run_together<&execute_multiply>; }
Handler load_fragment() { return &run_together<&execute_load_fragment>; }
Handler store_fragment() { return &run_together<&execute_store_fragment>; }
Handler load_tiles() { return &run_together<&execute_load_tiles>; }
Handler store_tiles() { return &run_together<&execute_store_tiles>; }
Handler transpose_tile() { return &run_together<&execute_transpose>; }

}  // namespace fargpu::softgpu::ops
