#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/instruction.h"

namespace fargpu::softgpu {

/// What Instruction::details points to where an instruction has more operands than it has room
/// for: first what it writes, then what it reads.
struct MoreOperands {
  std::vector<OperandRef> operands;
  std::shared_ptr<const void> details;
};

/// The offset of one parameter: in the parameter buffer of a launch for kernels, in the local
/// memory of the frame for functions.
struct ParameterLayout {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

/// A place in the constants that depends on where a module was loaded. The value is written to all
/// lanes; the addend is already there.
struct ConstantRelocation {
  enum class Kind : uint8_t { global, function, shared };
  uint32_t offset = 0;  // into the constants
  Kind kind = Kind::global;
  uint8_t width = 8;   // bytes of one lane's value
  uint32_t index = 0;  // of the global, the routine, or the shared variable
};

struct ThreadDimensions {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

/// A kernel or device function in executable form. Immutable once its program is complete.
struct Routine {
  std::string name;
  uint32_t index = 0;  // in the program
  bool is_kernel = false;
  bool is_noreturn = false;

  std::vector<Instruction> code;
  std::vector<std::shared_ptr<const void>> details;  // what Instruction::details points to
  std::vector<std::byte> constants;
  std::vector<ConstantRelocation> relocations;
  uint32_t frame_bytes = 0;
  /// Per thread: local variables, parameters of this function and of the calls it makes.
  uint32_t local_bytes = 0;
  std::vector<ParameterLayout> parameters;
  std::vector<ParameterLayout> returns;
  uint32_t parameter_bytes = 0;

  /// If not empty the routine must not run: what it uses that is not supported.
  std::string unsupported;

  std::vector<uint32_t> callees;        // routines it calls by name
  std::vector<uint32_t> address_taken;  // routines whose address it takes
  std::vector<std::string> unresolved;  // functions it calls that the program does not define
  bool has_indirect_calls = false;
  bool uses_dynamic_shared = false;
  std::vector<uint32_t> shared_variables;  // of the program, that it names

  // For kernels, over everything they can reach.
  uint32_t static_shared_bytes = 0;
  std::vector<uint32_t> shared_offsets;  // per shared variable of the program
  uint32_t stack_bytes = 0;              // local memory without recursion
  bool has_recursion = false;            // or indirect calls: the stack has no static bound
  uint32_t register_count = 0;           // 32-bit registers per thread, for occupancy
  uint32_t register_count_max = 64;      // or .maxnreg; with 64 a block may have 1,024 threads, as programs expect

  // Launch directives.
  std::optional<ThreadDimensions> max_threads;
  std::optional<ThreadDimensions> required_threads;
  std::optional<ThreadDimensions> required_cluster;
  bool is_cluster_explicit = false;
  uint32_t max_cluster_rank = 0;
  uint32_t ptx_version = 0;    // 87 for PTX ISA 8.7
  uint32_t target_number = 0;  // 90 for sm_90
};

}  // namespace fargpu::softgpu
