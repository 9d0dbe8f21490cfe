#pragma once
// Arguments of kernels that have addresses in them that the kernels do not use.

#include <cstddef>
#include <string_view>

namespace fargpu::client {

/// Whether this parameter is a table that is given by value, and of which each launch fills as much as it needs: what
/// lies behind is whatever the stack held, such as the address of a pinned buffer that was copied from a moment ago.
/// Kernels of PyTorch take such tables, of tensors or of their dimensions, and so do those that were made after its
/// operations on lists of tensors. They are never given memory of the host but by a tensor that a program has made of
/// it for a device, whose address then stands among smaller arguments of other kernels too. A buffer that is taken for
/// one that kernels use is paged between both sides for as long as it lives, so that copies from it become many times
/// slower. Should pinned memory be given to a kernel by such a table alone, without its device pointer having been
/// asked for, the launch ends with CUDA_ERROR_ILLEGAL_ADDRESS.
constexpr bool has_leftovers(std::string_view kernel, std::size_t parameter_bytes) {
  constexpr std::size_t table_bytes_min = 128;  // what is smaller is a list of some pointers, all of them filled in
  return parameter_bytes >= table_bytes_min && (kernel.find("2at6native") != std::string_view::npos ||
                                                kernel.find("multi_tensor_apply_kernel") != std::string_view::npos);
}

}  // namespace fargpu::client
