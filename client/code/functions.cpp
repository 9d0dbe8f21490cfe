#include "functions.h"

#include <algorithm>
#include <utility>

#include "client/objects/context.h"
#include "leftovers.h"
#include "protocol/errors.h"

namespace fargpu::client {

std::vector<Parameter> evidence_of(std::string_view kernel, std::span<const Parameter> parameters) {
  std::vector<Parameter> runs;
  std::size_t begin = 0;
  const auto add = [&](std::size_t end) {
    begin = (begin + 7) / 8 * 8;  // addresses are aligned
    if (end > begin) runs.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end - begin)});
  };
  bool table = false;
  for (const Parameter& parameter : parameters) {
    table = has_leftovers(kernel, parameter.bytes);
    if (!table) continue;
    add(parameter.offset);
    begin = parameter.offset + parameter.bytes;
  }
  if (!table) add(limits::kernel_parameter_bytes_max);
  return runs;
}

void Function::reset() {
  handle = owner = kernel = Handle();
  name.clear();
  parameters.clear();
  parameter_bytes = 0;
  gaps = false;
  evidence.clear();
  context = 0;
  functions.clear();
  attributes.clear();
  own_attributes = 0;
  changes = 0;
  clusters.clear();
  legacy = {};
  for (auto& size : cluster) size = 0;
  for (auto& known : launched) known = 0;
  next_launched = 0;
  looked_at = false;
  whole_system = false;
}

Function::Attributes Function::read(wire::FunctionAttributesReply::Reader reply) {
  const auto values = reply.getValues();
  const auto results = reply.getResults();
  if (values.size() != results.size()) throw ProtocolError("function attributes without results");
  Attributes attributes;
  for (unsigned i = 0; i < values.size(); ++i) {
    attributes.values.push_back(values[i]);
    attributes.results.push_back(static_cast<CUresult>(results[i]));
  }
  return attributes;
}

Function* Functions::learn(wire::FunctionReply::Reader reply, const Context* context) {
  const Handle handle(reply.getFunction());
  auto& map = handle.well_formed(HandleKind::kernel) ? kernels_ : functions_;
  std::uint32_t its_context = 0;
  {
    const std::lock_guard lock(mutex_);
    // What a function in the module behind a library shares with its kernel is not known.
    const auto module = modules_.find(reply.getOwner());
    if (module != modules_.end() && !module->second.library) its_context = module->second.context;
    if (&map == &kernels_ || its_context != 0) named_[{reply.getOwner(), reply.getName().cStr()}] = handle;
  }
  Function* const known = map.learn(handle, [&](Function& function) {
    function.handle = handle;
    function.owner = Handle(reply.getOwner());
    function.name = reply.getName().cStr();
    function.context = its_context;
    if (context) {
      if (function.owner.kind() == HandleKind::kernel) function.context = context->id();
      if (reply.hasAttributes())
        function.attributes.insert_or_assign(function.attribute_device(context->device),
                                             Function::read(reply.getAttributes()));
    }
    for (const auto p : reply.getParameters()) {
      // The worker is not trusted with our memory: a layout beyond CUDA's limit is cut off here, and so is one whose
      // parameters are nothing or lie in each other, of which there could be any number. At a launch each is read by a
      // pointer of the program's.
      const std::uint64_t end = std::uint64_t{p.getOffset()} + p.getBytes();
      if (end > limits::kernel_parameter_bytes_max || p.getBytes() == 0 || p.getOffset() < function.parameter_bytes)
        break;
      if (p.getOffset() != function.parameter_bytes) function.gaps = true;
      function.parameters.push_back({p.getOffset(), p.getBytes()});
      function.parameter_bytes = std::max(function.parameter_bytes, static_cast<std::uint32_t>(end));
    }
    function.evidence = evidence_of(function.name, function.parameters);
    const auto facts =
        context ? function.attributes.find(function.attribute_device(context->device)) : function.attributes.end();
    function.described = !function.parameters.empty() ||
                         (facts != function.attributes.end() && facts->second.value(CU_FUNC_ATTRIBUTE_NUM_REGS));
  });
  if (!known) throw ProtocolError("the worker named a function by a handle of another kind");
  return known;
}

Function* Functions::find_named(Handle owner, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto known = named_.find({owner.value(), name});
  return known == named_.end() ? nullptr : find(handle_cast<CUfunction>(known->second));
}

void Functions::note_module(Handle handle, const Module& module) {
  if (module.library) library_modules_ = true;
  const std::lock_guard lock(mutex_);
  modules_[handle.value()] = module;
}

std::optional<Functions::Module> Functions::module(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const auto known = modules_.find(handle.value());
  return known == modules_.end() ? std::nullopt : std::optional(known->second);
}

