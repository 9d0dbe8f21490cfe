// cuSPARSE.

#include <cusparse.h>

#include <map>

#include "harness.h"

namespace {

struct Handle {
  cusparseHandle_t sparse;
  Handle() { OK(cusparseCreate(&sparse)); }
  ~Handle() { cusparseDestroy(sparse); }
  operator cusparseHandle_t() const { return sparse; }
};

// A sparse matrix by rows, with about one element in eight.
struct Csr {
  int rows, columns;
  std::vector<int> offsets{0}, indices;
  std::vector<float> values;

  Csr(int rows, int columns, unsigned seed = 1) : rows(rows), columns(columns) {
    const auto dense = whole<float>(static_cast<size_t>(rows) * columns, seed),
               mask = whole<float>(static_cast<size_t>(rows) * columns, seed + 7);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const size_t at = static_cast<size_t>(i) * columns + j;
        if (mask[at] != 3 || dense[at] == 0) continue;
        indices.push_back(j);
        values.push_back(dense[at]);
      }
      offsets.push_back(static_cast<int>(indices.size()));
    }
  }
  int count() const { return static_cast<int>(values.size()); }
  std::vector<float> times(const std::vector<float>& x) const {
    std::vector<float> y(rows);
    for (int i = 0; i < rows; ++i)
      for (int l = offsets[i]; l < offsets[i + 1]; ++l) y[i] += values[l] * x[indices[l]];
    return y;
  }
};

struct DeviceCsr {
  Memory<int> offsets, indices;
  Memory<float> values;
  cusparseSpMatDescr_t matrix;

