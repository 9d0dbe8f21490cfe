// Integer and floating-point arithmetic over edge values.

#include "harness.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Each kernel evaluates all operations for one pair of operands per thread; results of operation
// k lie at [k * pairs + pair].

template <class T>
__device__ void integer_operations(const T* a, const T* b, T* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  T x = a[i], y = b[i];
  int s = static_cast<int>(y) & (sizeof(T) * 8 - 1);
  out += i;
  int k = 0;
  auto put = [&](T value) { out[k++ * pairs] = value; };
  put(x + y);
  put(x - y);
  put(x * y);
  put(y != 0 && !(y == T(-1)) ? x / y : T(0));
  put(y != 0 && !(y == T(-1)) ? x % y : T(0));
  put(x & y);
  put(x | y);
  put(x ^ y);
  put(~x);
  put(x << s);
  put(x >> s);
  put(x < y ? x : y);
  put(x > y ? x : y);
  put(x == y);
  put(x < y);
  put(x >= y);
}

#define INTEGER_KERNEL(name, type)                                                      \
  extern "C" __global__ void name(const type* a, const type* b, type* out, int pairs) { \
    integer_operations<type>(a, b, out, pairs);                                         \
  }
INTEGER_KERNEL(integers_s16, short)
INTEGER_KERNEL(integers_u16, unsigned short)
INTEGER_KERNEL(integers_s32, int)
INTEGER_KERNEL(integers_u32, unsigned)
INTEGER_KERNEL(integers_s64, long long)
INTEGER_KERNEL(integers_u64, unsigned long long)

extern "C" __global__ void intrinsics_u32(const unsigned* a, const unsigned* b, unsigned* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  unsigned x = a[i], y = b[i];
  int sx = x, sy = y;
  out += i;
  int k = 0;
  auto put = [&](unsigned value) { out[k++ * pairs] = value; };
  put(__umulhi(x, y));
  put(__mulhi(sx, sy));
  put(__popc(x));
  put(__clz(x));
  put(__ffs(x));
  put(__brev(x));
  put(__byte_perm(x, y, 0x3715));
  put(__byte_perm(x, y, y & 0x7777));
  put(__funnelshift_l(x, y, y & 63));
  put(__funnelshift_lc(x, y, y & 63));
  put(__funnelshift_r(x, y, y & 63));
  put(__funnelshift_rc(x, y, y & 63));
  put(__usad(x, y, 7u));
  put(__sad(sx, sy, 7u));
  put(__umul24(x, y));
  put(__mul24(sx, sy));
  put(__dp4a(x, y, 5u));
  put(__dp4a(sx, sy, 5));
  put(__dp2a_lo(x, y, 5u));
  put(__dp2a_hi(sx, sy, 5));
  put(__hadd(sx, sy));
  put(__rhadd(sx, sy));
  put(__uhadd(x, y));
  put(__vadd2(x, y));
  put(__vabsdiffu4(x, y));
  put(static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 16));
  put(static_cast<unsigned>((static_cast<long long>(sx) * sy) >> 16));
}

extern "C" __global__ void intrinsics_u64(const unsigned long long* a, const unsigned long long* b,
                                          unsigned long long* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  unsigned long long x = a[i], y = b[i];
  out += i;
  int k = 0;
  auto put = [&](unsigned long long value) { out[k++ * pairs] = value; };
  put(__umul64hi(x, y));
  put(__mul64hi(x, y));
  put(__popcll(x));
  put(__clzll(x));
  put(__ffsll(x));
  put(__brevll(x));
}

// 128-bit arithmetic, which compiles to chains of additions with carry.
extern "C" __global__ void wide_integers(const unsigned long long* a, const unsigned long long* b,
                                         unsigned long long* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  unsigned __int128 x = static_cast<unsigned __int128>(a[i]) << 64 | b[i];
  unsigned __int128 y = static_cast<unsigned __int128>(b[i]) << 64 | ~a[i];
  unsigned __int128 results[] = {x + y, x - y, x * y, y != 0 ? x / y : 0, x >> (a[i] & 127)};
  for (int k = 0; k < 5; ++k) {
    out[(2 * k) * pairs + i] = static_cast<unsigned long long>(results[k]);
    out[(2 * k + 1) * pairs + i] = static_cast<unsigned long long>(results[k] >> 64);
  }
}

