#include "program/build.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "common/limits.h"
#include "program/lowering.h"
#include "ptx/error.h"

namespace fargpu::softgpu::program {
namespace {

using ptx::Linkage;
using ptx::Space;

constexpr uint64_t global_bytes_max = uint64_t{1} << 40;

ThreadDimensions dimensions(const ptx::Dimensions& from) { return {from.x, from.y, from.z}; }

bool is_global_name(Linkage linkage) { return linkage != Linkage::internal; }

class Builder {
 public:
  explicit Builder(const std::vector<const ptx::Module*>& modules) : modules_(modules) {
    symbols_.resize(modules.size());
  }

  std::shared_ptr<const Program> run() {
    for (size_t m = 0; m < modules_.size(); ++m) declare(m);
    for (size_t m = 0; m < modules_.size(); ++m) resolve(m);
    for (size_t m = 0; m < modules_.size(); ++m) fill_variables(m);
    for (const Body& body : bodies_) lower(body);
    for (auto& routine : program_->routines)
      if (routine->is_kernel) complete_kernel(*routine);
    for (auto& routine : program_->routines) {
      if (routine->is_kernel) patch_shared(*routine);
      program_->routine_index.emplace(routine->name, routine->index);
    }
    return program_;
  }

 private:
  struct Body {
    size_t module;
    const ptx::Function* source;
    uint32_t routine;
  };

  /// Gives the definitions of a module their places. Names that other modules can see are unique
  /// among all of them; of weak ones the first counts.
  void declare(size_t m) {
    const ptx::Module& module = *modules_[m];
    if (module.target_number > compute_capability_number)
      throw LinkError("PTX for " + std::string(module.target) + ", which is newer than this device's sm_90");
    for (const ptx::Function& function : module.functions) {
      if (!function.has_body) continue;
      if (!claim(shared_functions_, function.name, function.linkage, function.line,
                 static_cast<uint32_t>(program_->routines.size()), symbols_[m].functions))
        continue;
      auto routine = std::make_unique<Routine>();
      routine->name = function.name;
      routine->index = static_cast<uint32_t>(program_->routines.size());
      routine->is_kernel = function.is_kernel;
      routine->is_noreturn = function.signature.is_noreturn;
      routine->ptx_version = module.version_major * 10 + module.version_minor;
      routine->target_number = module.target_number;
      take_bounds(function.bounds, *routine);
      bodies_.push_back({m, &function, routine->index});
      program_->routines.push_back(std::move(routine));
    }
    for (const ptx::Variable& variable : module.variables) declare_variable(m, variable);
  }

  void declare_variable(size_t m, const ptx::Variable& variable) {
    bool is_shared = variable.space == Space::shared;
    if (is_shared && (variable.linkage != Linkage::external || variable.is_unsized)) {
      if (variable.bytes() > std::numeric_limits<uint32_t>::max() / 2)
        throw ptx::SyntaxError(variable.line, "shared variable is too large");
      if (!claim(shared_shared_, variable.name, variable.linkage, variable.line,
                 static_cast<uint32_t>(program_->shared.size()), symbols_[m].shared))
        return;
      program_->shared.push_back(
          {std::string(variable.name), static_cast<uint32_t>(variable.bytes()), variable.align, variable.is_unsized});
      return;
    }
    if (is_shared || variable.linkage == Linkage::external) return;
    if (variable.bytes() > global_bytes_max) throw ptx::SyntaxError(variable.line, "variable is too large");
    if (!claim(shared_globals_, variable.name, variable.linkage, variable.line,
               static_cast<uint32_t>(program_->globals.size()), symbols_[m].globals))
      return;
    GlobalVariable global;
    global.name = variable.name;
    global.bytes = variable.bytes();
    global.align = variable.align;
    global.is_constant = variable.space == Space::constant;
    global.is_managed = variable.is_managed;
    global.is_visible = is_global_name(variable.linkage);
    program_->global_index.emplace(global.name, static_cast<uint32_t>(program_->globals.size()));
    program_->globals.push_back(std::move(global));
  }

