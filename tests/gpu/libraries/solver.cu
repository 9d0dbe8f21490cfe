// cuSOLVER: dense matrices by the older and by the 64-bit interface, batches, sparse systems.

#include <cusolverDn.h>
#include <cusolverSp.h>

#include "harness.h"

namespace {

struct Handle {
  cusolverDnHandle_t dense;
  cusolverDnParams_t parameters;
  Handle() {
    OK(cusolverDnCreate(&dense));
    OK(cusolverDnCreateParams(&parameters));
  }
  ~Handle() {
    cusolverDnDestroyParams(parameters);
    cusolverDnDestroy(dense);
  }
  operator cusolverDnHandle_t() const { return dense; }
};

constexpr int n = 100, right_sides = 6;

// A x - b for the matrix and right sides that the cases solve for.
void expect_solved(const std::vector<double>& a, const std::vector<double>& x, const std::vector<double>& b,
                   int rows = n) {
  std::vector<double> got(b.size());
  const int columns = static_cast<int>(b.size()) / rows;
  for (int c = 0; c < columns; ++c)
    for (int i = 0; i < rows; ++i) {
      double sum = 0;
      for (int j = 0; j < rows; ++j) sum += a[i + static_cast<size_t>(j) * rows] * x[j + static_cast<size_t>(c) * rows];
      got[i + static_cast<size_t>(c) * rows] = sum;
    }
  expect_near(got, b, 1e-9);
}

}  // namespace

CASE(lu) {
  Handle handle;
  const auto values = definite<double>(n), sides = whole<double>(n * right_sides);
  Memory<double> a(values), b(sides);
  int length;
  OK(cusolverDnDgetrf_bufferSize(handle, n, n, a.data(), n, &length));
  Memory<double> work(length);
  Memory<int> pivots(n), info(1);
  OK(cusolverDnDgetrf(handle, n, n, a.data(), n, work.data(), pivots.data(), info.data()));
  OK(cusolverDnDgetrs(handle, CUBLAS_OP_N, n, right_sides, a.data(), n, pivots.data(), b.data(), n, info.data()));
  expect_solved(values, b.get(), sides);
  show("pivots", pivots);
  show("x", b);
}

CASE(cholesky) {
  Handle handle;
  const auto values = definite<double>(n), sides = whole<double>(n * right_sides);
  Memory<double> a(values), b(sides);
  int length;
  OK(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, a.data(), n, &length));
  Memory<double> work(length);
  Memory<int> info(1);
  OK(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, a.data(), n, work.data(), length, info.data()));
  OK(cusolverDnDpotrs(handle, CUBLAS_FILL_MODE_LOWER, n, right_sides, a.data(), n, b.data(), n, info.data()));
  expect_solved(values, b.get(), sides);
  show("x", b);
}

CASE(not_definite) {
  Handle handle;
  auto values = definite<double>(n);
  values[50 + 50 * n] = -1;
  Memory<double> a(values);
  int length;
  OK(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, a.data(), n, &length));
  Memory<double> work(length);
  Memory<int> info(1);
  OK(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, a.data(), n, work.data(), length, info.data()));
  HOLDS(info.get()[0] == 51);
  show("info", info);
}

CASE(qr) {
  Handle handle;
  Memory<float> a(fractions<float>(n * 40)), tau(40);
  int length, other;
  OK(cusolverDnSgeqrf_bufferSize(handle, n, 40, a.data(), n, &length));
  OK(cusolverDnSorgqr_bufferSize(handle, n, 40, 40, a.data(), n, tau.data(), &other));
  Memory<float> work(length > other ? length : other);
  Memory<int> info(1);
  OK(cusolverDnSgeqrf(handle, n, 40, a.data(), n, tau.data(), work.data(), length, info.data()));
  show("factors", a);
  OK(cusolverDnSorgqr(handle, n, 40, 40, a.data(), n, tau.data(), work.data(), other, info.data()));
  show("q", a);
}