extern "C" __global__ void floats_f32(const float* a, const float* b, float* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  float x = a[i], y = b[i];
  out += i;
  int k = 0;
  auto put = [&](float value) { out[k++ * pairs] = value; };
  put(x + y);
  put(x - y);
  put(x * y);
  put(x / y);
  put(__fsqrt_rn(x));
  put(__frcp_rn(x));
  put(__fmaf_rn(x, y, 1.5f));
  put(__fadd_rz(x, y));
  put(__fadd_ru(x, y));
  put(__fadd_rd(x, y));
  put(__fmul_rz(x, y));
  put(__fmul_ru(x, y));
  put(__fmul_rd(x, y));
  put(__fdiv_rz(x, y));
  put(__fdiv_ru(x, y));
  put(__fmaf_rz(x, y, 1.5f));
  put(__fmaf_ru(x, y, 1.5f));
  put(__fsqrt_ru(x));
  put(fminf(x, y));
  put(fmaxf(x, y));
  put(fabsf(x));
  put(-x);
  put(__saturatef(x));
  put(floorf(x));
  put(ceilf(x));
  put(truncf(x));
  put(rintf(x));
  put(copysignf(x, y));
  put(x < y ? 1.0f : 0.0f);
  put(x <= y ? 1.0f : 0.0f);
  put(x == y ? 1.0f : 0.0f);
  put(x != y ? 1.0f : 0.0f);
  put(isnan(x) ? 1.0f : 0.0f);
  put(isinf(x) ? 1.0f : 0.0f);
}

extern "C" __global__ void floats_f64(const double* a, const double* b, double* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  double x = a[i], y = b[i];
  out += i;
  int k = 0;
  auto put = [&](double value) { out[k++ * pairs] = value; };
  put(x + y);
  put(x - y);
  put(x * y);
  put(x / y);
  put(__dsqrt_rn(x));
  put(__fma_rn(x, y, 1.5));
  put(__dadd_rz(x, y));
  put(__dadd_ru(x, y));
  put(__dadd_rd(x, y));
  put(__dmul_ru(x, y));
  put(__ddiv_rz(x, y));
  put(__fma_rd(x, y, 1.5));
  put(__dsqrt_rz(x));
  put(fmin(x, y));
  put(fmax(x, y));
  put(floor(x));
  put(rint(x));
  put(x < y ? 1.0 : 0.0);
}