  using Names = std::unordered_map<std::string_view, uint32_t>;
  struct SharedName {
    uint32_t index;
    Linkage linkage;
  };
  using SharedNames = std::unordered_map<std::string_view, SharedName>;

  /// Enters a definition. False if another module's definition of that name serves instead.
  bool claim(SharedNames& all, std::string_view name, Linkage linkage, uint32_t line, uint32_t index, Names& own) {
    if (is_global_name(linkage)) {
      auto [found, is_new] = all.emplace(name, SharedName{index, linkage});
      bool may_repeat = [&] {
        auto is_weak = [](Linkage l) { return l == Linkage::weak || l == Linkage::common || l == Linkage::external; };
        return is_weak(linkage) || is_weak(found->second.linkage);
      }();
      if (!is_new) {
        if (!may_repeat) throw LinkError("'" + std::string(name) + "' is defined in several modules");
        own[name] = found->second.index;
        return false;
      }
    }
    if (!own.emplace(name, index).second) throw ptx::SyntaxError(line, "'" + std::string(name) + "' is defined twice");
    return true;
  }

  /// Lets declarations without definition refer to other modules' definitions.
  void resolve(size_t m) {
    const ptx::Module& module = *modules_[m];
    Symbols& symbols = symbols_[m];
    for (const ptx::Function& function : module.functions) refer(shared_functions_, function.name, symbols.functions);
    for (const ptx::Variable& variable : module.variables) {
      if (variable.linkage != Linkage::external) continue;
      if (variable.space == Space::shared) refer(shared_shared_, variable.name, symbols.shared);
      else refer(shared_globals_, variable.name, symbols.globals);
    }
    for (const ptx::Module::Alias& alias : module.aliases) {
      auto found = symbols.functions.find(alias.target);
      if (found == symbols.functions.end())
        throw LinkError("alias of '" + std::string(alias.target) + "', which is not defined");
      symbols.functions[alias.name] = found->second;
    }
  }

  static void refer(const SharedNames& all, std::string_view name, Names& own) {
    if (own.contains(name)) return;
    if (auto found = all.find(name); found != all.end()) own[name] = found->second.index;
  }

  static void take_bounds(const ptx::LaunchBounds& bounds, Routine& routine) {
    if (bounds.max_threads) routine.max_threads = dimensions(*bounds.max_threads);
    if (bounds.max_registers != 0) routine.register_count_max = bounds.max_registers;
    if (bounds.required_threads) routine.required_threads = dimensions(*bounds.required_threads);
    if (bounds.required_cluster) routine.required_cluster = dimensions(*bounds.required_cluster);
    routine.is_cluster_explicit = bounds.is_cluster_explicit;
    routine.max_cluster_rank = bounds.max_cluster_rank;
  }

  // ---- initial values ----------------------------------------------------------------------------------------------

  void fill_variables(size_t m) {
    for (const ptx::Variable& variable : modules_[m]->variables) {
      if (variable.initializer.empty() || variable.space == Space::shared) continue;
      auto found = symbols_[m].globals.find(variable.name);
      if (found == symbols_[m].globals.end()) continue;
      GlobalVariable& global = program_->globals[found->second];
      if (!global.contents.empty()) continue;  // a weak definition that another one precedes
      fill_variable(m, variable, global);
    }
  }

