// cuBLAS and cuBLASLt.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <functional>

#include "harness.h"

namespace {

struct Handle {
  cublasHandle_t blas;
  Handle() { OK(cublasCreate(&blas)); }
  ~Handle() { cublasDestroy(blas); }
  operator cublasHandle_t() const { return blas; }
};

constexpr int m = 96, n = 80, k = 112;

template <class T>
std::vector<T> product_on_cpu(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> c(static_cast<size_t>(m) * n);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      for (int l = 0; l < k; ++l) sum += static_cast<double>(a[i + l * m]) * static_cast<double>(b[l + j * k]);
      c[i + static_cast<size_t>(j) * m] = T(sum);
    }
  return c;
}

// A product of whole numbers in one of the mixed types of cublasGemmEx.
template <class In, class Out, class Scale>
void product_ex(cudaDataType in, cudaDataType out, cublasComputeType_t compute, cublasOperation_t first = CUBLAS_OP_N) {
  Handle handle;
  Memory<In> a(whole<In>(m * k)), b(whole<In>(k * n, 2));
  Memory<Out> c(m * n);
  const Scale one(1), zero(0);
  OK(cublasGemmEx(handle, first, CUBLAS_OP_N, m, n, k, &one, a.data(), in, first == CUBLAS_OP_N ? m : k, b.data(), in,
                  k, &zero, c.data(), out, m, compute, CUBLAS_GEMM_DEFAULT));
  show("product", c);
}

}  // namespace

CASE(vectors) {
  Handle handle;
  Memory<float> x(whole<float>(5000)), y(whole<float>(5000, 2));
  const float factor = 3;
  OK(cublasSaxpy(handle, 5000, &factor, x.data(), 1, y.data(), 1));
  OK(cublasSscal(handle, 2500, &factor, y.data(), 2));
  OK(cublasSswap(handle, 100, x.data(), 1, y.data(), 1));
  OK(cublasScopy(handle, 100, x.data(), 1, y.data() + 1000, 1));
  show("y", y);
}

CASE(sums) {
  Handle handle;
  Memory<double> x(whole<double>(10000)), y(whole<double>(10000, 2));
  double dot, norm, sum;
  int largest, least;
  OK(cublasDdot(handle, 10000, x.data(), 1, y.data(), 1, &dot));
  OK(cublasDnrm2(handle, 10000, x.data(), 1, &norm));
  OK(cublasDasum(handle, 10000, x.data(), 1, &sum));
  OK(cublasIdamax(handle, 10000, x.data(), 1, &largest));
  OK(cublasIdamin(handle, 10000, x.data(), 1, &least));
  show("dot", dot);
  show("norm", norm);
  show("sum", sum);
  std::printf("%d %d\n", largest, least);
}

CASE(results_on_device) {
  Handle handle;
  OK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
  Memory<float> x(whole<float>(10000)), y(whole<float>(10000, 2)), result(1);
  OK(cublasSdot(handle, 10000, x.data(), 1, y.data(), 1, result.data()));
  OK(cublasSaxpy(handle, 10000, result.data(), x.data(), 1, y.data(), 1));
  show("y", y);
}

CASE(rotations) {
  Handle handle;
  Memory<float> x(whole<float>(1000)), y(whole<float>(1000, 2));
  const float c = 0.5f, s = 0.25f;
  OK(cublasSrot(handle, 1000, x.data(), 1, y.data(), 1, &c, &s));
  show("x", x);
  show("y", y);
}

CASE(matrix_vector) {
  Handle handle;
  Memory<float> a(whole<float>(m * n)), x(whole<float>(n, 2)), y(m);
  const float one = 1, zero = 0;
  OK(cublasSgemv(handle, CUBLAS_OP_N, m, n, &one, a.data(), m, x.data(), 1, &zero, y.data(), 1));
  show("y", y);
  OK(cublasSger(handle, m, n, &one, y.data(), 1, x.data(), 1, a.data(), m));
  show("a", a);
}

CASE(triangular_vector) {
  Handle handle;
  Memory<double> a(definite<double>(n)), x(whole<double>(n));
  OK(cublasDtrmv(handle, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, a.data(), n, x.data(), 1));
  show("product", x);
  OK(cublasDtrsv(handle, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, a.data(), n, x.data(), 1));
  expect_near(x.get(), whole<double>(n), 1e-10);
  show("solved", x);
}