extern "C" __global__ void conversions(const float* f, const double* d, long long* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float x = f[i];
  double y = d[i];
  out += i;
  int k = 0;
  auto put = [&](long long value) { out[k++ * count] = value; };
  put(__float2int_rn(x));
  put(__float2int_rz(x));
  put(__float2int_ru(x));
  put(__float2int_rd(x));
  put(__float2uint_rn(x));
  put(__float2uint_rz(x));
  put(__double2int_rn(y));
  put(__double2int_rz(y));
  put(__double2uint_rz(y));
  put(__double_as_longlong(static_cast<double>(x)));
  put(__float_as_int(__double2float_rn(y)));
  put(__float_as_int(__double2float_rz(y)));
  put(__float_as_int(__double2float_ru(y)));
  put(__half_as_ushort(__float2half_rn(x)));
  put(__half_as_ushort(__float2half_rz(x)));
  put(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
  put(__bfloat16_as_ushort(__float2bfloat16_rz(x)));
}

extern "C" __global__ void conversions_from_integers(const long long* in, unsigned* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  long long x = in[i];
  out += i;
  int k = 0;
  auto put = [&](unsigned value) { out[k++ * count] = value; };
  put(__float_as_uint(__int2float_rn(static_cast<int>(x))));
  put(__float_as_uint(__int2float_rz(static_cast<int>(x))));
  put(__float_as_uint(__int2float_ru(static_cast<int>(x))));
  put(__float_as_uint(__uint2float_rn(static_cast<unsigned>(x))));
  put(__float_as_uint(__uint2float_rd(static_cast<unsigned>(x))));
  put(__float_as_uint(__ll2float_rn(x)));
  put(__float_as_uint(__ll2float_rz(x)));
  put(__float_as_uint(__ull2float_rn(static_cast<unsigned long long>(x))));
  put(__float_as_uint(__ull2float_ru(static_cast<unsigned long long>(x))));
  put(static_cast<unsigned>(__double_as_longlong(__ll2double_rn(x)) >> 32));
  put(static_cast<unsigned>(__double_as_longlong(__ull2double_rz(x)) >> 20));
  put(static_cast<signed char>(x));
  put(static_cast<unsigned char>(x));
  put(static_cast<short>(x));
  put(static_cast<unsigned short>(x));
}

extern "C" __global__ void halves(const unsigned short* a, const unsigned short* b, unsigned short* out, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  __half x = __ushort_as_half(a[i]), y = __ushort_as_half(b[i]);
  out += i;
  int k = 0;
  auto put = [&](__half value) { out[k++ * pairs] = __half_as_ushort(value); };
  put(__hadd_rn(x, y));
  put(__hsub_rn(x, y));
  put(__hmul_rn(x, y));
  put(__hfma(x, y, x));
  put(__habs(x));
  put(__hneg(x));
  put(__hadd_sat(x, y));
  put(__hlt(x, y) ? __ushort_as_half(1) : __ushort_as_half(0));
  put(__heq(x, y) ? __ushort_as_half(1) : __ushort_as_half(0));
}

// The approximate functions of the hardware, and those of the math library built on them.
extern "C" __global__ void functions(const float* in, float* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float x = in[i];
  out += i;
  int k = 0;
  auto put = [&](float value) { out[k++ * count] = value; };
  put(sinf(x));
  put(cosf(x));
  put(expf(x));
  put(logf(fabsf(x) + 0.5f));
  put(tanhf(x));
  put(powf(fabsf(x) + 0.5f, 1.5f));
  put(atan2f(x, 2.0f));
  put(erff(x));
  put(cbrtf(x));
  put(rsqrtf(fabsf(x) + 0.5f));
  put(__sinf(x));
  put(__expf(x));
  put(__logf(fabsf(x) + 0.5f));
  put(__fdividef(x, 3.0f));
}

extern "C" __global__ void double_functions(const double* in, double* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  double x = in[i];
  out += i;
  int k = 0;
  auto put = [&](double value) { out[k++ * count] = value; };
  put(sin(x));
  put(exp(x));
  put(log(fabs(x) + 0.5));
  put(pow(fabs(x) + 0.5, 1.5));
  put(tgamma(fabs(x) + 0.5));
  put(rsqrt(fabs(x) + 0.5));
}

#else  // host

#include <cfenv>
#include <limits>

namespace {

/// All pairs of some edge values and random ones.
template <class T>
void make_pairs(const std::vector<T>& values, std::vector<T>& a, std::vector<T>& b) {
  for (T x : values)
    for (T y : values) {
      a.push_back(x);
      b.push_back(y);
    }
}

template <class T>
std::vector<T> integer_values() {
  using L = std::numeric_limits<T>;
  std::vector<T> values = {
      T(0),    T(1),  T(2), T(7), T(-1), T(-2), L::min(), L::max(), T(L::max() / 2), T(L::max() / 3), T(L::min() + 1),
      T(0x55), T(100)};
  for (T value : random_values<T>(20, L::min() / 2, L::max() / 2)) values.push_back(value);
  return values;
}

template <class T>
std::vector<T> float_values() {
  using L = std::numeric_limits<T>;
  std::vector<T> values = {T(0),
                           T(-0.0),
                           T(1),
                           T(-1),
                           T(0.5),
                           T(1.5),
                           T(2.5),
                           T(-2.5),
                           T(3),
                           L::min(),
                           -L::min(),
                           L::denorm_min(),
                           L::min() / 4,
                           L::max(),
                           -L::max(),
                           L::epsilon(),
                           T(1) + L::epsilon(),
                           L::infinity(),
                           -L::infinity(),
                           L::quiet_NaN(),
                           T(1e9),
                           T(-3e9),
                           T(5e-7)};
  for (T value : random_values<T>(16, T(-1000), T(1000))) values.push_back(value);
  return values;
}

/// Runs a kernel of pairs and gives its results, operation after operation.
template <class T>
std::vector<T> run_pairs(const char* name, const std::vector<T>& a, const std::vector<T>& b, int operations) {
  Kernels kernels;
  Buffer<T> x(a), y(b), out(a.size() * static_cast<size_t>(operations));
  kernels.run(name, {blocks_for(a.size())}, {block_size}, x.address(), y.address(), out.address(),
              static_cast<int>(a.size()));
  return out.get();
}

template <class T>
std::function<std::string(size_t)> describe_pairs(const std::vector<T>& a, const std::vector<T>& b) {
  return [&](size_t i) {
    size_t pair = i % a.size();
    return "operation " + std::to_string(i / a.size()) + " of " + kernels::show(a[pair]) + " and " +
           kernels::show(b[pair]);
  };
}

template <class T>
void check_integers(const char* name) {
  using U = std::make_unsigned_t<T>;
  using W = std::common_type_t<U, unsigned>;
  std::vector<T> a, b;
  make_pairs(integer_values<T>(), a, b);
  constexpr int operations = 16;
  std::vector<T> wanted(a.size() * operations);
  for (size_t i = 0; i < a.size(); ++i) {
    T x = a[i], y = b[i];
    int s = static_cast<int>(y) & (sizeof(T) * 8 - 1);
    bool divides = y != 0 && !(y == T(-1));
    T results[operations] = {T(W(x) + W(y)),
                             T(W(x) - W(y)),
                             T(W(U(x)) * W(U(y))),
                             divides ? T(x / y) : T(0),
                             divides ? T(x % y) : T(0),
                             T(x & y),
                             T(x | y),
                             T(x ^ y),
                             T(~x),
                             T(W(U(x)) << s),
                             T(x >> s),
                             x < y ? x : y,
                             x > y ? x : y,
                             T(x == y),
                             T(x < y),
                             T(x >= y)};
    for (int k = 0; k < operations; ++k) wanted[k * a.size() + i] = results[k];
  }
  expect_same(run_pairs(name, a, b, operations), wanted, describe_pairs(a, b));
}

uint32_t funnel(uint32_t low, uint32_t high, uint32_t count, bool left, bool clamp) {
  count = clamp ? std::min(count, 32u) : count & 31;
  uint64_t both = uint64_t{high} << 32 | low;
  return static_cast<uint32_t>(left ? (both << count) >> 32 : both >> count);
}

uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return result;
}

template <class F>
auto with_rounding(int mode, F f) {
  std::fesetround(mode);
  volatile auto result = f();
  std::fesetround(FE_TONEAREST);
  return result;
}

/// Rounds a double to a format of 16 bits by looking for the nearest of all its numbers.
uint16_t to_short(double value, int mantissa_bits, int exponent_bits, bool toward_zero) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(value)) return 0x7fff;
  auto decode = [&](uint32_t bits) {
    int exponent = static_cast<int>(bits >> mantissa_bits);
    double mantissa = bits & ((1 << mantissa_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  };
  double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | infinity;
  uint32_t below = 0, above = infinity;  // numbers grow with their bits
  while (above - below > 1) {
    uint32_t middle = (below + above) / 2;
    (decode(middle) <= magnitude ? below : above) = middle;
  }
  double low = decode(below), high = decode(above);  // the first that is too large to be finite
  if (toward_zero || magnitude == low) return sign | static_cast<uint16_t>(below);
  double to_low = magnitude - low, to_high = high - magnitude;
  bool take_high = to_high < to_low || (to_high == to_low && (below & 1));
  return sign | static_cast<uint16_t>(take_high ? above : below);
}

double from_half(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double mantissa = bits & 1023;
  double value = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                 : exponent == 0 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(mantissa + 1024, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

}  // namespace

CASE(integers_s16) { check_integers<int16_t>("integers_s16"); }
CASE(integers_u16) { check_integers<uint16_t>("integers_u16"); }
CASE(integers_s32) { check_integers<int32_t>("integers_s32"); }
CASE(integers_u32) { check_integers<uint32_t>("integers_u32"); }
CASE(integers_s64) { check_integers<int64_t>("integers_s64"); }
CASE(integers_u64) { check_integers<uint64_t>("integers_u64"); }

CASE(intrinsics_u32) {
  std::vector<uint32_t> a, b;
  make_pairs(integer_values<uint32_t>(), a, b);
  constexpr int operations = 27;
  std::vector<uint32_t> wanted(a.size() * operations);
  for (size_t i = 0; i < a.size(); ++i) {
    uint32_t x = a[i], y = b[i];
    auto sx = static_cast<int32_t>(x), sy = static_cast<int32_t>(y);
    auto byte = [](uint32_t v, int n) { return v >> (8 * n) & 0xff; };
    auto sbyte = [](uint32_t v, int n) { return int32_t{static_cast<int8_t>(v >> (8 * n))}; };
    auto half = [](uint32_t v, int n) { return v >> (16 * n) & 0xffff; };
    auto shalf = [](uint32_t v, int n) { return int32_t{static_cast<int16_t>(v >> (16 * n))}; };
    uint32_t reversed = 0, dot = 5, sdot = 5, distance = 0;
    for (int n = 0; n < 32; ++n) reversed |= (x >> n & 1) << (31 - n);
    for (int n = 0; n < 4; ++n) {
      dot += byte(x, n) * byte(y, n);
      sdot += static_cast<uint32_t>(sbyte(x, n) * sbyte(y, n));
      distance |= static_cast<uint32_t>(std::abs(static_cast<int>(byte(x, n)) - static_cast<int>(byte(y, n))))
                  << (8 * n);
    }
    uint32_t dot2 = 5 + half(x, 0) * byte(y, 0) + half(x, 1) * byte(y, 1);
    auto sdot2 = static_cast<uint32_t>(5 + shalf(x, 0) * sbyte(y, 2) + shalf(x, 1) * sbyte(y, 3));
    auto low24 = [](uint32_t v) { return v & 0xffffff; };
    auto slow24 = [](uint32_t v) { return static_cast<int32_t>(v << 8) >> 8; };
    int64_t s64x = sx, s64y = sy;
    uint64_t u64x = x, u64y = y;
    uint32_t results[operations] = {static_cast<uint32_t>(u64x * u64y >> 32),
                                    static_cast<uint32_t>(s64x * s64y >> 32),
                                    static_cast<uint32_t>(__builtin_popcount(x)),
                                    x != 0 ? static_cast<uint32_t>(__builtin_clz(x)) : 32,
                                    static_cast<uint32_t>(__builtin_ffs(sx)),
                                    reversed,
                                    permute(x, y, 0x3715),
                                    permute(x, y, y & 0x7777),
                                    funnel(x, y, y & 63, true, false),
                                    funnel(x, y, y & 63, true, true),
                                    funnel(x, y, y & 63, false, false),
                                    funnel(x, y, y & 63, false, true),
                                    7 + (x < y ? y - x : x - y),
                                    7 + static_cast<uint32_t>(sx < sy ? s64y - s64x : s64x - s64y),
                                    low24(x) * low24(y),
                                    static_cast<uint32_t>(int64_t{slow24(x)} * slow24(y)),
                                    dot,
                                    sdot,
                                    dot2,
                                    sdot2,
                                    static_cast<uint32_t>((s64x + s64y) >> 1),
                                    static_cast<uint32_t>((s64x + s64y + 1) >> 1),
                                    static_cast<uint32_t>((u64x + u64y) >> 1),
                                    (half(x, 0) + half(y, 0)) % 65536 | (half(x, 1) + half(y, 1)) % 65536 << 16,
                                    distance,
                                    static_cast<uint32_t>(u64x * u64y >> 16),
                                    static_cast<uint32_t>(s64x * s64y >> 16)};
    for (int k = 0; k < operations; ++k) wanted[k * a.size() + i] = results[k];
  }
  expect_same(run_pairs("intrinsics_u32", a, b, operations), wanted, describe_pairs(a, b));
}

CASE(intrinsics_u64) {
  std::vector<uint64_t> a, b;
  make_pairs(integer_values<uint64_t>(), a, b);
  constexpr int operations = 6;
  std::vector<uint64_t> wanted(a.size() * operations);
  for (size_t i = 0; i < a.size(); ++i) {
    uint64_t x = a[i], y = b[i], reversed = 0;
    for (int n = 0; n < 64; ++n) reversed |= (x >> n & 1) << (63 - n);
    auto sx = static_cast<int64_t>(x), sy = static_cast<int64_t>(y);
    uint64_t results[operations] = {static_cast<uint64_t>((static_cast<unsigned __int128>(x) * y) >> 64),
                                    static_cast<uint64_t>((static_cast<__int128>(sx) * sy) >> 64),
                                    static_cast<uint64_t>(__builtin_popcountll(x)),
                                    x != 0 ? static_cast<uint64_t>(__builtin_clzll(x)) : 64,
                                    static_cast<uint64_t>(__builtin_ffsll(sx)),
                                    reversed};
    for (int k = 0; k < operations; ++k) wanted[k * a.size() + i] = results[k];
  }
  expect_same(run_pairs("intrinsics_u64", a, b, operations), wanted, describe_pairs(a, b));
}

CASE(wide_integers) {
  using Wide = unsigned __int128;
  std::vector<uint64_t> a, b;
  make_pairs(integer_values<uint64_t>(), a, b);
  std::vector<uint64_t> wanted(a.size() * 10);
  for (size_t i = 0; i < a.size(); ++i) {
    Wide x = Wide{a[i]} << 64 | b[i], y = Wide{b[i]} << 64 | ~a[i];
    Wide results[] = {x + y, x - y, x * y, y != 0 ? x / y : 0, x >> (a[i] & 127)};
    for (int k = 0; k < 5; ++k) {
      wanted[2 * k * a.size() + i] = static_cast<uint64_t>(results[k]);
      wanted[(2 * k + 1) * a.size() + i] = static_cast<uint64_t>(results[k] >> 64);
    }
  }
  expect_same(run_pairs("wide_integers", a, b, 10), wanted, describe_pairs(a, b));
}

CASE(floats_f32) {
  std::vector<float> a, b;
  make_pairs(float_values<float>(), a, b);
  constexpr int operations = 34;
  std::vector<float> wanted(a.size() * operations);
  for (size_t i = 0; i < a.size(); ++i) {
    volatile float x = a[i], y = b[i];
    auto rounded = [&](int mode, auto f) { return with_rounding(mode, [&] { return f(); }); };
    auto add = [&] { return x + y; };
    auto multiply = [&] { return x * y; };
    auto divide = [&] { return x / y; };
    auto fma = [&] { return std::fma(float{x}, float{y}, 1.5f); };
    auto root = [&] { return std::sqrt(float{x}); };
    float saturated = x > 0 ? (x < 1 ? float{x} : 1.0f) : 0.0f;
    bool is_zero_pair = x == 0 && y == 0;
    float least = is_zero_pair ? (std::signbit(float{x}) ? float{x} : float{y}) : std::fmin(float{x}, float{y});
    float most = is_zero_pair ? (std::signbit(float{x}) ? float{y} : float{x}) : std::fmax(float{x}, float{y});
    float results[operations] = {x + y,
                                 x - y,
                                 x * y,
                                 x / y,
                                 std::sqrt(float{x}),
                                 1.0f / x,
                                 fma(),
                                 rounded(FE_TOWARDZERO, add),
                                 rounded(FE_UPWARD, add),
                                 rounded(FE_DOWNWARD, add),
                                 rounded(FE_TOWARDZERO, multiply),
                                 rounded(FE_UPWARD, multiply),
                                 rounded(FE_DOWNWARD, multiply),
                                 rounded(FE_TOWARDZERO, divide),
                                 rounded(FE_UPWARD, divide),
                                 rounded(FE_TOWARDZERO, fma),
                                 rounded(FE_UPWARD, fma),
                                 rounded(FE_UPWARD, root),
                                 least,
                                 most,
                                 std::fabs(float{x}),
                                 -x,
                                 saturated,
                                 std::floor(float{x}),
                                 std::ceil(float{x}),
                                 std::trunc(float{x}),
                                 std::nearbyint(float{x}),
                                 std::copysign(float{x}, float{y}),
                                 x < y ? 1.0f : 0.0f,
                                 x <= y ? 1.0f : 0.0f,
                                 x == y ? 1.0f : 0.0f,
                                 x != y ? 1.0f : 0.0f,
                                 std::isnan(float{x}) ? 1.0f : 0.0f,
                                 std::isinf(float{x}) ? 1.0f : 0.0f};
    for (int k = 0; k < operations; ++k) wanted[k * a.size() + i] = results[k];
  }
  expect_same(run_pairs("floats_f32", a, b, operations), wanted, describe_pairs(a, b));
}

CASE(floats_f64) {
  std::vector<double> a, b;
  make_pairs(float_values<double>(), a, b);
  constexpr int operations = 18;
  std::vector<double> wanted(a.size() * operations);
  for (size_t i = 0; i < a.size(); ++i) {
    volatile double x = a[i], y = b[i];
    auto rounded = [&](int mode, auto f) { return with_rounding(mode, [&] { return f(); }); };
    auto add = [&] { return x + y; };
    auto fma = [&] { return std::fma(double{x}, double{y}, 1.5); };
    bool is_zero_pair = x == 0 && y == 0;
    double least = is_zero_pair ? (std::signbit(double{x}) ? double{x} : double{y}) : std::fmin(double{x}, double{y});
    double most = is_zero_pair ? (std::signbit(double{x}) ? double{y} : double{x}) : std::fmax(double{x}, double{y});
    double results[operations] = {x + y,
                                  x - y,
                                  x * y,
                                  x / y,
                                  std::sqrt(double{x}),
                                  fma(),
                                  rounded(FE_TOWARDZERO, add),
                                  rounded(FE_UPWARD, add),
                                  rounded(FE_DOWNWARD, add),
                                  rounded(FE_UPWARD, [&] { return x * y; }),
                                  rounded(FE_TOWARDZERO, [&] { return x / y; }),
                                  rounded(FE_DOWNWARD, fma),
                                  rounded(FE_TOWARDZERO, [&] { return std::sqrt(double{x}); }),
                                  least,
                                  most,
                                  std::floor(double{x}),
                                  std::nearbyint(double{x}),
                                  x < y ? 1.0 : 0.0};
    for (int k = 0; k < operations; ++k) wanted[k * a.size() + i] = results[k];
  }
  expect_same(run_pairs("floats_f64", a, b, operations), wanted, describe_pairs(a, b));
}

namespace {

/// Conversion to an integer as the hardware does it: clamped; a NaN becomes zero if it comes from
/// single precision, and the smallest signed number's bits if it comes from double precision.
template <class To, class From>
long long to_integer(From number, int mode) {
  double value = number;
  if (std::isnan(value)) return sizeof number == 4 ? 0 : static_cast<To>(uint32_t{1} << 31);
  std::fesetround(mode);
  double rounded = std::nearbyint(value);
  std::fesetround(FE_TONEAREST);
  using L = std::numeric_limits<To>;
  if (rounded <= static_cast<double>(L::min())) return L::min();
  if (rounded >= static_cast<double>(L::max())) return L::max();
  return static_cast<long long>(static_cast<To>(rounded));
}

}  // namespace

CASE(conversions) {
  std::vector<float> f = float_values<float>();
  for (float value : {2147483647.0f, 2147483648.0f, 4294967295.0f, -0.5f, 0.49999997f, 65504.0f, 65519.9f, 65520.0f,
                      5.9e-8f, 3e-8f, 6.1e-5f, 3.39e38f, 1e-40f})
    f.push_back(value);
  std::vector<double> d(f.begin(), f.end());
  for (size_t i = 0; i < d.size(); ++i) d[i] *= 1.0000000001;
  constexpr int operations = 17;
  size_t count = f.size();
  Kernels kernels;
  Buffer<float> x(f);
  Buffer<double> y(d);
  Buffer<long long> out(count * operations);
  kernels.run("conversions", {blocks_for(count)}, {block_size}, x.address(), y.address(), out.address(),
              static_cast<int>(count));
  std::vector<long long> wanted(count * operations);
  auto float_bits = [](float value) -> long long {
    int32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
  };
  for (size_t i = 0; i < count; ++i) {
    volatile double v = d[i];  // read anew under each rounding mode
    auto narrowed = [&](int mode) { return float_bits(with_rounding(mode, [&] { return static_cast<float>(v); })); };
    double widened = f[i];
    long long widened_bits;
    std::memcpy(&widened_bits, &widened, 8);
    long long results[operations] = {to_integer<int32_t>(f[i], FE_TONEAREST),
                                     to_integer<int32_t>(f[i], FE_TOWARDZERO),
                                     to_integer<int32_t>(f[i], FE_UPWARD),
                                     to_integer<int32_t>(f[i], FE_DOWNWARD),
                                     to_integer<uint32_t>(f[i], FE_TONEAREST),
                                     to_integer<uint32_t>(f[i], FE_TOWARDZERO),
                                     to_integer<int32_t>(d[i], FE_TONEAREST),
                                     to_integer<int32_t>(d[i], FE_TOWARDZERO),
                                     to_integer<uint32_t>(d[i], FE_TOWARDZERO),
                                     widened_bits,
                                     narrowed(FE_TONEAREST),
                                     narrowed(FE_TOWARDZERO),
                                     narrowed(FE_UPWARD),
                                     to_short(f[i], 10, 5, false),
                                     to_short(f[i], 10, 5, true),
                                     to_short(f[i], 7, 8, false),
                                     to_short(f[i], 7, 8, true)};
    for (int k = 0; k < operations; ++k) wanted[k * count + i] = results[k];
  }
  std::vector<long long> got = out.get();
  // The bits of a NaN are not compared.
  for (size_t i = 0; i < count; ++i)
    for (size_t k = 9; k <= 12; ++k)
      if (std::isnan(f[i])) got[k * count + i] = wanted[k * count + i] = 0;
  expect_same(got, wanted, [&](size_t i) {
    return "conversion " + std::to_string(i / count) + " of " + kernels::show(f[i % count]);
  });
}

CASE(conversions_from_integers) {
  std::vector<long long> in;
  for (int64_t value : integer_values<int64_t>()) in.push_back(value);
  for (int32_t value : integer_values<int32_t>()) in.push_back(value);
  for (long long value : {16777217ll, 33554431ll, 2147483583ll, 4294967167ll, -16777217ll}) in.push_back(value);
  constexpr int operations = 15;
  size_t count = in.size();
  Kernels kernels;
  Buffer<long long> x(in);
  Buffer<uint32_t> out(count * operations);
  kernels.run("conversions_from_integers", {blocks_for(count)}, {block_size}, x.address(), out.address(),
              static_cast<int>(count));
  std::vector<uint32_t> wanted(count * operations);
  auto bits = [](float value) {
    uint32_t result;
    std::memcpy(&result, &value, 4);
    return result;
  };
  auto wide_bits = [](double value) {
    uint64_t result;
    std::memcpy(&result, &value, 8);
    return result;
  };
  for (size_t i = 0; i < count; ++i) {
    volatile long long x64 = in[i];
    volatile unsigned long long u64 = static_cast<unsigned long long>(in[i]);
    volatile int x32 = static_cast<int>(in[i]);
    volatile unsigned u32 = static_cast<unsigned>(in[i]);
    auto to_float = [&](auto& value, int mode) {
      return bits(with_rounding(mode, [&] { return static_cast<float>(value); }));
    };
    uint32_t results[operations] = {
        to_float(x32, FE_TONEAREST),
        to_float(x32, FE_TOWARDZERO),
        to_float(x32, FE_UPWARD),
        to_float(u32, FE_TONEAREST),
        to_float(u32, FE_DOWNWARD),
        to_float(x64, FE_TONEAREST),
        to_float(x64, FE_TOWARDZERO),
        to_float(u64, FE_TONEAREST),
        to_float(u64, FE_UPWARD),
        static_cast<uint32_t>(wide_bits(static_cast<double>(x64)) >> 32),
        static_cast<uint32_t>(wide_bits(with_rounding(FE_TOWARDZERO, [&] { return static_cast<double>(u64); })) >> 20),
        static_cast<uint32_t>(static_cast<int8_t>(x64)),
        static_cast<uint8_t>(x64),
        static_cast<uint32_t>(static_cast<int16_t>(x64)),
        static_cast<uint16_t>(x64)};
    for (int k = 0; k < operations; ++k) wanted[k * count + i] = results[k];
  }
  expect_same(out.get(), wanted, [&](size_t i) {
    return "conversion " + std::to_string(i / count) + " of " + kernels::show(in[i % count]);
  });
}

CASE(halves) {
  std::vector<uint16_t> values = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x0001, 0x8001, 0x03ff, 0x0400,
                                  0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3555, 0x4248, 0x2e66};
  for (uint16_t value : random_values<uint16_t>(24, 0, 0xffff)) values.push_back(value);
  std::vector<uint16_t> a, b;
  make_pairs(values, a, b);
  constexpr int operations = 9;
  std::vector<uint16_t> wanted(a.size() * operations);
  auto round = [](double value) { return to_short(value, 10, 5, false); };
  for (size_t i = 0; i < a.size(); ++i) {
    double x = from_half(a[i]), y = from_half(b[i]);
    double sum = x + y;
    uint16_t saturated = std::isnan(sum) ? 0 : round(sum > 0 ? (sum < 1 ? sum : 1.0) : 0.0);
    // The product is exact, and so is the sum of halves of this size in long double.
    long double fused = static_cast<long double>(x) * y + x;
    uint16_t results[operations] = {round(sum),
                                    round(x - y),
                                    round(x * y),
                                    round(static_cast<double>(fused)),
                                    static_cast<uint16_t>(a[i] & 0x7fff),
                                    static_cast<uint16_t>(a[i] ^ 0x8000),
                                    saturated,
                                    static_cast<uint16_t>(x < y),
                                    static_cast<uint16_t>(x == y)};
    for (int k = 0; k < operations; ++k) wanted[k * a.size() + i] = results[k];
  }
  std::vector<uint16_t> got = run_pairs("halves", a, b, operations);
  // NaN has many forms.
  for (auto* results : {&got, &wanted})
    for (uint16_t& value : *results)
      if ((value & 0x7fff) > 0x7c00) value = 0x7fff;
  expect_same(got, wanted, describe_pairs(a, b));
}

CASE(functions) {
  std::vector<float> in = random_values<float>(2000, -8.0f, 8.0f);
  for (float value : {0.0f, 1.0f, -1.0f, 100.0f, -100.0f, 1e4f}) in.push_back(value);
  constexpr int operations = 14;
  size_t count = in.size();
  Kernels kernels;
  Buffer<float> x(in), out(count * operations);
  kernels.run("functions", {blocks_for(count)}, {block_size}, x.address(), out.address(), static_cast<int>(count));
  std::vector<float> got = out.get();
  auto check = [&](int operation, double relative, double absolute, auto reference) {
    std::vector<float> results, wanted;
    for (size_t i = 0; i < count; ++i) {
      float value = static_cast<float>(reference(double{in[i]}));
      if (!std::isfinite(value)) continue;  // Out of the function's range, or of the check's.
      wanted.push_back(value);
      results.push_back(got[static_cast<size_t>(operation) * count + i]);
    }
    expect_near(results, wanted, relative, absolute);
  };
  check(0, 3e-7, 2e-7, [](double v) { return std::sin(v); });
  check(1, 3e-7, 2e-7, [](double v) { return std::cos(v); });
  check(2, 3e-7, 1e-38, [](double v) { return std::exp(v); });
  check(3, 3e-7, 1e-7, [](double v) { return std::log(std::fabs(v) + 0.5); });
  check(4, 4e-7, 0, [](double v) { return std::tanh(v); });
  check(5, 1e-6, 0, [](double v) { return std::pow(std::fabs(v) + 0.5, 1.5); });
  check(6, 5e-7, 0, [](double v) { return std::atan2(v, 2.0); });
  check(7, 5e-7, 0, [](double v) { return std::erf(v); });
  check(8, 3e-7, 0, [](double v) { return std::cbrt(v); });
  check(9, 5e-7, 0, [](double v) { return 1 / std::sqrt(std::fabs(v) + 0.5); });
  check(10, 0, 2e-5, [](double v) { return std::fabs(v) > 8 ? NAN : std::sin(v); });
  check(11, 1e-5, 1e-37, [](double v) { return std::exp(v); });
  check(12, 1e-5, 1e-6, [](double v) { return std::log(std::fabs(v) + 0.5); });
  check(13, 5e-7, 0, [](double v) { return v / 3; });
}

CASE(double_functions) {
  std::vector<double> in = random_values<double>(2000, -8.0, 8.0);
  constexpr int operations = 6;
  size_t count = in.size();
  Kernels kernels;
  Buffer<double> x(in), out(count * operations);
  kernels.run("double_functions", {blocks_for(count)}, {block_size}, x.address(), out.address(),
              static_cast<int>(count));
  std::vector<double> wanted(count * operations);
  for (size_t i = 0; i < count; ++i) {
    double v = in[i], p = std::fabs(v) + 0.5;
    double results[] = {std::sin(v), std::exp(v), std::log(p), std::pow(p, 1.5), std::tgamma(p), 1 / std::sqrt(p)};
    for (int k = 0; k < operations; ++k) wanted[static_cast<size_t>(k) * count + i] = results[k];
  }
  expect_near(out.get(), wanted, 5e-15, 1e-15);
}

#endif
