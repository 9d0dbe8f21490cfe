// Atomic operations of all kinds, types and scopes.

#include "harness.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cuda/atomic>

// Many threads on few addresses. Each kind of operation has a slot of its own.
template <class T>
__device__ void integer_atomics(T* slots, int i) {
  T value = static_cast<T>(i);
  atomicAdd(&slots[0], value);
  atomicMin(&slots[1], value);
  atomicMax(&slots[2], value);
  atomicAnd(&slots[3], static_cast<T>(~(T(1) << (i % 31))));
  atomicOr(&slots[4], static_cast<T>(T(1) << (i % 29)));
  atomicXor(&slots[5], static_cast<T>(value * 77));
}

extern "C" __global__ void atomics_s32(int* slots) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  integer_atomics<int>(slots, i - 500);
  atomicSub(&slots[6], i);
}

extern "C" __global__ void atomics_u32(unsigned* slots) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  integer_atomics<unsigned>(slots, i + 5);
  atomicInc(&slots[6], 99);
  atomicDec(&slots[7], 49);
}

extern "C" __global__ void atomics_u64(unsigned long long* slots) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  integer_atomics<unsigned long long>(slots, i + 5);
}

extern "C" __global__ void atomics_s64(long long* slots) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicMin(&slots[0], static_cast<long long>(i - 600) << 33);
  atomicMax(&slots[1], static_cast<long long>(i - 600) << 33);
}

// Sums of small whole numbers are exact in any order.
extern "C" __global__ void atomics_real(float* f32, double* f64, __half* f16, __half2* f16x2, __nv_bfloat16* bf16,
                                        __nv_bfloat162* bf16x2) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(f32, static_cast<float>(i % 10));
  atomicAdd(f64, static_cast<double>(i) * 0.25);
  atomicAdd(f16, __float2half(i % 2));
  atomicAdd(f16x2, __floats2half2_rn(i % 2, -(i % 3 == 0)));
#if __CUDA_ARCH__ >= 800
  if (i < 200) {
    atomicAdd(bf16, __float2bfloat16(1));
    atomicAdd(bf16x2, __floats2bfloat162_rn(1, -1));
  }
#endif
}

// Every old value is handed out once.
extern "C" __global__ void tickets(unsigned* counter, unsigned* seen) {
  unsigned ticket = atomicAdd(counter, 1u);
  atomicAdd(&seen[ticket], 1u);
}

extern "C" __global__ void exchanges(int* slot, int* seen) {
  int me = blockIdx.x * blockDim.x + threadIdx.x + 1;
  int before = atomicExch(slot, me);
  atomicAdd(&seen[before], 1);
}

// A maximum of floating-point numbers by compare-and-swap, as programs write it.
extern "C" __global__ void maximum_by_cas(const float* in, float* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int* bits = reinterpret_cast<int*>(out);
  int seen = *bits, expected;
  do {
    expected = seen;
    if (__int_as_float(expected) >= in[i]) break;
    seen = atomicCAS(bits, expected, __float_as_int(in[i]));
  } while (seen != expected);
}

extern "C" __global__ void cas_of_other_widths(unsigned short* narrow, unsigned long long* wide) {
  unsigned short seen = *narrow, expected;
  do {
    expected = seen;
    seen = atomicCAS(narrow, expected, static_cast<unsigned short>(expected + 3));
  } while (seen != expected);
  unsigned long long seen_wide = *wide, expected_wide;
  do {
    expected_wide = seen_wide;
    seen_wide = atomicCAS(wide, expected_wide, expected_wide + (1ull << 33));
  } while (seen_wide != expected_wide);
}

extern "C" __global__ void shared_atomics(const int* in, int* out, int count) {
  __shared__ int bins[64];
  if (threadIdx.x < 64) bins[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[in[i] & 63], 1);
  __syncthreads();
  if (threadIdx.x < 64) atomicAdd_system(&out[threadIdx.x], bins[threadIdx.x]);
}

extern "C" __global__ void library_atomics(int* plain, unsigned long long* wide) {
  cuda::atomic_ref<int, cuda::thread_scope_device> counter(*plain);
  cuda::atomic_ref<unsigned long long, cuda::thread_scope_system> total(*wide);
  counter.fetch_add(2, cuda::memory_order_relaxed);
  total.fetch_max(threadIdx.x * 1000ull + blockIdx.x, cuda::memory_order_acq_rel);
  int expected = counter.load(cuda::memory_order_acquire);
  while (!counter.compare_exchange_weak(expected, expected + 1, cuda::memory_order_seq_cst)) {}
}

