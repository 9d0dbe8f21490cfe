// Numbers of 16 and 8 bits, and products of small matrices of them.

#include "harness.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

// All 65536 numbers of 16 bits: functions of one operand.
extern "C" __global__ void half_unary(unsigned short* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __half x = __ushort_as_half(static_cast<unsigned short>(i));
  int k = 0;
  auto put = [&](__half value) { out[(k++ << 16) + i] = __half_as_ushort(value); };
  put(__hneg(x));
  put(__habs(x));
  put(__hadd(x, x));
  put(__hmul(x, __float2half(0.3f)));
  put(__hfma(x, x, __float2half(1.0f)));
  put(__float2half(__half2float(x)));
  put(hfloor(x));
  put(hceil(x));
  put(htrunc(x));
  put(hrint(x));
  put(__hadd_sat(x, __float2half(0.25f)));
  put(__int2half_rn(__half2int_rz(x)));
  put(__short2half_rn(__half2short_rn(x)));
  put(__ushort2half_rn(__half2ushort_ru(x)));
  put(__double2half(static_cast<double>(__half2float(x)) * 1.0001));
  put(__hmax(x, __float2half(2.0f)));
  put(__hmin(x, __float2half(2.0f)));
}

// Pairs of numbers in one register.
extern "C" __global__ void half_pairs(const unsigned* a, const unsigned* b, unsigned* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  __half2 x = *reinterpret_cast<const __half2*>(a + i), y = *reinterpret_cast<const __half2*>(b + i);
  int k = 0;
  auto put = [&](__half2 value) { out[k++ * pairs + i] = *reinterpret_cast<unsigned*>(&value); };
  put(__hadd2(x, y));
  put(__hsub2(x, y));
  put(__hmul2(x, y));
  put(__hfma2(x, y, y));
  put(__hneg2(x));
  put(__hmax2(x, y));
  put(__hmin2(x, y));
  put(__heq2(x, y));
  put(__hlt2(x, y));
  put(__hgt2(x, y));
  put(__hle2(x, y));
  put(__lowhigh2highlow(x));
}

// Approximations of half precision.
extern "C" __global__ void half_functions(unsigned short* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __half x = __ushort_as_half(static_cast<unsigned short>(i));
  int k = 0;
  auto put = [&](__half value) { out[(k++ << 16) + i] = __half_as_ushort(value); };
  put(hsqrt(x));
  put(hrsqrt(x));
  put(hrcp(x));
  put(hexp(x));
  put(hexp2(x));
  put(hlog2(x));
  put(hlog(x));
  put(__hdiv(__float2half(1.0f), x));
}

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void bfloat_unary(unsigned short* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __nv_bfloat16 x = __ushort_as_bfloat16(static_cast<unsigned short>(i));
  int k = 0;
  auto put = [&](__nv_bfloat16 value) { out[(k++ << 16) + i] = __bfloat16_as_ushort(value); };
  put(__hneg(x));
  put(__habs(x));
  put(__hadd(x, x));
  put(__hmul(x, __float2bfloat16(0.3f)));
  put(__hfma(x, x, __float2bfloat16(1.0f)));
  put(__float2bfloat16(__bfloat162float(x) * 1.001f));
  put(__float2bfloat16_rz(__bfloat162float(x) * 1.001f));
  put(__hmax(x, __float2bfloat16(2.0f)));
  put(__int2bfloat16_rn(__bfloat162int_rz(x)));
}
#endif

// Conversion of every half to the numbers of 8 bits, and back.
extern "C" __global__ void eight_bits(unsigned char* out, unsigned short* back) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __half x = __ushort_as_half(static_cast<unsigned short>(i));
  out[i] = __nv_cvt_halfraw_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  out[65536 + i] = __nv_cvt_halfraw_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
  out[131072 + i] = __nv_cvt_float_to_fp8(__half2float(x) * 0.37f, __NV_SATFINITE, __NV_E4M3);
  if (i < 256) {
    __half_raw e4m3 = __nv_cvt_fp8_to_halfraw(i, __NV_E4M3);
    __half_raw e5m2 = __nv_cvt_fp8_to_halfraw(i, __NV_E5M2);
    back[i] = e4m3.x;
    back[256 + i] = e5m2.x;
  }
}

