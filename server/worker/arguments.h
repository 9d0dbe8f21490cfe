#pragma once
// A kernel's parameter block from the wire, as the array of pointers that the driver wants.

#include <cuda.h>

#include <algorithm>
#include <vector>

#include "operations.capnp.h"
#include "session.h"

namespace fargpu::server {

/// Points into the message that the block came with, so it lives no longer than that. A block may end early, as NCCL's do: what it
/// leaves out is zero.
class Arguments {
 public:
  /// Resolves the function (or kernel).
  CUresult read(Session& session, std::uint64_t handle, capnp::Data::Reader block, CUfunction& function) {
    bool kernel = false;
    Handles::Entry* entry = session.handles().find(HandleKind::function, Handle(handle));
    if (!entry) {
      entry = session.handles().find(HandleKind::kernel, Handle(handle));
      kernel = true;
    }
    if (!entry) return CUDA_ERROR_INVALID_HANDLE;
    FunctionLayout* found = nullptr;
    if (const CUresult bad = session.layout(*entry, kernel, found); bad != CUDA_SUCCESS) return bad;
    const FunctionLayout& layout = *found;
    function = reinterpret_cast<CUfunction>(entry->value);
    kj::byte* begin = const_cast<kj::byte*>(block.begin());
    if (block.size() < layout.bytes) {
      whole_.assign(layout.bytes, 0);
      std::copy(block.begin(), block.end(), whole_.begin());
      begin = whole_.data();
    }
    pointers_.clear();
    for (const FunctionLayout::Parameter& parameter : layout.parameters) pointers_.push_back(begin + parameter.offset);
    return CUDA_SUCCESS;
  }
  void** pointers() { return pointers_.data(); }

 private:
  std::vector<void*> pointers_;
  std::vector<kj::byte> whole_;
};

}  // namespace fargpu::server
