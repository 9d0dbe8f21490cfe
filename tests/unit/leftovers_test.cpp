// Arguments of kernels that are no evidence of memory that these use.

#include <catch2/catch.hpp>

#include "client/code/functions.h"
#include "client/code/leftovers.h"
#include "protocol/limits.h"

namespace fargpu::client {
namespace {

constexpr auto strided_copy =
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cuda";

/// [begin, end) of each run of evidence.
std::vector<std::pair<std::size_t, std::size_t>> runs(const char* kernel, const std::vector<Parameter>& parameters) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (const Parameter& run : evidence_of(kernel, parameters)) found.emplace_back(run.offset, run.offset + run.bytes);
  return found;
}

}  // namespace

TEST_CASE("leftovers: tables of PyTorch that each launch fills in part", "[leftovers]") {
  CHECK(has_leftovers("_ZN2at6native54_GLOBAL__N__c89f2d9d_8_Shape_cu_49f7391c_35CatArrayBatchedCopy_alignedK_contig",
                      2720));
  CHECK(has_leftovers("_ZN2at6native55_GLOBAL__N__de6b8f4d_22_ForeachTernaryOp_cu_1d2d3f8c25multi_tensor_apply_kernelI",
                      4048));
  CHECK(has_leftovers("_Z25multi_tensor_apply_kernelI18TensorListMetadataILi4EE11AdamFunctor", 3056));
  CHECK(has_leftovers(strided_copy, 536));
  CHECK(has_leftovers("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIdNS0_14func_wrapper_t", 1056));
}

TEST_CASE("leftovers: arguments of all other kernels are evidence, and small ones of these", "[leftovers]") {
  CHECK_FALSE(has_leftovers("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE", 24));
  CHECK_FALSE(has_leftovers("decode_with_tables", 4000));
  CHECK_FALSE(has_leftovers("multi_tensor_apply_kernel", 64));
  CHECK_FALSE(has_leftovers("", 4000));
}

TEST_CASE("leftovers: what lies beside a table counts, from an aligned byte on", "[leftovers]") {
  constexpr std::size_t end = limits::kernel_parameter_bytes_max;
  using Runs = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(runs(strided_copy, {{0, 4}, {8, 536}}) == Runs{{0, 8}});
  CHECK(runs(strided_copy, {{0, 8}, {8, 132}, {140, 4}, {144, 8}}) == Runs{{0, 8}, {144, end}});
  CHECK(runs(strided_copy, {{0, 536}, {536, 536}}).empty());
  CHECK(runs("decode_with_tables", {{0, 4000}, {4000, 8}}) == Runs{{0, end}});
  CHECK(runs("unknown", {}) == Runs{{0, end}});
}

}  // namespace fargpu::client