namespace wmma = nvcuda::wmma;

template <class Input, class Output, int m, int n, int k, class ALayout, class BLayout>
__device__ void wmma_product(const Input* a, const Input* b, Output* c, int lda, int ldb) {
  wmma::fragment<wmma::matrix_a, m, n, k, Input, ALayout> fragment_a;
  wmma::fragment<wmma::matrix_b, m, n, k, Input, BLayout> fragment_b;
  wmma::fragment<wmma::accumulator, m, n, k, Output> fragment_c;
  wmma::fill_fragment(fragment_c, Output(1));
  wmma::load_matrix_sync(fragment_a, a, lda);
  wmma::load_matrix_sync(fragment_b, b, ldb);
  wmma::mma_sync(fragment_c, fragment_a, fragment_b, fragment_c);
  for (int i = 0; i < fragment_c.num_elements; ++i) fragment_c.x[i] = fragment_c.x[i] + Output(1);
  wmma::store_matrix_sync(c, fragment_c, n, wmma::mem_row_major);
}

extern "C" __global__ void wmma_half(const __half* a, const __half* b, float* c) {
  wmma_product<__half, float, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, 16, 16);
  wmma_product<__half, float, 16, 16, 16, wmma::col_major, wmma::row_major>(a, b, c + 256, 16, 16);
  wmma_product<__half, float, 32, 8, 16, wmma::row_major, wmma::col_major>(a, b, c + 512, 16, 16);
  wmma_product<__half, float, 8, 32, 16, wmma::row_major, wmma::row_major>(a, b, c + 768, 16, 32);
}

extern "C" __global__ void wmma_half_sums(const __half* a, const __half* b, __half* c) {
  wmma_product<__half, __half, 16, 16, 16, wmma::row_major, wmma::row_major>(a, b, c, 16, 16);
}

extern "C" __global__ void wmma_bytes(const signed char* a, const signed char* b, int* c) {
  wmma_product<signed char, int, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, 16, 16);
}

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void wmma_bfloat(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  wmma_product<__nv_bfloat16, float, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, 16, 16);
}

extern "C" __global__ void wmma_double(const double* a, const double* b, double* c) {
  wmma_product<double, double, 8, 8, 4, wmma::row_major, wmma::col_major>(a, b, c, 4, 4);
}

// m16n8k16 with the operands brought by ldmatrix from shared memory, b transposed on the way.
extern "C" __global__ void mma_with_ldmatrix(const __half* a, const __half* b, float* c) {
  __shared__ __half shared_a[16 * 16], shared_b[16 * 8];
  for (int i = threadIdx.x; i < 256; i += 32) shared_a[i] = a[i];
  for (int i = threadIdx.x; i < 128; i += 32) shared_b[i] = b[i];
  __syncwarp();
  unsigned lane = threadIdx.x, ra[4], rb[2];
  unsigned address_a = static_cast<unsigned>(__cvta_generic_to_shared(shared_a + (lane % 16) * 16 + (lane / 16) * 8));
  unsigned address_b = static_cast<unsigned>(__cvta_generic_to_shared(shared_b + (lane % 16) * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
               : "r"(address_a));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(rb[0]), "=r"(rb[1])
               : "r"(address_b));
  float d[4] = {0, 0, 0, 0};
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  int row = lane / 4, column = lane % 4 * 2;
  c[row * 8 + column] = d[0];
  c[row * 8 + column + 1] = d[1];
  c[(row + 8) * 8 + column] = d[2];
  c[(row + 8) * 8 + column + 1] = d[3];
}

// m16n8k32 of signed bytes, fragments laid out as the PTX ISA shows.
extern "C" __global__ void mma_bytes(const int* a, const int* b, int* c) {
  int lane = threadIdx.x, group = lane / 4, member = lane % 4;
  int ra[4] = {a[group * 8 + member], a[(group + 8) * 8 + member], a[group * 8 + member + 4],
               a[(group + 8) * 8 + member + 4]};
  int rb[2] = {b[group * 8 + member], b[group * 8 + member + 4]};  // columns of b
  int d[4] = {0, 0, 0, 0};
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  int column = member * 2;
  c[group * 8 + column] = d[0];
  c[group * 8 + column + 1] = d[1];
  c[(group + 8) * 8 + column] = d[2];
  c[(group + 8) * 8 + column + 1] = d[3];
}

