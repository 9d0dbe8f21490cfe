#include "functions.h"

#include <algorithm>

#include "context.h"
#include "protocol/errors.h"

namespace fargpu::client {

void Function::reset() {
  handle = owner = kernel = Handle();
  name.clear();
  parameters.clear();
  parameter_bytes = 0;
  gaps = false;
  context = 0;
  functions.clear();
  attributes.clear();
  legacy = {};
  for (auto& size : cluster) size = 0;
  for (auto& known : launched) known = 0;
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
  if (&map == &kernels_) {
    const std::lock_guard lock(mutex_);
    named_[{reply.getOwner(), reply.getName().cStr()}] = handle;
  }
  return map.learn(handle, [&](Function& function) {
    function.handle = handle;
    function.owner = Handle(reply.getOwner());
    function.name = reply.getName().cStr();
    if (context) {
      if (function.owner.kind() == HandleKind::kernel) function.context = context->id();
      if (reply.hasAttributes())
        function.attributes.insert_or_assign(function.attribute_device(context->device), Function::read(reply.getAttributes()));
    }
    for (const auto p : reply.getParameters()) {
      // The worker is not trusted with our memory: a layout beyond CUDA's limit is cut off here, and so is one whose parameters are
      // nothing or lie in each other, of which there could be any number. At a launch each is read by a pointer of the program's.
      const std::uint64_t end = std::uint64_t{p.getOffset()} + p.getBytes();
      if (end > limits::kernel_parameter_bytes_max || p.getBytes() == 0 || p.getOffset() < function.parameter_bytes) break;
      if (p.getOffset() != function.parameter_bytes) function.gaps = true;
      function.parameters.push_back({p.getOffset(), p.getBytes()});
      function.parameter_bytes = std::max(function.parameter_bytes, static_cast<std::uint32_t>(end));
    }
  });
}

Function* Functions::find_named(Handle library, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto known = named_.find({library.value(), name});
  return known == named_.end() ? nullptr : kernels_.find(known->second);
}

void Functions::forget_owner(Handle owner) {
  {
    const std::lock_guard lock(mutex_);
    named_.erase(named_.lower_bound({owner.value(), ""}), named_.lower_bound({owner.value() + 1, ""}));
  }
  for (auto* map : {&functions_, &kernels_}) {
    std::vector<Handle> gone;
    map->for_each([&](Handle handle, Function& function) {
      if (function.owner == owner) gone.push_back(handle);
    });
    for (const Handle handle : gone) map->erase(handle);
  }
}

void Functions::forget_context(std::uint32_t context) {
  kernels_.for_each([&](Handle, Function& kernel) {
    const std::lock_guard lock(kernel.mutex);
    kernel.functions.erase(context);
  });
}

void Functions::attribute_changed(Function& function, int device, CUfunction_attribute attribute, int value) {
  const auto forget_launches = [](Function& f) {
    for (auto& known : f.launched) known = 0;  // what was accepted may not be any more, and the other way round
  };
  std::vector<Handle> relatives;
  {
    const std::lock_guard lock(function.mutex);
    const auto known = function.attributes.find(device);
    const auto index = static_cast<std::size_t>(attribute);
    if (known != function.attributes.end() && index < known->second.values.size()) {
      known->second.values[index] = value;
      known->second.results[index] = CUDA_SUCCESS;
    }
    if (function.kernel) relatives.push_back(function.kernel);
    for (const auto& [context, handle] : function.functions) relatives.push_back(handle);
  }
  forget_launches(function);
  for (const Handle handle : relatives) {
    Function* const relative = find(handle_cast<CUfunction>(handle));
    if (!relative) continue;
    const std::lock_guard lock(relative->mutex);
    relative->attributes.clear();
    forget_launches(*relative);
  }
}

}  // namespace fargpu::client