  explicit DeviceCsr(const Csr& host) : offsets(host.offsets), indices(host.indices), values(host.values) {
    OK(cusparseCreateCsr(&matrix, host.rows, host.columns, host.count(), offsets.data(), indices.data(), values.data(),
                         CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  }
  ~DeviceCsr() { cusparseDestroySpMat(matrix); }
};

// A lower triangular matrix.
Csr triangle(int size) {
  Csr matrix(size, size);
  Csr lower(0, 0);
  lower.rows = lower.columns = size;
  for (int i = 0; i < size; ++i) {
    for (int l = matrix.offsets[i]; l < matrix.offsets[i + 1]; ++l) {
      if (matrix.indices[l] >= i) continue;
      lower.indices.push_back(matrix.indices[l]);
      lower.values.push_back(matrix.values[l] / 16);
    }
    lower.indices.push_back(i);
    lower.values.push_back(4);
    lower.offsets.push_back(static_cast<int>(lower.indices.size()));
  }
  return lower;
}

constexpr int rows = 300, columns = 200, width = 24;
const float one = 1, zero = 0;

void vector_product(cusparseSpMVAlg_t algorithm) {
  Handle handle;
  Csr host(rows, columns);
  DeviceCsr a(host);
  const auto values = whole<float>(columns, 3);
  Memory<float> x(values), y(rows);
  cusparseDnVecDescr_t vx, vy;
  OK(cusparseCreateDnVec(&vx, columns, x.data(), CUDA_R_32F));
  OK(cusparseCreateDnVec(&vy, rows, y.data(), CUDA_R_32F));
  size_t bytes;
  OK(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a.matrix, vx, &zero, vy, CUDA_R_32F,
                             algorithm, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a.matrix, vx, &zero, vy, CUDA_R_32F, algorithm,
                  buffer.data()));
  expect_near(y.get(), host.times(values), 0);
  show("y", y);
}

void matrix_product(cusparseSpMMAlg_t algorithm) {
  Handle handle;
  Csr host(rows, columns);
  DeviceCsr a(host);
  Memory<float> b(whole<float>(columns * width, 3)), c(rows * width);
  cusparseDnMatDescr_t mb, mc;
  OK(cusparseCreateDnMat(&mb, columns, width, columns, b.data(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  OK(cusparseCreateDnMat(&mc, rows, width, rows, c.data(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  size_t bytes;
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  OK(cusparseSpMM_bufferSize(handle, plain, plain, &one, a.matrix, mb, &zero, mc, CUDA_R_32F, algorithm, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSpMM(handle, plain, plain, &one, a.matrix, mb, &zero, mc, CUDA_R_32F, algorithm, buffer.data()));
  show("c", c);
}

}  // namespace

CASE(times_vector) { vector_product(CUSPARSE_SPMV_ALG_DEFAULT); }
CASE(times_vector_csr1) { vector_product(CUSPARSE_SPMV_CSR_ALG1); }
CASE(times_vector_csr2) { vector_product(CUSPARSE_SPMV_CSR_ALG2); }
CASE(times_matrix) { matrix_product(CUSPARSE_SPMM_ALG_DEFAULT); }
CASE(times_matrix_csr2) { matrix_product(CUSPARSE_SPMM_CSR_ALG2); }

CASE(coordinates) {
  Handle handle;
  Csr host(rows, columns);
  std::vector<int> row_of;
  for (int i = 0; i < rows; ++i)
    for (int l = host.offsets[i]; l < host.offsets[i + 1]; ++l) row_of.push_back(i);
  Memory<int> row_indices(row_of), indices(host.indices), offsets(rows + 1);
  Memory<float> values(host.values), x(whole<float>(columns, 3)), y(rows);
  OK(cusparseXcoo2csr(handle, row_indices.data(), host.count(), rows, offsets.data(), CUSPARSE_INDEX_BASE_ZERO));
  HOLDS(offsets.get() == host.offsets);
  cusparseSpMatDescr_t a;
  cusparseDnVecDescr_t vx, vy;
  OK(cusparseCreateCoo(&a, rows, columns, host.count(), row_indices.data(), indices.data(), values.data(),
                       CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  OK(cusparseCreateDnVec(&vx, columns, x.data(), CUDA_R_32F));
  OK(cusparseCreateDnVec(&vy, rows, y.data(), CUDA_R_32F));
  size_t bytes;
  OK(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, vx, &zero, vy, CUDA_R_32F,
                             CUSPARSE_SPMV_ALG_DEFAULT, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, vx, &zero, vy, CUDA_R_32F,
                  CUSPARSE_SPMV_ALG_DEFAULT, buffer.data()));
  expect_near(y.get(), host.times(whole<float>(columns, 3)), 0);
  show("y", y);
}

CASE(times_sparse) {
  Handle handle;
  Csr left(rows, columns), right(columns, 150, 2);
  DeviceCsr a(left), b(right);
  Memory<int> offsets(rows + 1);
  cusparseSpMatDescr_t c;
  OK(cusparseCreateCsr(&c, rows, 150, 0, offsets.data(), nullptr, nullptr, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                       CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  cusparseSpGEMMDescr_t work;
  OK(cusparseSpGEMM_createDescr(&work));
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  size_t first, second;
  OK(cusparseSpGEMM_workEstimation(handle, plain, plain, &one, a.matrix, b.matrix, &zero, c, CUDA_R_32F,
                                   CUSPARSE_SPGEMM_DEFAULT, work, &first, nullptr));
  Memory<char> first_buffer(first + 1);
  OK(cusparseSpGEMM_workEstimation(handle, plain, plain, &one, a.matrix, b.matrix, &zero, c, CUDA_R_32F,
                                   CUSPARSE_SPGEMM_DEFAULT, work, &first, first_buffer.data()));
  OK(cusparseSpGEMM_compute(handle, plain, plain, &one, a.matrix, b.matrix, &zero, c, CUDA_R_32F,
                            CUSPARSE_SPGEMM_DEFAULT, work, &second, nullptr));
  Memory<char> second_buffer(second + 1);
  OK(cusparseSpGEMM_compute(handle, plain, plain, &one, a.matrix, b.matrix, &zero, c, CUDA_R_32F,
                            CUSPARSE_SPGEMM_DEFAULT, work, &second, second_buffer.data()));
  int64_t got_rows, got_columns, count;
  OK(cusparseSpMatGetSize(c, &got_rows, &got_columns, &count));
  std::printf("%lld elements\n", static_cast<long long>(count));
  Memory<int> indices(count);
  Memory<float> values(count);
  OK(cusparseCsrSetPointers(c, offsets.data(), indices.data(), values.data()));
  OK(cusparseSpGEMM_copy(handle, plain, plain, &one, a.matrix, b.matrix, &zero, c, CUDA_R_32F, CUSPARSE_SPGEMM_DEFAULT,
                         work));
  show("offsets", offsets);
  show("indices", indices);
  show("values", values);
  OK(cusparseSpGEMM_destroyDescr(work));
}

CASE(triangular_solve) {
  Handle handle;
  const Csr host = triangle(rows);
  DeviceCsr a(host);
  auto lower = CUSPARSE_FILL_MODE_LOWER;
  auto diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
  OK(cusparseSpMatSetAttribute(a.matrix, CUSPARSE_SPMAT_FILL_MODE, &lower, sizeof lower));
  OK(cusparseSpMatSetAttribute(a.matrix, CUSPARSE_SPMAT_DIAG_TYPE, &diagonal, sizeof diagonal));
  const auto sides = whole<float>(rows);
  Memory<float> x(sides), y(rows);
  cusparseDnVecDescr_t vx, vy;
  OK(cusparseCreateDnVec(&vx, rows, x.data(), CUDA_R_32F));
  OK(cusparseCreateDnVec(&vy, rows, y.data(), CUDA_R_32F));
  cusparseSpSVDescr_t work;
  OK(cusparseSpSV_createDescr(&work));
  size_t bytes;
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  OK(cusparseSpSV_bufferSize(handle, plain, &one, a.matrix, vx, vy, CUDA_R_32F, CUSPARSE_SPSV_ALG_DEFAULT, work,
                             &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSpSV_analysis(handle, plain, &one, a.matrix, vx, vy, CUDA_R_32F, CUSPARSE_SPSV_ALG_DEFAULT, work,
                           buffer.data()));
  OK(cusparseSpSV_solve(handle, plain, &one, a.matrix, vx, vy, CUDA_R_32F, CUSPARSE_SPSV_ALG_DEFAULT, work));
  OK(cudaDeviceSynchronize());
  expect_near(host.times(y.get()), sides, 1e-4);
  show("y", y);
  OK(cusparseSpSV_destroyDescr(work));
}

CASE(triangular_solve_many) {
  Handle handle;
  DeviceCsr a(triangle(rows));
  auto lower = CUSPARSE_FILL_MODE_LOWER;
  OK(cusparseSpMatSetAttribute(a.matrix, CUSPARSE_SPMAT_FILL_MODE, &lower, sizeof lower));
  Memory<float> b(whole<float>(rows * width)), c(rows * width);
  cusparseDnMatDescr_t mb, mc;
  OK(cusparseCreateDnMat(&mb, rows, width, rows, b.data(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  OK(cusparseCreateDnMat(&mc, rows, width, rows, c.data(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  cusparseSpSMDescr_t work;
  OK(cusparseSpSM_createDescr(&work));
  size_t bytes;
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  OK(cusparseSpSM_bufferSize(handle, plain, plain, &one, a.matrix, mb, mc, CUDA_R_32F, CUSPARSE_SPSM_ALG_DEFAULT, work,
                             &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSpSM_analysis(handle, plain, plain, &one, a.matrix, mb, mc, CUDA_R_32F, CUSPARSE_SPSM_ALG_DEFAULT, work,
                           buffer.data()));
  OK(cusparseSpSM_solve(handle, plain, plain, &one, a.matrix, mb, mc, CUDA_R_32F, CUSPARSE_SPSM_ALG_DEFAULT, work));
  show("c", c);
  OK(cusparseSpSM_destroyDescr(work));
}

CASE(sampled_product) {
  Handle handle;
  DeviceCsr c(Csr(rows, columns));
  Memory<float> a(whole<float>(rows * 32)), b(whole<float>(32 * columns, 2));
  cusparseDnMatDescr_t ma, mb;
  OK(cusparseCreateDnMat(&ma, rows, 32, 32, a.data(), CUDA_R_32F, CUSPARSE_ORDER_ROW));
  OK(cusparseCreateDnMat(&mb, 32, columns, columns, b.data(), CUDA_R_32F, CUSPARSE_ORDER_ROW));
  size_t bytes;
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  OK(cusparseSDDMM_bufferSize(handle, plain, plain, &one, ma, mb, &zero, c.matrix, CUDA_R_32F,
                              CUSPARSE_SDDMM_ALG_DEFAULT, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSDDMM(handle, plain, plain, &one, ma, mb, &zero, c.matrix, CUDA_R_32F, CUSPARSE_SDDMM_ALG_DEFAULT,
                   buffer.data()));
  show("values", c.values);
}

CASE(to_dense_and_back) {
  Handle handle;
  Csr host(rows, columns);
  DeviceCsr a(host);
  Memory<float> dense(rows * columns);
  OK(cudaMemset(dense.data(), 0, rows * columns * sizeof(float)));
  cusparseDnMatDescr_t d;
  OK(cusparseCreateDnMat(&d, rows, columns, columns, dense.data(), CUDA_R_32F, CUSPARSE_ORDER_ROW));
  size_t bytes;
  OK(cusparseSparseToDense_bufferSize(handle, a.matrix, d, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSparseToDense(handle, a.matrix, d, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, buffer.data()));
  show("dense", dense);
  Memory<int> offsets(rows + 1);
  cusparseSpMatDescr_t back;
  OK(cusparseCreateCsr(&back, rows, columns, 0, offsets.data(), nullptr, nullptr, CUSPARSE_INDEX_32I,
                       CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  OK(cusparseDenseToSparse_bufferSize(handle, d, back, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, &bytes));
  Memory<char> other(bytes + 1);
  OK(cusparseDenseToSparse_analysis(handle, d, back, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, other.data()));
  int64_t r, c, count;
  OK(cusparseSpMatGetSize(back, &r, &c, &count));
  HOLDS(count == host.count());
  Memory<int> indices(count);
  Memory<float> values(count);
  OK(cusparseCsrSetPointers(back, offsets.data(), indices.data(), values.data()));
  OK(cusparseDenseToSparse_convert(handle, d, back, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, other.data()));
  OK(cudaDeviceSynchronize());
  // The order within a row is cuSPARSE's.
  HOLDS(offsets.get() == host.offsets);
  const auto found_indices = indices.get();
  const auto found_values = values.get();
  for (int row = 0; row < rows; ++row) {
    std::map<int, float> found, wanted;
    for (int at = host.offsets[row]; at < host.offsets[row + 1]; ++at) {
      found.emplace(found_indices[at], found_values[at]);
      wanted.emplace(host.indices[at], host.values[at]);
    }
    HOLDS(found == wanted);
  }
}

CASE(transposed) {
  Handle handle;
  Csr host(rows, columns);
  DeviceCsr a(host);
  Memory<int> offsets(columns + 1), indices(host.count());
  Memory<float> values(host.count());
  size_t bytes;
  OK(cusparseCsr2cscEx2_bufferSize(handle, rows, columns, host.count(), a.values.data(), a.offsets.data(),
                                   a.indices.data(), values.data(), offsets.data(), indices.data(), CUDA_R_32F,
                                   CUSPARSE_ACTION_NUMERIC, CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_CSR2CSC_ALG_DEFAULT,
                                   &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseCsr2cscEx2(handle, rows, columns, host.count(), a.values.data(), a.offsets.data(), a.indices.data(),
                        values.data(), offsets.data(), indices.data(), CUDA_R_32F, CUSPARSE_ACTION_NUMERIC,
                        CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_CSR2CSC_ALG_DEFAULT, buffer.data()));
  show("offsets", offsets);
  show("indices", indices);
  show("values", values);
}

// Advised against, and in use.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CASE(sparse_vectors) {
  Handle handle;
  std::vector<int> places;
  for (int i = 0; i < 100; ++i) places.push_back(i * 7);
  Memory<int> indices(places);
  Memory<float> values(whole<float>(100)), dense(whole<float>(1000, 2));
  cusparseSpVecDescr_t x;
  cusparseDnVecDescr_t y;
  OK(cusparseCreateSpVec(&x, 1000, 100, indices.data(), values.data(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                         CUDA_R_32F));
  OK(cusparseCreateDnVec(&y, 1000, dense.data(), CUDA_R_32F));
  const float two = 2;
  OK(cusparseAxpby(handle, &two, x, &one, y));
  show("sum", dense);
  float result;
  size_t bytes;
  OK(cusparseSpVV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, x, y, &result, CUDA_R_32F, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSpVV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, x, y, &result, CUDA_R_32F, buffer.data()));
  show("dot", static_cast<double>(result));
  OK(cusparseGather(handle, y, x));
  show("gathered", values);
  OK(cusparseScatter(handle, x, y));
  show("scattered", dense);
}

CASE(tridiagonal) {
  Handle handle;
  std::vector<float> below(rows, -1), middle(rows, 4), above(rows, -1);
  below[0] = above[rows - 1] = 0;
  Memory<float> dl(below), d(middle), du(above), b(whole<float>(rows * 5));
  size_t bytes;
  OK(cusparseSgtsv2_bufferSizeExt(handle, rows, 5, dl.data(), d.data(), du.data(), b.data(), rows, &bytes));
  Memory<char> buffer(bytes + 1);
  OK(cusparseSgtsv2(handle, rows, 5, dl.data(), d.data(), du.data(), b.data(), rows, buffer.data()));
  show("x", b);
}
