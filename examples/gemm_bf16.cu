// Multiplies two bf16 matrices with cuBLAS and checks a few elements.

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                          \
  do {                                                       \
    const int status = static_cast<int>(call);               \
    if (status != 0) {                                       \
      std::fprintf(stderr, "%s: error %d\n", #call, status); \
      std::exit(1);                                          \
    }                                                        \
  } while (0)

int main() {
  constexpr int n = 1024;
  std::vector<__nv_bfloat16> a(n * n), b(n * n), c(n * n);
  for (int i = 0; i < n * n; ++i) {
    a[i] = __float2bfloat16(static_cast<float>((i * 37 + 11) % 17 - 8) / 8);
    b[i] = __float2bfloat16(static_cast<float>((i * 53 + 5) % 13 - 6) / 4);
  }
  __nv_bfloat16 *da, *db, *dc;
  CHECK(cudaMalloc(&da, n * n * sizeof(*da)));
  CHECK(cudaMalloc(&db, n * n * sizeof(*db)));
  CHECK(cudaMalloc(&dc, n * n * sizeof(*dc)));
  cublasHandle_t handle;
  CHECK(cublasCreate(&handle));
  CHECK(cudaMemcpy(da, a.data(), n * n * sizeof(*da), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), n * n * sizeof(*db), cudaMemcpyHostToDevice));
  const float one = 1, zero = 0;
  CHECK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, da, CUDA_R_16BF, n, db, CUDA_R_16BF, n, &zero, dc,
                     CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  CHECK(cudaMemcpy(c.data(), dc, n * n * sizeof(*dc), cudaMemcpyDeviceToHost));
  for (int probe = 0; probe < 200; ++probe) {
    const int row = probe * 131 % n, column = probe * 197 % n;
    double sum = 0;
    for (int k = 0; k < n; ++k)
      sum += static_cast<double>(__bfloat162float(a[k * n + row])) * __bfloat162float(b[column * n + k]);
    const float got = __bfloat162float(c[column * n + row]);
    if (std::fabs(got - sum) > 0.01 * std::fabs(sum) + 0.5) {
      std::fprintf(stderr, "element (%d, %d) is %f instead of %f\n", row, column, got, sum);
      return 1;
    }
  }
  CHECK(cublasDestroy(handle));
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
  CHECK(cudaFree(dc));
  std::printf("bf16 matrix product of %d x %d: PASSED\n", n, n);
  return 0;
}
