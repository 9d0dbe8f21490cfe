#pragma once
// Kernels whose arguments have addresses in them that the kernels do not use.

#include <cstddef>
#include <string_view>

namespace fargpu::client {

/// Whether this is a kernel that takes tables by value of which each launch fills as much as it needs: what lies behind
/// is whatever the stack held, such as the address of a pinned buffer that was copied from a moment ago. PyTorch, and
/// what was made after it, has two of that kind, and neither is ever given memory of the host. A buffer that is taken
/// for one that kernels use is paged between both sides for as long as it lives, so that copies from it become many
/// times slower. Should such a kernel be given pinned memory after all, without its device pointer having been asked
/// for, the launch ends with CUDA_ERROR_ILLEGAL_ADDRESS.
constexpr bool has_leftovers(std::string_view name, std::size_t parameter_bytes) {
  constexpr std::size_t table_bytes_min = 1024;
  return parameter_bytes >= table_bytes_min && (name.find("CatArrayBatchedCopy") != std::string_view::npos ||
                                                name.find("multi_tensor_apply_kernel") != std::string_view::npos);
}

}  // namespace fargpu::client
