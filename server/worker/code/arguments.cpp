#include "arguments.h"

#include <algorithm>

#include "function_layouts.h"

namespace fargpu::server {

CUresult Arguments::read(FunctionLayouts& layouts, std::uint64_t handle, capnp::Data::Reader block,
                         CUfunction& function, ContextState* kernel_context, bool copy) {
  bool kernel = false;
  Handles::Entry* const entry = layouts.entry(Handle(handle), kernel);
  if (!entry) return CUDA_ERROR_INVALID_HANDLE;
  FunctionLayout* found = nullptr;
  if (const CUresult bad = layouts.find(*entry, kernel, found); bad != CUDA_SUCCESS) return bad;
  const FunctionLayout& layout = *found;
  // The client was told of no parameters where there was no code to ask about: what it would have sent is unknown.
  if (block.size() == 0 && layout.bytes > 0) return CUDA_ERROR_INVALID_VALUE;
  function = reinterpret_cast<CUfunction>(entry->value);
  if (const CUresult bad = layouts.hold_local(*entry, kernel, *found, kernel_context); bad != CUDA_SUCCESS) return bad;
  kj::byte* begin = const_cast<kj::byte*>(block.begin());
  if (copy || block.size() < layout.bytes) {
    whole_.assign(layout.bytes, 0);
    std::copy_n(block.begin(), std::min<std::size_t>(block.size(), layout.bytes), whole_.begin());
    begin = whole_.data();
  }
  pointers_.clear();
  for (const FunctionLayout::Parameter& parameter : layout.parameters) pointers_.push_back(begin + parameter.offset);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server