void Functions::forget_owner(Handle owner) {
  std::vector<Handle> modules;
  {
    const std::lock_guard lock(mutex_);
    named_.erase(named_.lower_bound({owner.value(), ""}), named_.lower_bound({owner.value() + 1, ""}));
    modules_.erase(owner.value());
    for (const auto& [module, its] : modules_)
      if (its.library == owner) modules.emplace_back(module);
  }
  for (const Handle module : modules) forget_owner(module);
  // A kernel's function goes with the library as its kernel does.
  std::vector<Handle> kernels, functions;
  kernels_.for_each([&](Handle handle, Function& kernel) {
    if (kernel.owner == owner) kernels.push_back(handle);
  });
  functions_.for_each([&](Handle handle, Function& function) {
    const bool of_kernel = function.owner.kind() == HandleKind::kernel &&
                           std::find(kernels.begin(), kernels.end(), function.owner) != kernels.end();
    if (function.owner == owner || of_kernel) functions.push_back(handle);
  });
  for (const Handle handle : kernels) kernels_.erase(handle);
  for (const Handle handle : functions) functions_.erase(handle);
}

Function* Functions::derive(const Function& kernel, const Context& context) {
  // Code for this device that the driver has looked at, and nothing that was set and that the function might not share.
  const auto facts = kernel.attributes.find(context.device);
  if (facts == kernel.attributes.end() || !facts->second.value(CU_FUNC_ATTRIBUTE_NUM_REGS) || kernel.changes != 0)
    return nullptr;
  if (!kernel.described) return nullptr;
  // Functions that the worker knows already keep their handles.
  if (context.green || library_modules_) return nullptr;
  const auto [handle, function] = functions_.create();
  if (!function) return nullptr;
  function->handle = handle;
  function->owner = function->kernel = kernel.handle;
  function->name = kernel.name;
  function->parameters = kernel.parameters;
  function->parameter_bytes = kernel.parameter_bytes;
  function->gaps = kernel.gaps;
  function->described = true;
  function->evidence = kernel.evidence;
  function->context = context.id();
  function->attributes.emplace(-1, facts->second);
  return function;
}

void Functions::forget_green(std::uint32_t context) {
  kernels_.for_each([&](Handle, Function& kernel) {
    const std::lock_guard lock(kernel.mutex);
    kernel.functions.erase(context);
  });
}

void Functions::forget_context(const Context& context) {
  forget_green(context.id());
  // A kernel's attributes are its device's, and what becomes of them when that is reset is the driver's to say.
  if (context.primary) {
    kernels_.for_each([&](Handle, Function& kernel) {
      const std::lock_guard lock(kernel.mutex);
      kernel.attributes.erase(context.device);
      kernel.changed();
    });
  }
  std::vector<Handle> gone;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [module, its] : modules_)
      if (its.context == context.id()) gone.emplace_back(module);
  }
  for (const Handle module : std::exchange(gone, {})) forget_owner(module);
  functions_.for_each([&](Handle handle, Function& function) {
    if (function.context == context.id()) gone.push_back(handle);
  });
  for (const Handle handle : gone) functions_.erase(handle);
}

std::vector<Handle> Functions::attribute_changed(Function& function, int device, CUfunction_attribute attribute,
                                                 int value, std::uint64_t changes) {
  std::vector<Handle> same{function.handle};
  Handle kernel;
  {
    const std::lock_guard lock(function.mutex);
    const auto known = function.attributes.find(device);
    const auto index = static_cast<std::size_t>(attribute);
    if (function.changes != changes) {
      function.attributes.clear();  // several were set at once: which one came last the worker knows
    } else if (known != function.attributes.end() && index < known->second.values.size()) {
      known->second.values[index] = value;
      known->second.results[index] = CUDA_SUCCESS;
    }
    function.changed();
    kernel = function.kernel;
    for (const auto& [context, handle] : function.functions) same.push_back(handle);
  }
  if (Function* const whole = kernel ? kernels_.find(kernel) : nullptr) {
    same.push_back(kernel);
    const std::lock_guard lock(whole->mutex);
    for (const auto& [context, handle] : whole->functions)
      if (handle != function.handle) same.push_back(handle);
  }
  // A function that was found in the module behind a library is one with a kernel there, and nothing says with which.
  const auto add_namesake = [&](Handle handle, const Function& other) {
    if (&other != &function && other.name == function.name) same.push_back(handle);
  };
  if (library_modules_) {
    kernels_.for_each(add_namesake);
    functions_.for_each(add_namesake);
  }
  for (const Handle handle : same) {
    Function* const relative = find(handle_cast<CUfunction>(handle));
    if (!relative || relative == &function) continue;
    const std::lock_guard lock(relative->mutex);
    relative->attributes.clear();
    relative->changed();
  }
  return same;
}

}  // namespace fargpu::client