  void fill_variable(size_t m, const ptx::Variable& variable, GlobalVariable& global) {
    uint32_t bytes = ptx::size_of(variable.type);
    global.contents.resize(variable.initializer.size() * bytes);
    for (size_t i = 0; i < variable.initializer.size(); ++i) {
      const ptx::InitializerItem& item = variable.initializer[i];
      uint64_t offset = i * bytes;
      if (!item.symbol.empty()) {
        // An address is entered where the program is loaded.
        GlobalVariable::Pointer pointer = {.offset = offset,
                                           .addend = static_cast<int64_t>(item.bits),
                                           .width = static_cast<uint8_t>(item.mask_byte == 0xff ? bytes : 1)};
        if (item.mask_byte != 0xff) pointer.first_byte = item.mask_byte;
        if (!name_symbol(m, item.symbol, pointer))
          throw ptx::SyntaxError(variable.line, "'" + std::string(item.symbol) + "' is not declared");
        global.pointers.push_back(std::move(pointer));
        continue;
      }
      uint64_t bits = literal(item, variable.type);
      std::memcpy(global.contents.data() + offset, &bits, std::min<uint32_t>(bytes, 8));
      // A 128-bit element is extended with zeros.
    }
  }

  bool name_symbol(size_t m, std::string_view name, GlobalVariable::Pointer& pointer) {
    const Symbols& symbols = symbols_[m];
    if (auto found = symbols.globals.find(name); found != symbols.globals.end()) {
      pointer.target = found->second;
      return true;
    }
    if (auto found = symbols.functions.find(name); found != symbols.functions.end()) {
      pointer.target = found->second;
      pointer.is_function = true;
      return true;
    }
    return false;
  }

  static uint64_t literal(const ptx::InitializerItem& item, ptx::Type type) {
    if (!item.is_float && !item.is_float32) return item.bits;
    double value =
        item.is_float ? std::bit_cast<double>(item.bits) : std::bit_cast<float>(static_cast<uint32_t>(item.bits));
    if (type == ptx::Type::f64) return std::bit_cast<uint64_t>(value);
    if (type == ptx::Type::f32) return item.is_float32 ? item.bits : std::bit_cast<uint32_t>(static_cast<float>(value));
    return item.bits;
  }

  // ---- code --------------------------------------------------------------------------------------------------------

  void lower(const Body& body) {
    Routine& routine = *program_->routines[body.routine];
    try {
      Lowering(*program_, symbols_[body.module], *modules_[body.module], *body.source, routine).run();
    } catch (const Unsupported& reason) {
      routine.unsupported = reason.what();
      routine.code.clear();
    }
  }

  /// What holds for a kernel over everything it can reach: shared memory, stack, registers, and
  /// whether all of it can be executed.
  void complete_kernel(Routine& kernel) {
    std::vector<uint32_t> reachable = {kernel.index};
    std::vector<bool> is_seen(program_->routines.size(), false);
    is_seen[kernel.index] = true;
    auto add = [&](uint32_t index) {
      if (is_seen[index]) return;
      is_seen[index] = true;
      reachable.push_back(index);
    };
    bool has_indirect_calls = false;
    for (size_t i = 0; i < reachable.size(); ++i) {
      const Routine& routine = *program_->routines[reachable[i]];
      for (uint32_t callee : routine.callees) add(callee);
      has_indirect_calls |= routine.has_indirect_calls;
    }
    // A pointer may lead to any function; only those that are called by name must be executable
    // for certain.
    std::vector<uint32_t> certain = reachable;
    if (has_indirect_calls)
      for (auto& routine : program_->routines)
        if (!routine->is_kernel) add(routine->index);
    for (size_t i = 0; i < reachable.size(); ++i)
      for (uint32_t callee : program_->routines[reachable[i]]->callees) add(callee);

    for (uint32_t index : certain) {
      const Routine& routine = *program_->routines[index];
      if (kernel.unsupported.empty() && !routine.unsupported.empty())
        kernel.unsupported = "function " + routine.name + ": " + routine.unsupported;
    }
    for (uint32_t index : reachable)
      kernel.register_count = std::max(kernel.register_count, program_->routines[index]->register_count);
    std::optional<uint32_t> deepest = deepest_stack(kernel.index);
    kernel.has_recursion = has_indirect_calls || !deepest;
    kernel.stack_bytes = kernel.has_recursion ? kernel.local_bytes : *deepest;
    lay_out_shared(kernel, reachable);
  }

