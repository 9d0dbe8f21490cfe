#include "function_layouts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/worker/memory/driver_memory.h"

namespace fargpu::server {

CUresult FunctionLayouts::find(Handles::Entry& entry, bool kernel, FunctionLayout*& found) {
  found = entry.layout.get();
  if (found) return CUDA_SUCCESS;
  auto layout = std::make_shared<FunctionLayout>();
  for (std::size_t index = 0;; ++index) {
    std::size_t offset = 0, bytes = 0;
    const auto ask = [&] {
      return kernel ? driver_.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(entry.value), index, &offset, &bytes)
                    : driver_.cuFuncGetParamInfo(reinterpret_cast<CUfunction>(entry.value), index, &offset, &bytes);
    };
    CUresult result = ask();
    if (result == CUDA_ERROR_INVALID_CONTEXT && contexts_.borrow()) result = ask();
    if (result == CUDA_ERROR_INVALID_VALUE) break;  // behind the last one
    // Fewer parameters than there are would have the driver read beyond them.
    if (result != CUDA_SUCCESS) return result;
    layout->parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(bytes)});
    layout->bytes = std::max(layout->bytes, static_cast<std::uint32_t>(offset + bytes));
  }
  entry.layout = std::move(layout);
  found = entry.layout.get();
  return CUDA_SUCCESS;
}

CUresult FunctionLayouts::hold_local(const Handles::Entry& entry, bool kernel, FunctionLayout& layout,
                                     ContextState* kernel_context) {
  if (layout.held_by != 0 && (!kernel || (kernel_context && kernel_context->driver_memory->number() == layout.held_by)))
    return CUDA_SUCCESS;
  // A function is of its module's context, wherever it is named.
  const Handles::Entry* const module = handles_.find(HandleKind::module, Handle(entry.owner));
  ContextState* owner = kernel ? kernel_context : contexts_.find(module ? module->context : entry.context);
  if (!owner) owner = kernel_context;
  if (!owner || !contexts_.current())
    return CUDA_SUCCESS;  // as in a graph that is made without one: the driver says what it thinks
                          // of that
  if (!layout.local_bytes) {
    int bytes = 0;
    const CUresult result = kernel ? driver_.cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                                                                  reinterpret_cast<CUkernel>(entry.value),
                                                                  contexts_.driver_ordinal(owner->device))
                                   : driver_.cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                                                                reinterpret_cast<CUfunction>(entry.value));
    if (result != CUDA_SUCCESS) return CUDA_SUCCESS;  // the launch will say the same
    layout.local_bytes = static_cast<std::uint32_t>(std::max(bytes, 0));
  }
  const CUresult result = owner->driver_memory->hold_local(*layout.local_bytes);
  if (result == CUDA_SUCCESS) layout.held_by = owner->driver_memory->number();
  return result;
}

}  // namespace fargpu::server