// Message passing between blocks by release and acquire.
extern "C" __global__ void message_passing(int* data, unsigned* flag, int* out, int messages) {
  cuda::atomic_ref<unsigned, cuda::thread_scope_device> number(*flag);
  if (threadIdx.x != 0) return;
  for (int i = 0; i < messages; ++i) {
    unsigned turn = 2 * i + blockIdx.x;
    while (number.load(cuda::memory_order_acquire) != turn) {}
    if (blockIdx.x == 0) *data = i * i;
    else out[i] = *data;
    number.store(turn + 1, cuda::memory_order_release);
  }
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void vector_reductions(float4* sums, float2* pairs) {
  float i = static_cast<float>(threadIdx.x);
  atomicAdd(sums, make_float4(i, 1, -i, 2));
  float2 before = atomicAdd(pairs, make_float2(1, 2));
  if (before.y != 2 * before.x) atomicAdd(pairs, make_float2(0, 100));
}

extern "C" __global__ void cas_of_128_bits(ulonglong2* slot) {
  for (int i = 0; i < 4; ++i) {
    unsigned long long low, high, old_low = 0, old_high = 0;
    do {
      low = old_low;
      high = old_high;
      asm volatile(
          "{ .reg .b128 %%expected, %%value, %%old;\n"
          "  mov.b128 %%expected, {%3, %4};\n"
          "  mov.b128 %%value, {%5, %6};\n"
          "  atom.global.cas.b128 %%old, [%2], %%expected, %%value;\n"
          "  mov.b128 {%0, %1}, %%old; }"
          : "=l"(old_low), "=l"(old_high)
          : "l"(slot), "l"(low), "l"(high), "l"(low + 1), "l"(high + 3)
          : "memory");
    } while (old_low != low || old_high != high);
  }
}
#endif

#else

namespace {

/// What all threads together do to the slots of integer_atomics.
template <class T>
void apply_integers(std::vector<T>& slots, int i) {
  T value = static_cast<T>(i);
  slots[0] += value;
  slots[1] = std::min(slots[1], value);
  slots[2] = std::max(slots[2], value);
  slots[3] &= static_cast<T>(~(T(1) << (static_cast<unsigned>(i) % 31)));
  slots[4] |= static_cast<T>(T(1) << (static_cast<unsigned>(i) % 29));
  slots[5] ^= static_cast<T>(value * 77);
}

constexpr int threads = 1024;

}  // namespace

CASE(integers) {
  Kernels kernels;
  // The shifts of kernels and host agree for numbers from zero on only.
  std::vector<unsigned> unsigned_slots = {0, 1000, 0, ~0u, 0, 0, 0, 0};
  Buffer<unsigned> u32(unsigned_slots);
  kernels.run("atomics_u32", {8}, {128}, u32.address());
  for (int i = 0; i < threads; ++i) {
    apply_integers(unsigned_slots, i + 5);
    unsigned_slots[6] = unsigned_slots[6] >= 99 ? 0 : unsigned_slots[6] + 1;
    unsigned& down = unsigned_slots[7];
    down = down == 0 || down > 49 ? 49 : down - 1;
  }
  expect_same(u32.get(), unsigned_slots);

  std::vector<unsigned long long> wide_slots = {1ull << 60, 1000, 0, ~0ull, 0, 0};
  Buffer<unsigned long long> u64(wide_slots);
  kernels.run("atomics_u64", {8}, {128}, u64.address());
  for (int i = 0; i < threads; ++i) apply_integers(wide_slots, i + 5);
  expect_same(u64.get(), wide_slots);

  std::vector<int> signed_slots = {0, 1000, -1000, -1, 0, 0, 0};
  Buffer<int> s32(signed_slots);
  kernels.run("atomics_s32", {8}, {128}, s32.address());
  std::vector<int> got = s32.get();
  int sum = 0, parity = 0;
  for (int i = 0; i < threads; ++i) {
    sum += i - 500;
    parity ^= (i - 500) * 77;
  }
  HOLDS(got[0] == sum && got[1] == -500 && got[2] == threads - 501 && got[5] == parity);
  HOLDS(got[6] == -threads * (threads - 1) / 2);

  Buffer<long long> s64(std::vector<long long>{0, 0});
  kernels.run("atomics_s64", {8}, {128}, s64.address());
  expect_same(s64.get(), {-(600ll << 33), (threads - 601ll) << 33});
}

CASE(reals) {
  Kernels kernels;
  Buffer<float> f32(1);
  Buffer<double> f64(1);
  Buffer<uint16_t> f16(1), bf16(1);
  Buffer<uint32_t> f16x2(1), bf16x2(1);
  f32.clear();
  f64.clear();
  f16.clear();
  f16x2.clear();
  bf16.clear();
  bf16x2.clear();
  kernels.run("atomics_real", {8}, {128}, f32.address(), f64.address(), f16.address(), f16x2.address(), bf16.address(),
              bf16x2.address());
  float sum = 0;
  for (int i = 0; i < threads; ++i) sum += static_cast<float>(i % 10);
  expect_same(f32.get(), {sum});
  expect_same(f64.get(), {threads * (threads - 1) / 2 * 0.25});
  expect_same(f16.get(), {uint16_t{0x6000}});   // 512
  expect_same(f16x2.get(), {0xdd586000u});      // 512 and -342
  expect_same(bf16.get(), {uint16_t{0x4348}});  // 200
  expect_same(bf16x2.get(), {0xc3484348u});     // 200 and -200
}

CASE(returned_values) {
  Kernels kernels;
  Buffer<unsigned> counter(1), seen(threads);
  counter.clear();
  seen.clear();
  kernels.run("tickets", {16}, {64}, counter.address(), seen.address());
  expect_same(seen.get(), std::vector<unsigned>(threads, 1));
  expect_same(counter.get(), {unsigned{threads}});

  Buffer<int> slot(1), exchanged(threads + 1);
  slot.clear();
  exchanged.clear();
  kernels.run("exchanges", {16}, {64}, slot.address(), exchanged.address());
  std::vector<int> wanted(threads + 1, 1);
  wanted[static_cast<size_t>(slot.get()[0])] = 0;  // the last is still there
  expect_same(exchanged.get(), wanted);
}

CASE(compare_and_swap) {
  Kernels kernels;
  std::vector<float> in = random_values<float>(5000, 0.0f, 1.0f);
  Buffer<float> x(in), out(std::vector<float>{0});
  kernels.run("maximum_by_cas", {blocks_for(in.size())}, {block_size}, x.address(), out.address(),
              static_cast<int>(in.size()));
  expect_same(out.get(), {*std::max_element(in.begin(), in.end())});

  Buffer<unsigned short> narrow(std::vector<unsigned short>{1, 7});
  Buffer<unsigned long long> wide(std::vector<unsigned long long>{5});
  kernels.run("cas_of_other_widths", {8}, {64}, narrow.address(), wide.address());
  expect_same(narrow.get(), {static_cast<unsigned short>(1 + 3 * 512), static_cast<unsigned short>(7)});
  expect_same(wide.get(), {5 + (512ull << 33)});

  Buffer<unsigned long long> slot(std::vector<unsigned long long>{0, 0});
  kernels.run("cas_of_128_bits", {4}, {64}, slot.address());
  expect_same(slot.get(), {1024ull, 3072ull});
}

CASE(shared) {
  constexpr int count = 50000;
  std::vector<int> in = random_values<int>(count, 0, 100000), wanted(64);
  for (int value : in) ++wanted[value & 63];
  Kernels kernels;
  Buffer<int> x(in), out(64);
  out.clear();
  kernels.run("shared_atomics", {12}, {256}, x.address(), out.address(), count);
  expect_same(out.get(), wanted);
}

CASE(library) {
  Kernels kernels;
  Buffer<int> plain(1);
  Buffer<unsigned long long> wide(1);
  plain.clear();
  wide.clear();
  kernels.run("library_atomics", {8}, {128}, plain.address(), wide.address());
  expect_same(plain.get(), {3 * threads});
  expect_same(wide.get(), {127007ull});
}

CASE(message_passing) {
  constexpr int messages = 50;
  Kernels kernels;
  Buffer<int> data(1), out(messages);
  Buffer<unsigned> flag(1);
  flag.clear();
  kernels.run("message_passing", {2}, {32}, data.address(), flag.address(), out.address(), messages);
  std::vector<int> wanted(messages);
  for (int i = 0; i < messages; ++i) wanted[i] = i * i;
  expect_same(out.get(), wanted);
}

CASE(vectors) {
  Kernels kernels;
  Buffer<float> sums(4), pairs(2);
  sums.clear();
  pairs.clear();
  kernels.run("vector_reductions", {}, {64}, sums.address(), pairs.address());
  expect_same(sums.get(), {2016, 64, -2016, 128});
  expect_same(pairs.get(), {64, 128});
}

#endif