CASE(eigenvalues) {
  Handle handle;
  Memory<double> a(definite<double>(n)), values(n);
  int length;
  OK(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a.data(), n,
                                 values.data(), &length));
  Memory<double> work(length);
  Memory<int> info(1);
  OK(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a.data(), n, values.data(),
                      work.data(), length, info.data()));
  show("values", values);
  show("vectors", a);
}

CASE(eigenvalues_by_jacobi) {
  Handle handle;
  syevjInfo_t parameters;
  OK(cusolverDnCreateSyevjInfo(&parameters));
  constexpr int size = 20, count = 8;
  std::vector<float> all;
  for (int i = 0; i < count; ++i) {
    const auto one = definite<float>(size, i + 1);
    all.insert(all.end(), one.begin(), one.end());
  }
  Memory<float> a(all), values(size * count);
  int length;
  OK(cusolverDnSsyevjBatched_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, size, a.data(), size,
                                        values.data(), &length, parameters, count));
  Memory<float> work(length);
  Memory<int> info(count);
  OK(cusolverDnSsyevjBatched(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, size, a.data(), size,
                             values.data(), work.data(), length, info.data(), parameters, count));
  show("values", values);
  OK(cusolverDnDestroySyevjInfo(parameters));
}

CASE(singular_values) {
  Handle handle;
  constexpr int rows = 80, columns = 50;
  Memory<double> a(fractions<double>(rows * columns)), s(columns), u(rows * rows), v(columns * columns), real(columns);
  int length;
  OK(cusolverDnDgesvd_bufferSize(handle, rows, columns, &length));
  Memory<double> work(length);
  Memory<int> info(1);
  OK(cusolverDnDgesvd(handle, 'A', 'A', rows, columns, a.data(), rows, s.data(), u.data(), rows, v.data(), columns,
                      work.data(), length, real.data(), info.data()));
  show("s", s);
  show("u", u);
}

CASE(singular_values_by_jacobi) {
  Handle handle;
  gesvdjInfo_t parameters;
  OK(cusolverDnCreateGesvdjInfo(&parameters));
  constexpr int size = 48;
  Memory<float> a(fractions<float>(size * size)), s(size), u(size * size), v(size * size);
  int length;
  OK(cusolverDnSgesvdj_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, 0, size, size, a.data(), size, s.data(), u.data(),
                                  size, v.data(), size, &length, parameters));
  Memory<float> work(length);
  Memory<int> info(1);
  OK(cusolverDnSgesvdj(handle, CUSOLVER_EIG_MODE_VECTOR, 0, size, size, a.data(), size, s.data(), u.data(), size,
                       v.data(), size, work.data(), length, info.data(), parameters));
  show("s", s);
  OK(cusolverDnDestroyGesvdjInfo(parameters));
}

CASE(cholesky_batched) {
  Handle handle;
  constexpr int size = 16, count = 30;
  std::vector<float> all;
  for (int i = 0; i < count; ++i) {
    const auto one = definite<float>(size, i + 1);
    all.insert(all.end(), one.begin(), one.end());
  }
  Memory<float> a(all);
  std::vector<float*> pointers;
  for (int i = 0; i < count; ++i) pointers.push_back(a.data() + i * size * size);
  Memory<float*> on_device(pointers);
  Memory<int> info(count);
  OK(cusolverDnSpotrfBatched(handle, CUBLAS_FILL_MODE_LOWER, size, on_device.data(), size, info.data(), count));
  show("factors", a);
  show("info", info);
}

