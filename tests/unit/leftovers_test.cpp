// Kernels whose arguments are no evidence of memory that they use.

#include <catch2/catch.hpp>

#include "client/code/leftovers.h"

namespace fargpu::client {

TEST_CASE("leftovers: tables of PyTorch that each launch fills in part", "[leftovers]") {
  CHECK(
      has_leftovers("_ZN2at6native54_GLOBAL__N__c89f2d9d_8_Shape_cu_49f7391c_35CatArrayBatchedCopy_alignedK_contigIN"
                    "S1_10OpaqueTypeILj4EEEjLi1ELi128ELi1ELi16EEEvPT_",
                    2800));
  CHECK(has_leftovers("_ZN2at6native55_GLOBAL__N__de6b8f4d_22_ForeachTernaryOp_cu_1d2d3f8c25multi_tensor_apply_kernelI",
                      4072));
}

TEST_CASE("leftovers: arguments of all other kernels are evidence", "[leftovers]") {
  CHECK_FALSE(has_leftovers("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE", 32));
  CHECK_FALSE(has_leftovers("decode_with_tables", 4000));
  CHECK_FALSE(has_leftovers("multi_tensor_apply_kernel", 64));
  CHECK_FALSE(has_leftovers("", 4000));
}

}  // namespace fargpu::client
