#include "ptx/type.h"

#include <array>

namespace fargpu::softgpu::ptx {
namespace {

enum class Kind : uint8_t { none, predicate, bits, unsigned_integer, signed_integer, floating };

struct TypeFacts {
  Type type;
  std::string_view name;
  uint8_t size;
  Kind kind;
};

// In the order of the enumeration, so that a type is its own index.
constexpr std::array<TypeFacts, 25> type_facts = {{
    {Type::none, "", 0, Kind::none},
    {Type::pred, "pred", 0, Kind::predicate},
    {Type::b8, "b8", 1, Kind::bits},
    {Type::b16, "b16", 2, Kind::bits},
    {Type::b32, "b32", 4, Kind::bits},
    {Type::b64, "b64", 8, Kind::bits},
    {Type::b128, "b128", 16, Kind::bits},
    {Type::u8, "u8", 1, Kind::unsigned_integer},
    {Type::u16, "u16", 2, Kind::unsigned_integer},
    {Type::u32, "u32", 4, Kind::unsigned_integer},
    {Type::u64, "u64", 8, Kind::unsigned_integer},
    {Type::s8, "s8", 1, Kind::signed_integer},
    {Type::s16, "s16", 2, Kind::signed_integer},
    {Type::s32, "s32", 4, Kind::signed_integer},
    {Type::s64, "s64", 8, Kind::signed_integer},
    {Type::f16, "f16", 2, Kind::floating},
    {Type::f16x2, "f16x2", 4, Kind::floating},
    {Type::bf16, "bf16", 2, Kind::floating},
    {Type::bf16x2, "bf16x2", 4, Kind::floating},
    {Type::tf32, "tf32", 4, Kind::floating},
    {Type::f32, "f32", 4, Kind::floating},
    {Type::f64, "f64", 8, Kind::floating},
    {Type::e4m3x2, "e4m3x2", 2, Kind::floating},
    {Type::e5m2x2, "e5m2x2", 2, Kind::floating},
    {Type::f16x4, "f16x4", 8, Kind::floating},
}};

const TypeFacts& facts(Type type) { return type_facts[static_cast<size_t>(type)]; }

}  // namespace

std::optional<Type> parse_type(std::string_view name) {
  for (const TypeFacts& candidate : type_facts)
    if (!name.empty() && candidate.name == name) return candidate.type;
  return std::nullopt;
}

std::string_view name_of(Type type) { return facts(type).name; }
uint32_t size_of(Type type) { return facts(type).size; }
bool is_float(Type type) { return facts(type).kind == Kind::floating; }
bool is_signed_integer(Type type) { return facts(type).kind == Kind::signed_integer; }
bool is_unsigned_integer(Type type) { return facts(type).kind == Kind::unsigned_integer; }
bool is_integer_like(Type type) {
  Kind kind = facts(type).kind;
  return kind == Kind::bits || kind == Kind::unsigned_integer || kind == Kind::signed_integer;
}

}  // namespace fargpu::softgpu::ptx
