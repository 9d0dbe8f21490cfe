#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fargpu::softgpu::ptx {

/// Fundamental and alternate types of operands (PTX ISA 5.2).
enum class Type : uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  b128,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  f16x2,
  bf16,
  bf16x2,
  tf32,
  f32,
  f64,
  e4m3x2,
  e5m2x2,
  f16x4,
};

/// State spaces (PTX ISA 5.1). `generic` is an address without a stated space.
enum class Space : uint8_t { generic, global, constant, shared, local, param, reg };

/// The type named by a modifier or directive without its dot, if it names one.
std::optional<Type> parse_type(std::string_view name);
std::string_view name_of(Type type);

/// Bytes one value takes in memory and in a register. Predicates have no size.
uint32_t size_of(Type type);

bool is_float(Type type);
bool is_signed_integer(Type type);
bool is_unsigned_integer(Type type);
/// An integer or an untyped bit type.
bool is_integer_like(Type type);

}  // namespace fargpu::softgpu::ptx