CASE(product_single) {
  Handle handle;
  const auto a = whole<float>(m * k), b = whole<float>(k * n, 2);
  Memory<float> da(a), db(b), c(m * n);
  const float one = 1, zero = 0;
  OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, da.data(), m, db.data(), k, &zero, c.data(), m));
  expect_near(c.get(), product_on_cpu(a, b), 0);
  show("c", c);
}

CASE(product_double) {
  Handle handle;
  const auto a = fractions<double>(m * k), b = fractions<double>(k * n, 2);
  Memory<double> da(a), db(b), c(m * n);
  const double one = 1, zero = 0;
  OK(cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, da.data(), m, db.data(), k, &zero, c.data(), m));
  expect_near(c.get(), product_on_cpu(a, b), 1e-12);
  show("c", c);
}

CASE(product_complex) {
  Handle handle;
  std::vector<cuComplex> values(m * k);
  const auto parts = whole<float>(2 * m * k);
  for (int i = 0; i < m * k; ++i) values[i] = {parts[2 * i], parts[2 * i + 1]};
  Memory<cuComplex> a(values), c(m * m);
  const cuComplex one{1, 0}, zero{0, 0};
  OK(cublasCgemm(handle, CUBLAS_OP_N, CUBLAS_OP_C, m, m, k, &one, a.data(), m, a.data(), m, &zero, c.data(), m));
  show("c", c);
}

CASE(product_half) { product_ex<__half, __half, __half>(CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F); }
CASE(product_half_wide) { product_ex<__half, float, float>(CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F); }
CASE(product_bf16) { product_ex<__nv_bfloat16, __nv_bfloat16, float>(CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F); }
CASE(product_tf32) { product_ex<float, float, float>(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32); }
CASE(product_int8) { product_ex<int8_t, int32_t, int32_t>(CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUBLAS_OP_T); }
CASE(product_double_ex) { product_ex<double, double, double>(CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F); }

CASE(product_large) {
  Handle handle;
  constexpr int size = 2048;
  Memory<__half> a(whole<__half>(size * size)), b(whole<__half>(size * size, 2)), c(size * size);
  const float one = 1, zero = 0;
  for (int turn = 0; turn < 3; ++turn)
    OK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, size, size, size, &one, a.data(), CUDA_R_16F, size, b.data(),
                    CUDA_R_16F, size, &zero, c.data(), CUDA_R_16F, size, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT_TENSOR_OP));
  show("c", c);
}

CASE(batched_by_stride) {
  Handle handle;
  constexpr int count = 20;
  Memory<float> a(whole<float>(m * k * count)), b(whole<float>(k * n * count, 2)), c(m * n * count);
  const float one = 1, zero = 0;
  OK(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, a.data(), m, m * k, b.data(), k, k * n,
                               &zero, c.data(), m, m * n, count));
  show("c", c);
}

CASE(batched_by_pointer) {
  Handle handle;
  constexpr int count = 12;
  Memory<float> a(whole<float>(m * k * count)), b(whole<float>(k * n * count, 2)), c(m * n * count);
  std::vector<float*> pa, pb, pc;
  for (int i = 0; i < count; ++i) {
    pa.push_back(a.data() + i * m * k);
    pb.push_back(b.data() + (count - 1 - i) * k * n);
    pc.push_back(c.data() + i * m * n);
  }
  Memory<float*> da(pa), db(pb), dc(pc);
  const float one = 1, zero = 0;
  OK(cublasSgemmBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, da.data(), m, db.data(), k, &zero, dc.data(),
                        m, count));
  show("c", c);
}

CASE(symmetric) {
  Handle handle;
  Memory<float> a(whole<float>(n * k)), c(n * n);
  const float one = 1, zero = 0;
  OK(cublasSsyrk(handle, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N, n, k, &one, a.data(), n, &zero, c.data(), n));
  show("rank k", c);
  Memory<float> b(whole<float>(n * m, 3)), d(n * m);
  OK(cublasSsymm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER, n, m, &one, c.data(), n, b.data(), n, &zero,
                 d.data(), n));
  show("product", d);
}

CASE(triangular_solve) {
  Handle handle;
  Memory<double> a(definite<double>(n)), b(whole<double>(n * 16));
  const double one = 1;
  OK(cublasDtrsm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, 16, &one,
                 a.data(), n, b.data(), n));
  show("x", b);
}