// m16n8k8 of numbers with the precision of tf32.
extern "C" __global__ void mma_tf32(const float* a, const float* b, float* c) {
  int lane = threadIdx.x, group = lane / 4, member = lane % 4;
  auto tf32 = [](float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
  };
  unsigned ra[4] = {tf32(a[group * 8 + member]), tf32(a[(group + 8) * 8 + member]), tf32(a[group * 8 + member + 4]),
                    tf32(a[(group + 8) * 8 + member + 4])};
  unsigned rb[2] = {tf32(b[member * 8 + group]), tf32(b[(member + 4) * 8 + group])};
  float d[4] = {0, 0, 0, 0};
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  int column = member * 2;
  c[group * 8 + column] = d[0];
  c[group * 8 + column + 1] = d[1];
  c[(group + 8) * 8 + column] = d[2];
  c[(group + 8) * 8 + column + 1] = d[3];
}
#endif

#else

namespace {

/// A binary format with few bits, by the values of all its numbers.
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  /// The least magnitude that is no finite number.
  unsigned end_of_finite() const {
    unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    return has_infinity ? infinity : infinity + (1u << mantissa_bits) - 1;
  }
  double magnitude(unsigned bits) const {
    int exponent = static_cast<int>(bits >> mantissa_bits);
    double mantissa = bits & ((1u << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }
  double value(unsigned bits) const {
    unsigned rest = bits & (sign_bit() - 1);
    double result = magnitude(rest);
    if (rest == end_of_finite() && has_infinity) result = INFINITY;
    else if (rest >= end_of_finite()) result = NAN;
    return bits & sign_bit() ? -result : result;
  }
  bool is_nan(unsigned bits) const { return std::isnan(value(bits)); }
  /// To the nearest, ties to even; what is too large becomes infinity, or the largest number if
  /// `saturates`.
  unsigned round(double value, bool saturates = false, bool toward_zero = false) const {
    if (std::isnan(value)) return sign_bit() - 1;
    unsigned sign = std::signbit(value) ? sign_bit() : 0;
    double wanted = std::fabs(value);
    unsigned below = 0, above = end_of_finite();
    while (above - below > 1) {
      unsigned middle = (below + above) / 2;
      (magnitude(middle) <= wanted ? below : above) = middle;
    }
    double to_low = wanted - magnitude(below), to_high = magnitude(above) - wanted;
    bool is_up = !toward_zero && (to_high < to_low || (to_high == to_low && (below & 1)));
    if (std::isinf(wanted) && !saturates) is_up = true;
    unsigned result = is_up ? above : below;
    if (saturates && result == end_of_finite()) --result;
    return sign | result;
  }
};

constexpr Format half = {5, 10, true}, bfloat = {8, 7, true}, e4m3 = {4, 3, false}, e5m2 = {5, 2, true};
constexpr size_t all_shorts = 65536;

/// Compares results for every number of 16 bits; all NaNs are the same.
template <class Reference>
void expect_for_all(const std::vector<uint16_t>& got, int operation, const Format& format, Reference reference) {
  for (unsigned i = 0; i < all_shorts; ++i) {
    unsigned result = got[static_cast<size_t>(operation) * all_shorts + i];
    unsigned wanted = reference(i);
    if (result == wanted || (format.is_nan(result) && format.is_nan(wanted))) continue;
    report("operation %d of %#x: %#x, not %#x", operation, i, result, wanted);
    throw kernels::Failed();
  }
}

template <class T>
double clamp_to(double value) {
  if (std::isnan(value) || value == 0) return 0;  // integers have no negative zero
  return std::min(std::max(value, static_cast<double>(std::numeric_limits<T>::min())),
                  static_cast<double>(std::numeric_limits<T>::max()));
}

/// a in rows, b in columns of `depth` numbers.
template <class T>
std::vector<double> product(const std::vector<T>& a, const std::vector<T>& b, int rows, int columns, int depth,
                            bool a_in_columns = false, bool b_in_rows = false, double start = 0) {
  std::vector<double> result(static_cast<size_t>(rows * columns), start);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j)
      for (int k = 0; k < depth; ++k)
        result[i * columns + j] += static_cast<double>(a[a_in_columns ? k * rows + i : i * depth + k]) *
                                   static_cast<double>(b[b_in_rows ? k * columns + j : j * depth + k]);
  return result;
}

std::vector<uint16_t> to_format(const std::vector<int>& values, const Format& format) {
  std::vector<uint16_t> result;
  for (int value : values) result.push_back(static_cast<uint16_t>(format.round(value)));
  return result;
}

template <class T>
std::vector<T> converted(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

}  // namespace

CASE(half_numbers) {
  Kernels kernels;
  Buffer<uint16_t> out(17 * all_shorts);
  kernels.run("half_unary", {256}, {256}, out.address());
  std::vector<uint16_t> got = out.get();
  auto check = [&](int operation, auto function) {
    expect_for_all(got, operation, half, [&](unsigned i) { return half.round(function(half.value(i))); });
  };
  double third = half.value(half.round(0.3f));
  expect_for_all(got, 0, half, [](unsigned i) { return i ^ 0x8000; });
  expect_for_all(got, 1, half, [](unsigned i) { return i & 0x7fff; });
  check(2, [](double x) { return x + x; });
  check(3, [&](double x) { return x * third; });
  check(4, [](double x) { return x * x + 1; });
  check(5, [](double x) { return x; });
  check(6, [](double x) { return std::floor(x); });
  check(7, [](double x) { return std::ceil(x); });
  check(8, [](double x) { return std::trunc(x); });
  check(9, [](double x) { return std::nearbyint(x); });
  check(10, [](double x) {  // NaN saturates to zero
    return std::isnan(x) ? 0.0 : std::min(std::max(x + 0.25, 0.0), 1.0);
  });
  check(11, [](double x) { return clamp_to<int>(std::trunc(x)); });
  check(12, [](double x) { return clamp_to<short>(std::nearbyint(x)); });
  check(13, [](double x) { return clamp_to<unsigned short>(std::ceil(x)); });
  check(14, [](double x) { return x * 1.0001; });
  check(15, [](double x) { return std::isnan(x) ? 2.0 : std::max(x, 2.0); });
  check(16, [](double x) { return std::isnan(x) ? 2.0 : std::min(x, 2.0); });
}

CASE(half_pairs) {
  constexpr int pairs = 5000, operations = 12;
  std::vector<unsigned> a = random_values<unsigned>(pairs, 0, UINT32_MAX);
  std::vector<unsigned> b = random_values<unsigned>(pairs, 0, UINT32_MAX);
  for (size_t i = 0; i < 100; ++i) b[i] = a[i];
  Kernels kernels;
  Buffer<unsigned> x(a), y(b), out(pairs * operations);
  kernels.run("half_pairs", {blocks_for(pairs)}, {block_size}, x.address(), y.address(), out.address(), pairs);
  std::vector<unsigned> got = out.get();
  for (size_t i = 0; i < pairs; ++i) {
    for (int part = 0; part < 2; ++part) {
      unsigned p = a[i] >> (16 * part) & 0xffff, q = b[i] >> (16 * part) & 0xffff;
      double u = half.value(p), v = half.value(q);
      auto choose = [&](double chosen) {  // of a pair, without NaN if there is a number
        return std::isnan(u) ? q : std::isnan(v) ? p : chosen == u ? p : q;
      };
      unsigned one = half.round(1), other = a[i] >> (16 * (1 - part)) & 0xffff;
      unsigned wanted[operations] = {
          half.round(u + v), half.round(u - v),       half.round(u * v),       half.round(std::fma(u, v, v)),
          p ^ 0x8000,        choose(std::fmax(u, v)), choose(std::fmin(u, v)), u == v ? one : 0,
          u < v ? one : 0,   u > v ? one : 0,         u <= v ? one : 0,        other};
      for (int k = 0; k < operations; ++k) {
        unsigned result = got[static_cast<size_t>(k) * pairs + i] >> (16 * part) & 0xffff;
        if (result == wanted[k] || (half.is_nan(result) && half.is_nan(wanted[k]))) continue;
        if (u == 0 && v == 0 && (k == 5 || k == 6)) continue;  // zeros of either sign
        report("operation %d of %#x and %#x: %#x, not %#x", k, p, q, result, wanted[k]);
        throw kernels::Failed();
      }
    }
  }
}

CASE(half_functions) {
  Kernels kernels;
  Buffer<uint16_t> out(8 * all_shorts);
  kernels.run("half_functions", {256}, {256}, out.address());
  std::vector<uint16_t> got = out.get();
  auto check = [&](int operation, auto function) {
    for (unsigned i = 0; i < all_shorts; ++i) {
      double wanted = function(half.value(i));
      unsigned result = got[static_cast<size_t>(operation) * all_shorts + i];
      unsigned rounded = half.round(wanted);
      if (half.is_nan(rounded) && half.is_nan(result)) continue;
      // Within one number of the right one.
      if (std::abs(static_cast<int>(result & 0x7fff) - static_cast<int>(rounded & 0x7fff)) <= 1 &&
          ((result ^ rounded) < 0x8000 || wanted == 0))
        continue;
      report("operation %d of %#x: %#x, not %#x", operation, i, result, rounded);
      throw kernels::Failed();
    }
  };
  check(0, [](double x) { return std::sqrt(x); });
  check(1, [](double x) { return 1 / std::sqrt(x); });
  check(2, [](double x) { return 1 / x; });
  check(3, [](double x) { return std::exp(x); });
  check(4, [](double x) { return std::exp2(x); });
  check(5, [](double x) { return std::log2(x); });
  check(6, [](double x) { return std::log(x); });
  check(7, [](double x) { return 1 / x; });
}

CASE(bfloat_numbers) {
  Kernels kernels;
  Buffer<uint16_t> out(9 * all_shorts);
  kernels.run("bfloat_unary", {256}, {256}, out.address());
  std::vector<uint16_t> got = out.get();
  auto check = [&](int operation, auto function, bool toward_zero = false) {
    expect_for_all(got, operation, bfloat,
                   [&](unsigned i) { return bfloat.round(function(bfloat.value(i)), false, toward_zero); });
  };
  double third = bfloat.value(bfloat.round(0.3f));
  expect_for_all(got, 0, bfloat, [](unsigned i) { return i ^ 0x8000; });
  expect_for_all(got, 1, bfloat, [](unsigned i) { return i & 0x7fff; });
  check(2, [](double x) { return x + x; });
  check(3, [&](double x) { return x * third; });
  check(4, [](double x) {  // a double that is larger than the square, if not by as little as one
    return std::max(x * x + 1, x * x < 1e300 ? std::nextafter(x * x, INFINITY) : x * x);
  });
  auto scaled = [](double x) { return static_cast<double>(static_cast<float>(x) * 1.001f); };
  check(5, scaled);
  check(6, scaled, true);
  check(7, [](double x) { return std::isnan(x) ? 2.0 : std::max(x, 2.0); });
  check(8, [](double x) { return clamp_to<int>(std::trunc(x)); });
}

CASE(eight_bits) {
  Kernels kernels;
  Buffer<unsigned char> out(3 * all_shorts);
  Buffer<uint16_t> back(512);
  kernels.run("eight_bits", {256}, {256}, out.address(), back.address());
  std::vector<unsigned char> got = out.get();
  auto check = [&](size_t operation, const Format& format, auto function) {
    for (unsigned i = 0; i < all_shorts; ++i) {
      unsigned result = got[operation * all_shorts + i];
      unsigned wanted = format.round(function(half.value(i)), true);
      if (result == wanted || (format.is_nan(result) && format.is_nan(wanted))) continue;
      report("conversion %zu of %#x: %#x, not %#x", operation, i, result, wanted);
      throw kernels::Failed();
    }
  };
  auto same = [](double x) { return x; };
  check(0, e4m3, same);
  check(1, e5m2, same);
  check(2, e4m3, [](double x) { return static_cast<double>(static_cast<float>(x) * 0.37f); });
  std::vector<uint16_t> got_back = back.get();
  for (unsigned i = 0; i < 512; ++i) {
    unsigned wanted = half.round((i < 256 ? e4m3 : e5m2).value(i & 255));
    HOLDS(got_back[i] == wanted || (half.is_nan(got_back[i]) && half.is_nan(wanted)));
  }
}

// Small whole numbers, so that every order of the sums gives the same result.
CASE(wmma) {
  std::vector<int> a = random_values<int>(32 * 16, -20, 20), b = random_values<int>(32 * 16, -20, 20);
  Kernels kernels;
  Buffer<uint16_t> half_a(to_format(a, half)), half_b(to_format(b, half));
  Buffer<float> out(1024);
  kernels.run("wmma_half", {}, {32}, half_a.address(), half_b.address(), out.address());
  std::vector<double> wanted;
  auto append = [&](const std::vector<double>& more) { wanted.insert(wanted.end(), more.begin(), more.end()); };
  append(product(a, b, 16, 16, 16, false, false, 2));
  append(product(a, b, 16, 16, 16, true, true, 2));
  append(product(a, b, 32, 8, 16, false, false, 2));
  append(product(a, b, 8, 32, 16, false, true, 2));
  expect_same(out.get(), converted<float>(wanted));

  std::vector<int> small = random_values<int>(256, -4, 4);
  Buffer<uint16_t> half_small(to_format(small, half)), sums(256);
  kernels.run("wmma_half_sums", {}, {32}, half_small.address(), half_small.address(), sums.address());
  std::vector<uint16_t> wanted_sums;
  for (double value : product(small, small, 16, 16, 16, false, true, 2))
    wanted_sums.push_back(static_cast<uint16_t>(half.round(value)));
  expect_same(sums.get(), wanted_sums);

  std::vector<signed char> bytes_a = random_values<signed char>(256, -128, 127);
  std::vector<signed char> bytes_b = random_values<signed char>(256, -128, 127);
  Buffer<signed char> byte_a(bytes_a), byte_b(bytes_b);
  Buffer<int> totals(256);
  kernels.run("wmma_bytes", {}, {32}, byte_a.address(), byte_b.address(), totals.address());
  expect_same(totals.get(), converted<int>(product(bytes_a, bytes_b, 16, 16, 16, false, false, 2)));

  Buffer<uint16_t> bfloat_a(to_format(a, bfloat)), bfloat_b(to_format(b, bfloat));
  kernels.run("wmma_bfloat", {}, {32}, bfloat_a.address(), bfloat_b.address(), out.address());
  std::vector<float> got = out.get();
  got.resize(256);
  expect_same(got, converted<float>(product(a, b, 16, 16, 16, false, false, 2)));

  std::vector<double> real_a = converted<double>(std::vector<double>(a.begin(), a.begin() + 32));
  std::vector<double> real_b(b.begin(), b.begin() + 32);
  Buffer<double> x(real_a), y(real_b), z(64);
  kernels.run("wmma_double", {}, {32}, x.address(), y.address(), z.address());
  expect_same(z.get(), product(real_a, real_b, 8, 8, 4, false, false, 2));
}

CASE(mma) {
  std::vector<int> a = random_values<int>(256, -20, 20), b = random_values<int>(128, -20, 20);
  Kernels kernels;
  Buffer<uint16_t> half_a(to_format(a, half)), half_b(to_format(b, half));
  Buffer<float> out(128);
  kernels.run("mma_with_ldmatrix", {}, {32}, half_a.address(), half_b.address(), out.address());
  expect_same(out.get(), converted<float>(product(a, b, 16, 8, 16, false, true)));

  std::vector<signed char> bytes_a = random_values<signed char>(512, -128, 127);
  std::vector<signed char> bytes_b = random_values<signed char>(256, -128, 127);
  Buffer<signed char> byte_a(bytes_a), byte_b(bytes_b);
  Buffer<int> totals(128);
  kernels.run("mma_bytes", {}, {32}, byte_a.address(), byte_b.address(), totals.address());
  expect_same(totals.get(), converted<int>(product(bytes_a, bytes_b, 16, 8, 32)));

  std::vector<float> real_a, real_b;
  for (int value : random_values<int>(128, -1000, 1000)) real_a.push_back(static_cast<float>(value));
  for (int value : random_values<int>(64, -1000, 1000)) real_b.push_back(static_cast<float>(value));
  Buffer<float> x(real_a), y(real_b);
  kernels.run("mma_tf32", {}, {32}, x.address(), y.address(), out.address());
  expect_same(out.get(), converted<float>(product(real_a, real_b, 16, 8, 8, false, true)));
}

#endif