  /// Bytes of the deepest chain of calls; nothing if functions call one another in a circle.
  std::optional<uint32_t> deepest_stack(uint32_t root) const {
    enum class State : uint8_t { unseen, open, done };
    std::vector<State> state(program_->routines.size(), State::unseen);
    std::vector<uint32_t> bytes(program_->routines.size(), 0);
    std::vector<std::pair<uint32_t, size_t>> stack = {{root, 0}};
    state[root] = State::open;
    while (!stack.empty()) {
      auto& [index, next] = stack.back();
      const Routine& routine = *program_->routines[index];
      if (next < routine.callees.size()) {
        uint32_t callee = routine.callees[next++];
        if (state[callee] == State::open) return std::nullopt;
        if (state[callee] == State::done) continue;
        state[callee] = State::open;
        stack.push_back({callee, 0});
        continue;
      }
      uint32_t deepest = 0;
      for (uint32_t callee : routine.callees) deepest = std::max(deepest, bytes[callee]);
      bytes[index] = routine.local_bytes + deepest;
      state[index] = State::done;
      stack.pop_back();
    }
    return bytes[root];
  }

  void lay_out_shared(Routine& kernel, const std::vector<uint32_t>& reachable) {
    std::vector<bool> is_used(program_->shared.size(), false);
    for (uint32_t index : reachable)
      for (uint32_t variable : program_->routines[index]->shared_variables) is_used[variable] = true;
    kernel.shared_offsets.assign(program_->shared.size(), 0);
    uint64_t offset = 0;
    auto aligned = [&](uint32_t align) { return (offset + align - 1) / align * align; };
    uint32_t dynamic_align = 1;
    for (uint32_t i = 0; i < program_->shared.size(); ++i) {
      const SharedVariable& variable = program_->shared[i];
      if (!is_used[i]) continue;
      if (variable.is_dynamic) {
        dynamic_align = std::max(dynamic_align, variable.align);
        kernel.uses_dynamic_shared = true;
        continue;
      }
      offset = aligned(variable.align);
      kernel.shared_offsets[i] = static_cast<uint32_t>(reserved_shared_bytes + offset);
      offset += variable.bytes;
    }
    // What the launch adds lies behind, all dynamic variables at the same place.
    if (kernel.uses_dynamic_shared) offset = aligned(std::max(dynamic_align, 16u));
    for (uint32_t i = 0; i < program_->shared.size(); ++i)
      if (is_used[i] && program_->shared[i].is_dynamic)
        kernel.shared_offsets[i] = static_cast<uint32_t>(reserved_shared_bytes + offset);
    kernel.static_shared_bytes = static_cast<uint32_t>(offset);
    if (offset > shared_bytes_max && kernel.unsupported.empty())
      kernel.unsupported = "more static shared memory than a block can have";
  }

  /// Enters the addresses of shared variables, which are the same wherever the kernel is loaded.
  static void patch_shared(Routine& kernel) {
    for (const ConstantRelocation& relocation : kernel.relocations) {
      if (relocation.kind != ConstantRelocation::Kind::shared) continue;
      uint64_t address = kernel.shared_offsets[relocation.index];
      for (int lane = 0; lane < warp_size; ++lane) {
        std::byte* at = kernel.constants.data() + relocation.offset + lane * relocation.width;
        uint64_t value = 0;
        std::memcpy(&value, at, relocation.width);
        value += address;
        std::memcpy(at, &value, relocation.width);
      }
    }
    std::erase_if(kernel.relocations, [](const ConstantRelocation& relocation) {
      return relocation.kind == ConstantRelocation::Kind::shared;
    });
  }

  static constexpr uint64_t shared_bytes_max = 227u << 10;

  const std::vector<const ptx::Module*>& modules_;
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  std::vector<Symbols> symbols_;
  SharedNames shared_functions_, shared_globals_, shared_shared_;
  std::vector<Body> bodies_;
};

}  // namespace

std::shared_ptr<const Program> build(const std::vector<const ptx::Module*>& modules) { return Builder(modules).run(); }

}  // namespace fargpu::softgpu::program