CASE(added_and_transposed) {
  Handle handle;
  Memory<float> a(whole<float>(m * n)), b(whole<float>(m * n, 2)), c(m * n);
  const float two = 2, minus = -1;
  OK(cublasSgeam(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, &two, a.data(), m, &minus, b.data(), n, c.data(), n));
  show("c", c);
  Memory<float> d(whole<float>(n, 3));
  OK(cublasSdgmm(handle, CUBLAS_SIDE_LEFT, n, m, c.data(), n, d.data(), 1, c.data(), n));
  show("scaled", c);
}

CASE(factorised_in_batches) {
  Handle handle;
  constexpr int size = 24, count = 10;
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const auto one = definite<double>(size, i + 1);
    values.insert(values.end(), one.begin(), one.end());
  }
  Memory<double> a(values), inverse(values.size());
  std::vector<double*> pa, pi;
  for (int i = 0; i < count; ++i) {
    pa.push_back(a.data() + i * size * size);
    pi.push_back(inverse.data() + i * size * size);
  }
  Memory<double*> da(pa), di(pi);
  Memory<int> pivots(size * count), info(count);
  OK(cublasDgetrfBatched(handle, size, da.data(), size, pivots.data(), info.data(), count));
  OK(cublasDgetriBatched(handle, size, da.data(), size, pivots.data(), di.data(), size, info.data(), count));
  show("factors", a);
  show("pivots", pivots);
  show("inverses", inverse);
}

CASE(several_streams) {
  constexpr int count = 4;
  Handle handles[count];
  cudaStream_t streams[count];
  Memory<float> a(whole<float>(m * k)), b(whole<float>(k * n, 2)), c(m * n * count);
  const float zero = 0;
  for (int i = 0; i < count; ++i) {
    OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    OK(cublasSetStream(handles[i], streams[i]));
  }
  OK(cudaDeviceSynchronize());
  for (int turn = 0; turn < 5; ++turn)
    for (int i = 0; i < count; ++i) {
      const float factor = static_cast<float>(i + 1);
      OK(cublasSgemm(handles[i], CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &factor, a.data(), m, b.data(), k, &zero,
                     c.data() + i * m * n, m));
    }
  for (cudaStream_t stream : streams) OK(cudaStreamSynchronize(stream));
  show("c", c);
}

CASE(in_a_graph) {
  Handle handle;
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Memory<char> workspace(32 << 20);
  OK(cublasSetStream(handle, stream));
  OK(cublasSetWorkspace(handle, workspace.data(), workspace.count()));
  Memory<float> a(whole<float>(64 * 64)), c(whole<float>(64 * 64, 2));
  const float one = 0.125f, half = 0.5f;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaDeviceSynchronize());
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, 64, 64, 64, &one, a.data(), 64, a.data(), 64, &half, c.data(), 64));
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 6; ++i) OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  show("c", c);
}

CASE(wrong_arguments) {
  Handle handle;
  Memory<float> a(100);
  const float one = 1;
  std::printf("%d\n", cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 10, 10, 10, &one, a.data(), 5, a.data(), 10, &one,
                                  a.data(), 10));
  std::printf("%d\n", cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, -1, 10, 10, &one, a.data(), 10, a.data(), 10, &one,
                                  a.data(), 10));
  int version;
  OK(cublasGetVersion(handle, &version));
  std::printf("version %d\n", version);
}

// --- cuBLASLt -------------------------------------------------------------------------------------------------------

