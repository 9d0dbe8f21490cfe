#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/type.h"

// The syntax tree of one PTX text. Names are resolved as far as scopes go: registers, labels and
// local variables are indices; names of module scope stay text. Views point into Module::text.

namespace fargpu::softgpu::ptx {

enum class Linkage : uint8_t { internal, external, visible, weak, common };

inline constexpr uint32_t no_index = UINT32_MAX;

/// One element of an initializer: a number, or the address of a symbol plus an offset.
struct InitializerItem {
  uint64_t bits = 0;
  std::string_view symbol;   // empty for a number
  bool is_generic = false;   // generic(symbol): the symbol's generic address
  uint8_t mask_byte = 0xff;  // byte of the address taken by a mask operator; 0xff: all of it
  bool is_float = false;     // bits hold an f64
  bool is_float32 = false;   // bits hold an f32
};

struct Variable {
  std::string_view name;
  Space space = Space::global;
  Type type = Type::none;
  uint32_t vector_width = 1;
  uint32_t align = 1;
  uint64_t count = 1;  // elements over all dimensions
  bool is_array = false;
  bool is_unsized = false;  // an array declared with empty brackets
  bool is_managed = false;  // .attribute(.managed)
  Linkage linkage = Linkage::internal;
  std::vector<InitializerItem> initializer;  // flattened, padded as the nesting says
  uint32_t line = 0;

  uint64_t bytes() const { return count * vector_width * size_of(type); }
};

enum class OperandKind : uint8_t {
  none,
  reg,       // Operand::index names Function::registers
  special,   // a predefined register, by name
  variable,  // Operand::index names Function::variables
  symbol,    // a name of module scope
  integer,   // Operand::bits
  float32,   // Operand::bits holds the f32
  float64,   // Operand::bits holds the f64
  label,     // Operand::index names Function::labels
  vector,    // {a, b, ...} or (a, b, ...): Operand::elements
  address,   // [base + offset]: elements[0] is the base, further elements follow commas
  pair,      // p|q: two elements
  sink,      // _
};

struct Operand {
  OperandKind kind = OperandKind::none;
  bool is_negated = false;  // !p, or -x of a register
  bool is_unsigned = false;
  uint32_t index = no_index;
  int64_t offset = 0;  // added to a symbol, or to the base of an address
  uint64_t bits = 0;
  std::string_view name;
  std::vector<Operand> elements;
};

struct Instruction {
  uint32_t line = 0;
  uint32_t guard = no_index;  // register index of the predicate
  bool is_guard_negated = false;
  std::string_view opcode;                  // without modifiers
  std::vector<std::string_view> modifiers;  // without dots, in order
  std::vector<Operand> operands;
};

struct Register {
  Type type = Type::none;
};

struct Label {
  std::string_view name;
  uint32_t position = no_index;  // the instruction it stands before
};

/// .branchtargets, .calltargets: a named list of labels or functions.
struct TargetList {
  std::string_view name;
  std::vector<uint32_t> labels;
  std::vector<std::string_view> functions;
};

/// Parameters of a function, or of a .callprototype.
struct Signature {
  std::vector<Variable> returns;
  std::vector<Variable> parameters;
  bool is_noreturn = false;
};

struct Prototype {
  std::string_view name;
  Signature signature;
};

struct Dimensions {
  uint32_t x = 1, y = 1, z = 1;
};

/// Performance and launch directives (PTX ISA 11.4 and 11.6).
struct LaunchBounds {
  std::optional<Dimensions> max_threads;       // .maxntid
  std::optional<Dimensions> required_threads;  // .reqntid
  std::optional<Dimensions> required_cluster;  // .reqnctapercluster
  bool is_cluster_explicit = false;            // .explicitcluster
  uint32_t max_cluster_rank = 0;               // .maxclusterrank
  uint32_t min_blocks_per_multiprocessor = 0;  // .minnctapersm
  uint32_t max_registers = 0;                  // .maxnreg
};

struct Function {
  std::string_view name;
  bool is_kernel = false;
  bool has_body = false;
  Linkage linkage = Linkage::internal;
  Signature signature;
  LaunchBounds bounds;
  uint32_t line = 0;

  std::vector<Register> registers;
  /// First the parameters, then the returned values, then what the body declares.
  std::vector<Variable> variables;
  std::vector<Instruction> body;
  std::vector<Label> labels;
  std::vector<TargetList> target_lists;
  std::vector<Prototype> prototypes;
};

struct Module {
  std::string text;
  uint32_t version_major = 0;
  uint32_t version_minor = 0;
  std::string_view target;     // sm_90a
  uint32_t target_number = 0;  // 90
  uint32_t address_bits = 32;
  std::vector<Variable> variables;
  std::vector<Function> functions;
  struct Alias {
    std::string_view name, target;
  };
  std::vector<Alias> aliases;
};

}  // namespace fargpu::softgpu::ptx
