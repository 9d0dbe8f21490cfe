#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver/context.h"
#include "driver/handle_table.h"
#include "exec/program.h"

namespace fargpu::softgpu {

class Function;
class Kernel;
class Library;

/// Attributes of a kernel that a program may set, per function or per kernel and device.
struct FunctionSettings {
  int dynamic_shared_bytes_max = 0;  // set to the real default by its maker
  int preferred_shared_carveout = -1;
  bool cluster_must_be_set = false;
  int required_cluster[3] = {0, 0, 0};
  bool non_portable_cluster_allowed = false;
  int cluster_scheduling_policy = 0;

  explicit FunctionSettings(const Routine& kernel);
  int get(CUfunction_attribute attribute, const Routine& kernel) const;
  /// Throws INVALID_VALUE for attributes that cannot be set, or not to that.
  void set(CUfunction_attribute attribute, int value, const Routine& kernel);
};

/// The managed variables of a library, which all its modules have in common: addresses by the program's numbering, of
/// those that are made already.
using ManagedVariables = std::map<size_t, DeviceAddress>;

/// A program loaded into a context: its variables have memory and addresses.
class Module : public std::enable_shared_from_this<Module> {
 public:
  /// `shared`: of the library, if it is a module of one. Throws OUT_OF_MEMORY.
  static std::shared_ptr<Module> load(std::shared_ptr<Context> context, std::shared_ptr<const Program> program,
                                      std::weak_ptr<Library> library = {}, ManagedVariables* shared = nullptr);
  ~Module();

  const std::shared_ptr<Context>& context() const { return context_; }
  const std::shared_ptr<const Program>& program() const { return program_; }
  std::shared_ptr<Library> library() const { return library_.lock(); }
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }

  /// The functions of all kernels, in the order of the program.
  const std::vector<std::shared_ptr<Function>>& functions() const { return functions_; }
  /// Throws NOT_FOUND.
  std::shared_ptr<Function> function(const std::string& name) const;

  struct Global {
    DeviceAddress address;
    uint64_t bytes;
  };
  /// Throws NOT_FOUND.
  Global global(const std::string& name, bool managed_only = false) const;

  const std::byte* const* constants() const { return constant_pointers_.data(); }
  /// Gives back the memory of the variables; kernels must not run any more.
  void release_memory();

 private:
  Module(std::shared_ptr<Context> context, std::shared_ptr<const Program> program, std::weak_ptr<Library> library)
      : context_(std::move(context)), program_(std::move(program)), library_(std::move(library)) {}
  void allocate_globals(ManagedVariables* shared);
  void fill_globals();
  void fill_constants();

  std::shared_ptr<Context> context_;
  std::shared_ptr<const Program> program_;
  std::weak_ptr<Library> library_;
  std::vector<DeviceAddress> global_addresses_;
  std::set<size_t> not_ours_;                            // variables that the library has
  std::set<size_t> filled_before_;                       // of these, those that were there already
  std::vector<std::unique_ptr<std::byte[]>> constants_;  // per routine, lanes aligned
  std::vector<const std::byte*> constant_pointers_;
  std::vector<std::shared_ptr<Function>> functions_;
  std::atomic<bool> has_memory_{false};
};

/// What the calls of CUDA 1 to 3 set for a function's next launch.
struct LegacyLaunch {
  std::array<unsigned, 3> block{1, 1, 1};
  unsigned shared_bytes = 0;
  unsigned parameter_bytes = 0;
  std::vector<std::byte> parameters;
};

/// A kernel of a module.
class Function {
 public:
  Function(Module& module, const Routine& kernel) : module_(module), kernel_(kernel), settings_(kernel) {}

  std::shared_ptr<Module> module() const { return module_.shared_from_this(); }
  const Routine& kernel() const { return kernel_; }
  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }

  FunctionSettings settings() const;
  void set(CUfunction_attribute attribute, int value);
  template <class Change>
  void change_legacy(Change&& change) {
    std::lock_guard lock(mutex_);
    change(legacy_);
  }

 private:
  Module& module_;
  const Routine& kernel_;
  mutable std::mutex mutex_;
  FunctionSettings settings_;
  LegacyLaunch legacy_;
};

/// A program that is loaded into each context when it is first used there.
class Library : public std::enable_shared_from_this<Library> {
 public:
  ~Library();
  static std::shared_ptr<Library> make(std::shared_ptr<const Program> program);
  /// A library of no program: whatever is looked for in it gives the error.
  static std::shared_ptr<Library> make_broken(CUresult error);

  const std::vector<std::shared_ptr<Kernel>>& kernels() const { return kernels_; }
  std::shared_ptr<Kernel> kernel(const std::string& name) const;
  /// The module for a context, loaded now if it was not before.
  std::shared_ptr<Module> module_in(const std::shared_ptr<Context>& context);
  void forget(const Context& context);
  void set_on_functions(const Routine& kernel, CUfunction_attribute attribute, int value, int device);
  /// The modules that were loaded, which end with the library.
  std::vector<std::shared_ptr<Module>> take_modules();

 private:
  std::shared_ptr<const Program> program_;
  CUresult error_ = CUDA_SUCCESS;
  ManagedVariables managed_;
  std::vector<std::shared_ptr<Kernel>> kernels_;
  std::mutex mutex_;
  std::map<const Context*, std::shared_ptr<Module>> modules_;
};

/// A kernel of a library.
class Kernel {
 public:
  Kernel(std::weak_ptr<Library> library, const Routine& routine) : library_(std::move(library)), routine_(routine) {}

  std::shared_ptr<Library> library() const;
  const Routine& routine() const { return routine_; }
  CUkernel handle() { return reinterpret_cast<CUkernel>(this); }
  /// The function in the context, with what was set on the kernel for its device.
  std::shared_ptr<Function> function_in(const std::shared_ptr<Context>& context);

  FunctionSettings settings(int device) const;
  /// Holds for all functions made of the kernel on the device, also those that exist already.
  void set(CUfunction_attribute attribute, int value, int device);
  void apply_settings(Function& function, int device) const;

 private:
  std::weak_ptr<Library> library_;
  const Routine& routine_;
  mutable std::mutex mutex_;
  std::map<int, std::map<CUfunction_attribute, int>> settings_;  // by device
};

using ModuleTable = HandleTable<Module, CUmodule>;
using FunctionTable = HandleTable<Function, CUfunction>;
using LibraryTable = HandleTable<Library, CUlibrary>;
using KernelTable = HandleTable<Kernel, CUkernel>;

/// What a handle of a function means in the current context. Programs also pass kernels here.
std::shared_ptr<Function> find_function(CUfunction handle);

/// Takes the module's handles away, waits for its kernels and gives back its memory.
void unload(const std::shared_ptr<Module>& module);
void unload_modules_of(const Context& context);

}  // namespace fargpu::softgpu