namespace {

struct Matrix {
  cudaDataType type;
  int rows, columns;
};

// D = epilogue(A^T B), with the algorithm that is advised first.
void matmul(Matrix a, const void* pa, Matrix b, const void* pb, Matrix d, void* pd, cublasComputeType_t compute,
            cudaDataType scale, const void* one, const void* zero,
            const std::function<void(cublasLtMatmulDesc_t)>& more = {}) {
  cublasLtHandle_t lt;
  OK(cublasLtCreate(&lt));
  cublasLtMatmulDesc_t operation;
  OK(cublasLtMatmulDescCreate(&operation, compute, scale));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  OK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  if (more) more(operation);
  cublasLtMatrixLayout_t la, lb, ld;
  OK(cublasLtMatrixLayoutCreate(&la, a.type, a.rows, a.columns, a.rows));
  OK(cublasLtMatrixLayoutCreate(&lb, b.type, b.rows, b.columns, b.rows));
  OK(cublasLtMatrixLayoutCreate(&ld, d.type, d.rows, d.columns, d.rows));
  cublasLtMatmulPreference_t preference;
  OK(cublasLtMatmulPreferenceCreate(&preference));
  Memory<char> workspace(16 << 20);
  const size_t bytes = workspace.count();
  OK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  cublasLtMatmulHeuristicResult_t found[4];
  int count = 0;
  OK(cublasLtMatmulAlgoGetHeuristic(lt, operation, la, lb, ld, ld, preference, 4, found, &count));
  HOLDS(count > 0);
  std::printf("%d algorithms\n", count);
  OK(cublasLtMatmul(lt, operation, one, pa, la, pb, lb, zero, pd, ld, pd, ld, &found[0].algo, workspace.data(), bytes,
                    nullptr));
  OK(cudaDeviceSynchronize());
  OK(cublasLtDestroy(lt));
}

constexpr int lm = 128, ln = 64, lk = 256;

template <class In, class Out>
void lt_product(cudaDataType in, cudaDataType out, const std::function<void(cublasLtMatmulDesc_t)>& more = {}) {
  Memory<In> a(whole<In>(lm * lk)), b(whole<In>(lk * ln, 2));
  Memory<Out> d(lm * ln);
  const float one = 1, zero = 0;
  matmul({in, lk, lm}, a.data(), {in, lk, ln}, b.data(), {out, lm, ln}, d.data(), CUBLAS_COMPUTE_32F, CUDA_R_32F, &one,
         &zero, more);
  show("d", d);
}

void lt_epilogue(cublasLtEpilogue_t epilogue) {
  Memory<__half> bias(whole<__half>(lm, 5));
  lt_product<__half, __half>(CUDA_R_16F, CUDA_R_16F, [&](cublasLtMatmulDesc_t operation) {
    OK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    const void* pointer = bias.data();
    OK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof pointer));
  });
}

}  // namespace

CASE(lt_half) { lt_product<__half, __half>(CUDA_R_16F, CUDA_R_16F); }
CASE(lt_bf16) { lt_product<__nv_bfloat16, __nv_bfloat16>(CUDA_R_16BF, CUDA_R_16BF); }
CASE(lt_single) { lt_product<float, float>(CUDA_R_32F, CUDA_R_32F); }
CASE(lt_fp8) { lt_product<__nv_fp8_e4m3, __nv_bfloat16>(CUDA_R_8F_E4M3, CUDA_R_16BF); }
CASE(lt_bias) { lt_epilogue(CUBLASLT_EPILOGUE_BIAS); }
CASE(lt_relu_bias) { lt_epilogue(CUBLASLT_EPILOGUE_RELU_BIAS); }
CASE(lt_gelu_bias) { lt_epilogue(CUBLASLT_EPILOGUE_GELU_BIAS); }
CASE(lt_int8) {
  Memory<int8_t> a(whole<int8_t>(lm * lk)), b(whole<int8_t>(lk * ln, 2));
  Memory<int32_t> d(lm * ln);
  const int32_t one = 1, zero = 0;
  matmul({CUDA_R_8I, lk, lm}, a.data(), {CUDA_R_8I, lk, ln}, b.data(), {CUDA_R_32I, lm, ln}, d.data(),
         CUBLAS_COMPUTE_32I, CUDA_R_32I, &one, &zero);
  show("d", d);
}
CASE(lt_transformed) {
  cublasLtHandle_t lt;
  OK(cublasLtCreate(&lt));
  cublasLtMatrixTransformDesc_t transform;
  OK(cublasLtMatrixTransformDescCreate(&transform, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  OK(cublasLtMatrixTransformDescSetAttribute(transform, CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, &transposed,
                                             sizeof transposed));
  cublasLtMatrixLayout_t from, to;
  OK(cublasLtMatrixLayoutCreate(&from, CUDA_R_32F, m, n, m));
  OK(cublasLtMatrixLayoutCreate(&to, CUDA_R_32F, n, m, n));
  Memory<float> a(whole<float>(m * n)), b(m * n);
  const float two = 2, zero = 0;
  OK(cublasLtMatrixTransform(lt, transform, &two, a.data(), from, &zero, nullptr, nullptr, b.data(), to, nullptr));
  show("b", b);
}