CASE(lu_64) {
  Handle handle;
  const auto values = definite<double>(n), sides = whole<double>(n * right_sides);
  Memory<double> a(values), b(sides);
  size_t device_bytes, host_bytes;
  OK(cusolverDnXgetrf_bufferSize(handle, handle.parameters, n, n, CUDA_R_64F, a.data(), n, CUDA_R_64F, &device_bytes,
                                 &host_bytes));
  Memory<char> on_device(device_bytes + 1);
  std::vector<char> on_host(host_bytes + 1);
  Memory<int64_t> pivots(n);
  Memory<int> info(1);
  OK(cusolverDnXgetrf(handle, handle.parameters, n, n, CUDA_R_64F, a.data(), n, pivots.data(), CUDA_R_64F,
                      on_device.data(), device_bytes, on_host.data(), host_bytes, info.data()));
  OK(cusolverDnXgetrs(handle, handle.parameters, CUBLAS_OP_N, n, right_sides, CUDA_R_64F, a.data(), n, pivots.data(),
                      CUDA_R_64F, b.data(), n, info.data()));
  expect_solved(values, b.get(), sides);
  show("x", b);
}

CASE(eigenvalues_64) {
  Handle handle;
  Memory<float> a(definite<float>(n)), values(n);
  size_t device_bytes, host_bytes;
  OK(cusolverDnXsyevd_bufferSize(handle, handle.parameters, CUSOLVER_EIG_MODE_NOVECTOR, CUBLAS_FILL_MODE_UPPER, n,
                                 CUDA_R_32F, a.data(), n, CUDA_R_32F, values.data(), CUDA_R_32F, &device_bytes,
                                 &host_bytes));
  Memory<char> on_device(device_bytes + 1);
  std::vector<char> on_host(host_bytes + 1);
  Memory<int> info(1);
  OK(cusolverDnXsyevd(handle, handle.parameters, CUSOLVER_EIG_MODE_NOVECTOR, CUBLAS_FILL_MODE_UPPER, n, CUDA_R_32F,
                      a.data(), n, CUDA_R_32F, values.data(), CUDA_R_32F, on_device.data(), device_bytes,
                      on_host.data(), host_bytes, info.data()));
  show("values", values);
}

CASE(refined) {
  // A system solved in lower precision and refined.
  Handle handle;
  const auto values = definite<double>(n), sides = whole<double>(n);
  Memory<double> a(values), b(sides), x(n);
  size_t bytes;
  OK(cusolverDnDSgesv_bufferSize(handle, n, 1, nullptr, n, nullptr, nullptr, n, nullptr, n, nullptr, &bytes));
  Memory<char> work(bytes + 1);
  Memory<int> pivots(n), info(1);
  int iterations = 0;
  OK(cusolverDnDSgesv(handle, n, 1, a.data(), n, pivots.data(), b.data(), n, x.data(), n, work.data(), bytes,
                      &iterations, info.data()));
  std::printf("%d\n", iterations > 0);
  expect_solved(values, x.get(), sides);
  show("x", x);
}

// Advised against in favour of another library, and in use.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CASE(sparse) {
  // A tridiagonal system by sparse QR.
  cusolverSpHandle_t handle;
  cusparseMatDescr_t description;
  OK(cusolverSpCreate(&handle));
  OK(cusparseCreateMatDescr(&description));
  std::vector<int> rows{0}, columns;
  std::vector<double> values;
  for (int i = 0; i < n; ++i) {
    for (int j = i - 1; j <= i + 1; ++j) {
      if (j < 0 || j >= n) continue;
      columns.push_back(j);
      values.push_back(i == j ? 4 : -1);
    }
    rows.push_back(static_cast<int>(columns.size()));
  }
  Memory<int> device_rows(rows), device_columns(columns);
  Memory<double> device_values(values), b(whole<double>(n)), x(n);
  int singular = 0;
  OK(cusolverSpDcsrlsvqr(handle, n, static_cast<int>(values.size()), description, device_values.data(),
                         device_rows.data(), device_columns.data(), b.data(), 1e-12, 0, x.data(), &singular));
  std::printf("%d\n", singular);
  show("x", x);
  OK(cusparseDestroyMatDescr(description));
  OK(cusolverSpDestroy(handle));
}
