#include "driver/module.h"

#include <algorithm>
#include <cstring>

#include "common/limits.h"
#include "driver/driver.h"
#include "driver/occupancy.h"
#include "exec/memory_view.h"

namespace fargpu::softgpu {
namespace {

/// Copies to memory of a device that is known to be there.
void write_device(DeviceAddress address, const std::byte* from, uint64_t bytes) {
  auto spans = addresses().spans(address, bytes);
  require(spans.has_value());
  for (const MemorySpan& span : *spans) {
    std::memcpy(span.host, from, span.bytes);
    from += span.bytes;
  }
}

uint64_t function_address(uint32_t routine) { return window_base(Window::code) + routine * function_address_step; }

}  // namespace

// ---- settings ------------------------------------------------------------------------------------------------------

FunctionSettings::FunctionSettings(const Routine& kernel)
    : dynamic_shared_bytes_max(static_cast<int>(kernel.static_shared_bytes >= shared_bytes_per_block
                                                    ? 0
                                                    : shared_bytes_per_block - kernel.static_shared_bytes)) {
  if (kernel.required_cluster) {
    required_cluster[0] = static_cast<int>(kernel.required_cluster->x);
    required_cluster[1] = static_cast<int>(kernel.required_cluster->y);
    required_cluster[2] = static_cast<int>(kernel.required_cluster->z);
  }
  cluster_must_be_set = kernel.is_cluster_explicit && !kernel.required_cluster;
}

int FunctionSettings::get(CUfunction_attribute attribute, const Routine& kernel) const {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: {
      uint64_t threads = threads_per_block_max;
      if (kernel.max_threads) threads = std::min<uint64_t>(threads, kernel.max_threads->count());
      if (kernel.required_threads) threads = std::min<uint64_t>(threads, kernel.required_threads->count());
      while (threads > 32 && blocks_per_multiprocessor(kernel, threads, 0) == 0) threads = (threads - 1) / 32 * 32;
      return static_cast<int>(threads);
    }
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: return static_cast<int>(kernel.static_shared_bytes);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: return 0;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: return static_cast<int>(kernel.stack_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return static_cast<int>(kernel.register_count);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: return static_cast<int>(kernel.target_number);
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return compute_capability_number;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return dynamic_shared_bytes_max;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return preferred_shared_carveout;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: return cluster_must_be_set;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: return required_cluster[0];
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: return required_cluster[1];
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: return required_cluster[2];
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: return non_portable_cluster_allowed;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return cluster_scheduling_policy;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

void FunctionSettings::set(CUfunction_attribute attribute, int value, const Routine& kernel) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      require(value >= 0 && static_cast<uint64_t>(value) + kernel.static_shared_bytes <= shared_bytes_per_block_optin);
      dynamic_shared_bytes_max = value;
      return;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      require(value >= -1 && value <= 100);
      preferred_shared_carveout = value;
      return;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      // What a kernel was compiled for cannot be changed.
      require(!kernel.required_cluster && value >= 0);
      required_cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
      return;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      require(value == 0 || value == 1);
      non_portable_cluster_allowed = value != 0;
      return;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      require(value >= 0 && value <= CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING);
      cluster_scheduling_policy = value;
      return;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

// ---- modules -------------------------------------------------------------------------------------------------------

namespace {

// Contexts are numbered from one.
constexpr uint64_t no_context = 0;

void free_if_there(DeviceAddress address) {
  try {
    addresses().free(address);
  } catch (const Failure&) {
    // Already gone with its context.
  }
}

}  // namespace

std::shared_ptr<Module> Module::load(std::shared_ptr<Context> context, std::shared_ptr<const Program> program,
                                     std::weak_ptr<Library> library, ManagedVariables* shared) {
  std::shared_ptr<Module> module(new Module(std::move(context), std::move(program), std::move(library)));
  module->has_memory_ = true;
  module->allocate_globals(shared);
  module->fill_globals();
  module->fill_constants();
  for (const auto& routine : module->program_->routines)
    if (routine->is_kernel) module->functions_.push_back(std::make_shared<Function>(*module, *routine));
  ModuleTable::instance().add(module);
  for (const auto& function : module->functions_) FunctionTable::instance().add(function);
  return module;
}

Module::~Module() { release_memory(); }

void Module::allocate_globals(ManagedVariables* shared) {
  int device = context_->device().ordinal();
  for (size_t i = 0; i < program_->globals.size(); ++i) {
    const GlobalVariable& global = program_->globals[i];
    // Variables without elements still have an address of their own.
    uint64_t bytes = std::max<uint64_t>(global.bytes, 1);
    if (global.is_managed && shared != nullptr) {
      // For all devices, whichever module is loaded first and ends first.
      not_ours_.insert(i);
      auto [place, is_new] = shared->try_emplace(i);
      if (is_new) place->second = addresses().allocate_managed(device, no_context, bytes, CU_MEM_ATTACH_GLOBAL);
      else filled_before_.insert(i);
      global_addresses_.push_back(place->second);
      continue;
    }
    global_addresses_.push_back(global.is_managed
                                    ? addresses().allocate_managed(device, context_->id(), bytes, CU_MEM_ATTACH_GLOBAL)
                                    : addresses().allocate(device, context_->id(), bytes));
    // Memory of a slab may have been used before.
    std::vector<std::byte> zeros(std::min<uint64_t>(bytes, uint64_t{1} << 20));
    if (bytes <= zeros.size()) write_device(global_addresses_.back(), zeros.data(), bytes);
  }
}

void Module::fill_globals() {
  for (size_t i = 0; i < program_->globals.size(); ++i) {
    if (filled_before_.contains(i)) continue;
    const GlobalVariable& global = program_->globals[i];
    std::vector<std::byte> contents = global.contents;
    for (const GlobalVariable::Pointer& pointer : global.pointers) {
      uint64_t address = pointer.is_function ? function_address(pointer.target) : global_addresses_[pointer.target];
      address += static_cast<uint64_t>(pointer.addend);
      address >>= 8 * pointer.first_byte;
      std::memcpy(contents.data() + pointer.offset, &address, pointer.width);
    }
    if (!contents.empty()) write_device(global_addresses_[i], contents.data(), contents.size());
  }
}

void Module::fill_constants() {
  for (const auto& routine : program_->routines) {
    size_t bytes = routine->constants.size();
    // Aligned by hand: lanes are expected on multiples of 64.
    auto storage = std::make_unique<std::byte[]>(bytes + 64);
    auto misalignment = reinterpret_cast<uintptr_t>(storage.get()) % 64;
    std::byte* constants = storage.get() + (64 - misalignment) % 64;
    if (bytes != 0) std::memcpy(constants, routine->constants.data(), bytes);
    for (const ConstantRelocation& relocation : routine->relocations) {
      uint64_t base = relocation.kind == ConstantRelocation::Kind::function ? function_address(relocation.index)
                                                                            : global_addresses_[relocation.index];
      for (int lane = 0; lane < warp_size; ++lane) {
        std::byte* at = constants + relocation.offset + lane * relocation.width;
        uint64_t value = 0;
        std::memcpy(&value, at, relocation.width);
        value += base;
        std::memcpy(at, &value, relocation.width);
      }
    }
    constants_.push_back(std::move(storage));
    constant_pointers_.push_back(constants);
  }
}

void Module::release_memory() {
  if (!has_memory_.exchange(false)) return;
  for (size_t i = 0; i < global_addresses_.size(); ++i)
    if (!not_ours_.contains(i)) free_if_there(global_addresses_[i]);
}

std::shared_ptr<Function> Module::function(const std::string& name) const {
  for (const auto& function : functions_)
    if (function->kernel().name == name) return function;
  throw Failure(CUDA_ERROR_NOT_FOUND);
}

Module::Global Module::global(const std::string& name, bool managed_only) const {
  auto found = program_->global_index.find(name);
  require(found != program_->global_index.end(), CUDA_ERROR_NOT_FOUND);
  const GlobalVariable& global = program_->globals[found->second];
  require(!managed_only || global.is_managed, CUDA_ERROR_NOT_FOUND);
  return {global_addresses_[found->second], global.bytes};
}

// ---- functions -----------------------------------------------------------------------------------------------------

FunctionSettings Function::settings() const {
  std::lock_guard lock(mutex_);
  return settings_;
}

void Function::set(CUfunction_attribute attribute, int value) {
  std::lock_guard lock(mutex_);
  settings_.set(attribute, value, kernel_);
}

std::shared_ptr<Function> find_function(CUfunction handle) {
  if (auto function = FunctionTable::instance().find(handle)) return function;
  auto kernel = KernelTable::instance().get(reinterpret_cast<CUkernel>(handle));
  return kernel->function_in(current_context()->home());
}

// ---- libraries -----------------------------------------------------------------------------------------------------

std::shared_ptr<Library> Library::make(std::shared_ptr<const Program> program) {
  auto library = std::make_shared<Library>();
  library->program_ = std::move(program);
  for (const auto& routine : library->program_->routines)
    if (routine->is_kernel)
      library->kernels_.push_back(std::make_shared<Kernel>(std::weak_ptr<Library>(library), *routine));
  LibraryTable::instance().add(library);
  for (const auto& kernel : library->kernels_) KernelTable::instance().add(kernel);
  return library;
}

Library::~Library() {
  for (const auto& [index, address] : managed_) free_if_there(address);
}

std::shared_ptr<Library> Library::make_broken(CUresult error) {
  auto library = std::make_shared<Library>();
  library->error_ = error;
  LibraryTable::instance().add(library);
  return library;
}

std::shared_ptr<Kernel> Library::kernel(const std::string& name) const {
  require(error_ == CUDA_SUCCESS, error_);
  for (const auto& kernel : kernels_)
    if (kernel->routine().name == name) return kernel;
  throw Failure(CUDA_ERROR_NOT_FOUND);
}

std::shared_ptr<Module> Library::module_in(const std::shared_ptr<Context>& context) {
  require(error_ == CUDA_SUCCESS, error_);
  std::lock_guard lock(mutex_);
  std::shared_ptr<Module>& module = modules_[context.get()];
  if (module != nullptr) return module;
  module = Module::load(context, program_, weak_from_this(), &managed_);
  for (size_t i = 0; i < kernels_.size(); ++i)
    kernels_[i]->apply_settings(*module->functions()[i], context->device().ordinal());
  return module;
}

void Library::set_on_functions(const Routine& kernel, CUfunction_attribute attribute, int value, int device) {
  std::lock_guard lock(mutex_);
  for (auto& [context, module] : modules_)
    if (module != nullptr && context->device().ordinal() == device)
      for (const auto& function : module->functions())
        if (&function->kernel() == &kernel) function->set(attribute, value);
}

void Library::forget(const Context& context) {
  std::lock_guard lock(mutex_);
  modules_.erase(&context);
}

std::vector<std::shared_ptr<Module>> Library::take_modules() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Module>> modules;
  for (auto& [context, module] : modules_) modules.push_back(std::move(module));
  modules_.clear();
  return modules;
}

std::shared_ptr<Library> Kernel::library() const {
  std::shared_ptr<Library> library = library_.lock();
  require(library != nullptr, CUDA_ERROR_INVALID_HANDLE);
  return library;
}

std::shared_ptr<Function> Kernel::function_in(const std::shared_ptr<Context>& context) {
  std::shared_ptr<Module> module = library()->module_in(context);
  for (const auto& function : module->functions())
    if (&function->kernel() == &routine_) return function;
  throw Failure(CUDA_ERROR_NOT_FOUND);
}

FunctionSettings Kernel::settings(int device) const {
  FunctionSettings result(routine_);
  std::lock_guard lock(mutex_);
  if (auto found = settings_.find(device); found != settings_.end())
    for (auto [attribute, value] : found->second) result.set(attribute, value, routine_);
  return result;
}

void Kernel::set(CUfunction_attribute attribute, int value, int device) {
  FunctionSettings(routine_).set(attribute, value, routine_);  // throws if it may not be set
  {
    std::lock_guard lock(mutex_);
    settings_[device][attribute] = value;
  }
  library()->set_on_functions(routine_, attribute, value, device);
}

void Kernel::apply_settings(Function& function, int device) const {
  std::lock_guard lock(mutex_);
  if (auto found = settings_.find(device); found != settings_.end())
    for (auto [attribute, value] : found->second) function.set(attribute, value);
}

// ---- unloading -----------------------------------------------------------------------------------------------------

void unload(const std::shared_ptr<Module>& module) {
  for (const auto& function : module->functions()) FunctionTable::instance().remove(function->handle());
  ModuleTable::instance().remove(module->handle());
  if (module->context()->is_alive())
    for (const auto& task : module->context()->everything()) task->wait();
  module->release_memory();
}

void unload_modules_of(const Context& context) {
  auto modules =
      ModuleTable::instance().remove_if([&](const Module& module) { return module.context().get() == &context; });
  for (const auto& module : modules) {
    if (auto library = module->library()) library->forget(context);
    unload(module);
  }
}

}  // namespace fargpu::softgpu
