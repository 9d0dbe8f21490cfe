// Control flow: divergence and reconvergence, loops, calls of every kind, and lanes of one warp
// that wait for each other.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void if_else_chains(const int* in, int* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int value = in[i], result = 0;
  if (value % 2 == 0) {
    result += 1;
    if (value % 3 == 0) {
      result += 10;
    } else if (value % 5 == 0) {
      result += 100;
      if (value > 500) result *= 2;
    } else {
      result -= 7;
    }
  } else {
    if (value < 300) {
      result += 1000;
    } else {
      result = value % 7 == 0 ? -1 : value;
    }
    result ^= 0x55;
  }
  out[i] = result;
}

// The number of steps differs from lane to lane.
extern "C" __global__ void collatz(int* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned long long value = i + 1;
  int steps = 0;
  while (value != 1) {
    value = value & 1 ? 3 * value + 1 : value / 2;
    ++steps;
  }
  out[i] = steps;
}

extern "C" __global__ void nested_loops(int* out) {
  int sum = 0, lane = threadIdx.x;
  for (int i = 0; i < lane % 7 + 1; ++i) {
    for (int j = i;; ++j) {
      if (j * i > lane) break;
      if ((j + lane) % 3 == 0) continue;
      for (int k = j; k > 0; k -= lane % 4 + 1) {
        sum += i * 100 + j * 10 + k;
        if (sum > 20000) goto done;
      }
      if (j > 12) break;
    }
  }
done:
  out[blockIdx.x * blockDim.x + lane] = sum;
}

extern "C" __global__ void switches(const int* in, int* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int value = in[i], result;
  switch (value % 16) {
    case 0: result = value + 3; break;
    case 1: result = value * 5; break;
    case 2: result = value ^ 77; break;
    case 3: result = ~value;  // falls through
    case 4: result = value - 1000; break;
    case 5: result = value << 3; break;
    case 6: result = value >> 1; break;
    case 7: result = value * value; break;
    case 8: result = -value; break;
    case 9: result = value / 3; break;
    case 10: result = value % 11; break;
    case 11: return;
    default: result = 0;
  }
  out[i] = result;
}

// A branch through a table, which nvcc emits only on request.
extern "C" __global__ void table_branch(int* out) {
  int result;
  asm volatile(
      "{\n"
      ".reg .u32 %%index;\n"
      "and.b32 %%index, %1, 3;\n"
      "$cases_%=: .branchtargets $case_0_%=, $case_1_%=, $case_2_%=, $case_3_%=;\n"
      "brx.idx %%index, $cases_%=;\n"
      "$case_0_%=: mov.u32 %0, 10; bra.uni $end_%=;\n"
      "$case_1_%=: mov.u32 %0, 21; bra $end_%=;\n"
      "$case_2_%=: mov.u32 %0, 32;\n"
      "add.u32 %0, %0, 1;\n"
      "bra $end_%=;\n"
      "$case_3_%=: mov.u32 %0, 43;\n"
      "$end_%=:\n"
      "}"
      : "=r"(result)
      : "r"(threadIdx.x));
  out[threadIdx.x] = result;
}

// Lanes that have left must not be waited for at barriers.
extern "C" __global__ void early_exits(int* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (threadIdx.x % 3 == 1) return;
  atomicAdd(&count, 1);
  if (threadIdx.x >= 64 && threadIdx.x < 96) return;
  __syncthreads();
  out[threadIdx.x] = count;
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void recursion(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 16); }

extern "C" __global__ void recursion_to(int depth, int* out) { *out = fibonacci(depth); }

__device__ __noinline__ int ackermann(int m, int n, int* depth) {
  ++*depth;
  if (m == 0) return n + 1;
  if (n == 0) return ackermann(m - 1, 1, depth);
  return ackermann(m - 1, ackermann(m, n - 1, depth), depth);
}

extern "C" __global__ void deep_recursion(int* out) {
  int calls = 0;
  out[2 * threadIdx.x] = ackermann(2, threadIdx.x % 8, &calls);
  out[2 * threadIdx.x + 1] = calls;
}

__device__ __noinline__ bool is_odd(int n);
__device__ __noinline__ bool is_even(int n) { return n == 0 || is_odd(n - 1); }
__device__ __noinline__ bool is_odd(int n) { return n != 0 && is_even(n - 1); }

extern "C" __global__ void mutual_recursion(int* out) {
  out[threadIdx.x] = is_even(threadIdx.x) ? 2 : is_odd(threadIdx.x) ? 1 : 0;
}

using Function = int (*)(int, int);
__device__ int f_add(int a, int b) { return a + b; }
__device__ int f_subtract(int a, int b) { return a - b; }
__device__ int f_multiply(int a, int b) { return a * b; }
__device__ int f_power(int a, int b) {
  int result = 1;
  for (int i = 0; i < (b & 7); ++i) result *= a;
  return result;
}
__device__ Function function_table[4] = {f_add, f_subtract, f_multiply, f_power};

extern "C" __global__ void function_pointers(int* out) {
  int i = threadIdx.x;
  out[i] = function_table[(i >> 1) & 3](i, 3 + i % 5);
}

struct Shape {
  __device__ virtual float area() const = 0;
  __device__ virtual int corners() const { return 0; }
  __device__ virtual ~Shape() {}
};
struct Circle : Shape {
  float radius;
  __device__ explicit Circle(float r) : radius(r) {}
  __device__ float area() const override { return 3.0f * radius * radius; }
};
struct Rectangle : Shape {
  float width, height;
  __device__ Rectangle(float w, float h) : width(w), height(h) {}
  __device__ float area() const override { return width * height; }
  __device__ int corners() const override { return 4; }
};
struct Square : Rectangle {
  __device__ explicit Square(float side) : Rectangle(side, side) {}
  __device__ int corners() const override { return 40; }
};

extern "C" __global__ void virtual_functions(float* out) {
  float size = static_cast<float>(threadIdx.x);
  Shape* shape;
  switch (threadIdx.x % 3) {
    case 0: shape = new Circle(size); break;
    case 1: shape = new Rectangle(size, 2.0f); break;
    default: shape = new Square(size);
  }
  out[threadIdx.x] = shape->area() + static_cast<float>(shape->corners());
  delete shape;
}

struct Matrix2 {
  float a, b, c, d;
};
__device__ __noinline__ Matrix2 multiply(Matrix2 x, Matrix2 y) {
  return {x.a * y.a + x.b * y.c, x.a * y.b + x.b * y.d, x.c * y.a + x.d * y.c, x.c * y.b + x.d * y.d};
}

extern "C" __global__ void structures_by_value(float* out) {
  Matrix2 result = {1, 0, 0, 1}, step = {1, 1, 1, 0};
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i) result = multiply(result, step);
  out[threadIdx.x] = result.b;
}

// Every lane takes the same lock in turn: lanes of one warp must not starve each other.
extern "C" __global__ void spin_lock(int* lock, int* counter) {
  while (atomicCAS(lock, 0, 1) != 0) {}
  __threadfence();
  int value = *reinterpret_cast<volatile int*>(counter);
  *reinterpret_cast<volatile int*>(counter) = value + 1;
  __threadfence();
  atomicExch(lock, 0);
}

extern "C" __global__ void spin_lock_in_loop(int* lock, int* counter) {
  bool is_done = false;
  while (!is_done) {
    if (atomicExch(lock, 1) == 0) {
      *reinterpret_cast<volatile int*>(counter) += 1;
      __threadfence();
      is_done = true;
      atomicExch(lock, 0);
    }
  }
}

// Lane after lane waits for the one before it.
extern "C" __global__ void chain_of_lanes(volatile int* turn, int* order) {
  int me = blockIdx.x * blockDim.x + threadIdx.x;
  while (*turn != me) {}
  order[me] = me * me;
  __threadfence();
  *turn = me + 1;
}

// One half of the warp produces what the other half waits for.
extern "C" __global__ void producer_and_consumer(int* out) {
  __shared__ volatile int mailbox[16];
  __shared__ volatile int is_full[16];
  int pair = threadIdx.x / 2;
  if (threadIdx.x < 16) is_full[threadIdx.x] = 0;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < 20; ++i) {
    if (threadIdx.x % 2 == 0) {
      while (is_full[pair]) {}
      mailbox[pair] = i * pair;
      __threadfence_block();
      is_full[pair] = 1;
    } else {
      while (!is_full[pair]) {}
      sum += mailbox[pair];
      __threadfence_block();
      is_full[pair] = 0;
    }
  }
  out[threadIdx.x] = sum;
}

extern "C" __global__ void warp_barriers(int* out) {
  __shared__ int values[64];
  int lane = threadIdx.x % 32, base = threadIdx.x - lane;
  values[threadIdx.x] = threadIdx.x;
  __syncwarp();
  for (int offset = 16; offset > 0; offset /= 2) {
    int sum = 0;
    if (lane < offset) sum = values[base + lane] + values[base + lane + offset];
    __syncwarp();
    if (lane < offset) values[base + lane] = sum;
    __syncwarp();
  }
  // Both halves meet at barriers of their own although they diverged.
  if (lane < 16) {
    for (int i = 0; i < 3; ++i) __syncwarp(0x0000ffff);
  } else {
    __syncwarp(0xffff0000);
  }
  __syncwarp();
  out[threadIdx.x] = values[base];
}

extern "C" __global__ void active_masks(unsigned* out) {
  unsigned mask = 0;
  if (threadIdx.x % 4 == 1) {
    mask = __activemask();
  } else if (threadIdx.x < 8) {
    mask = __activemask();
  }
  __syncwarp();
  out[threadIdx.x] = mask;
  out[32 + threadIdx.x] = __activemask();
}

extern "C" __global__ void barrier_reductions(int* out) {
  int i = threadIdx.x;
  out[i] = __syncthreads_count(i % 3 == 0);
  out[blockDim.x + i] = __syncthreads_and(i < 200) * 10 + __syncthreads_and(i < 20);
  out[2 * blockDim.x + i] = __syncthreads_or(i == 77) * 10 + __syncthreads_or(i == 1000);
}

// Named barriers: two warps produce, two consume.
extern "C" __global__ void named_barriers(int* out) {
  __shared__ int buffer[64];
  if (threadIdx.x < 64) {
    for (int round = 0; round < 5; ++round) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      buffer[threadIdx.x] = threadIdx.x * round;
      asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
  } else {
    int sum = 0;
    for (int round = 0; round < 5; ++round) {
      asm volatile("bar.arrive 1, 128;" ::: "memory");
      asm volatile("bar.sync 2, 128;" ::: "memory");
      sum += buffer[127 - threadIdx.x];
    }
    out[threadIdx.x - 64] = sum;
  }
}

extern "C" __global__ void predicated_stores(int* out, int count) {
  int i = threadIdx.x;
  for (int k = 0; k < count; ++k)
    if ((i >> (k & 4)) & 1) out[k * blockDim.x + i] = k - i;
}

extern "C" __global__ void clocks(long long* out) {
  long long start = clock64();
  unsigned long long time, later;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  __nanosleep(200000);
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(later));
  out[0] = clock64() - start;
  out[1] = static_cast<long long>(later - time);
}

// A long job of blocks that wait for no one.
extern "C" __global__ void mandelbrot(unsigned char* out, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float cx = -2.0f + 3.0f * x / width, cy = -1.0f + 2.0f * y / height, zx = 0, zy = 0;
  int steps = 0;
  while (steps < 100 && zx * zx + zy * zy < 4.0f) {
    float next = zx * zx - zy * zy + cx;
    zy = 2.0f * zx * zy + cy;
    zx = next;
    ++steps;
  }
  out[y * width + x] = static_cast<unsigned char>(steps);
}

#else

CASE(if_else) {
  constexpr int count = 1000;
  std::vector<int> in = random_values<int>(count, 0, 1000), wanted(count);
  for (int i = 0; i < count; ++i) {
    int value = in[i], result = 0;
    if (value % 2 == 0) {
      result += 1;
      if (value % 3 == 0) result += 10;
      else if (value % 5 == 0) result = (result + 100) * (value > 500 ? 2 : 1);
      else result -= 7;
    } else {
      result = value < 300 ? 1000 : value % 7 == 0 ? -1 : value;
      result ^= 0x55;
    }
    wanted[i] = result;
  }
  Kernels kernels;
  Buffer<int> x(in), out(count);
  kernels.run("if_else_chains", {blocks_for(count)}, {block_size}, x.address(), out.address(), count);
  expect_same(out.get(), wanted);
}

CASE(loops) {
  constexpr int count = 3000;
  Kernels kernels;
  Buffer<int> out(count), nested(256);
  kernels.run("collatz", {blocks_for(count)}, {block_size}, out.address(), count);
  std::vector<int> wanted(count);
  for (int i = 0; i < count; ++i)
    for (uint64_t value = static_cast<uint64_t>(i) + 1; value != 1; ++wanted[i])
      value = value & 1 ? 3 * value + 1 : value / 2;
  expect_same(out.get(), wanted);

  kernels.run("nested_loops", {2}, {128}, nested.address());
  wanted.assign(256, 0);
  for (int thread = 0; thread < 256; ++thread) {
    wanted[thread] = [lane = thread % 128] {
      int sum = 0;
      for (int i = 0; i < lane % 7 + 1; ++i) {
        for (int j = i;; ++j) {
          if (j * i > lane) break;
          if ((j + lane) % 3 == 0) continue;
          for (int k = j; k > 0; k -= lane % 4 + 1) {
            sum += i * 100 + j * 10 + k;
            if (sum > 20000) return sum;
          }
          if (j > 12) break;
        }
      }
      return sum;
    }();
  }
  expect_same(nested.get(), wanted);
}

CASE(switches) {
  constexpr int count = 1000;
  std::vector<int> in = random_values<int>(count, 0, 30000), wanted(count);
  for (int i = 0; i < count; ++i) {
    int v = in[i];
    int results[16] = {v + 3, v * 5, v ^ 77, v - 1000, v - 1000, v << 3, v >> 1, v * v,
                       -v,    v / 3, v % 11, 12345,    0,        0,      0,      0};
    wanted[i] = results[v % 16];
  }
  Kernels kernels;
  Buffer<int> x(in), out(std::vector<int>(count, 12345));
  kernels.run("switches", {blocks_for(count)}, {block_size}, x.address(), out.address(), count);
  expect_same(out.get(), wanted);

  Buffer<int> table(64);
  kernels.run("table_branch", {}, {64}, table.address());
  wanted.resize(64);
  for (int i = 0; i < 64; ++i) wanted[i] = std::vector<int>{10, 21, 33, 43}[i & 3];
  expect_same(table.get(), wanted);
}

CASE(early_exits) {
  Kernels kernels;
  Buffer<int> out(std::vector<int>(160, -1));
  kernels.run("early_exits", {}, {160}, out.address());
  std::vector<int> wanted(160, -1);
  int count = 0;
  for (int i = 0; i < 160; ++i) count += i % 3 != 1;
  std::vector<int> got = out.get();
  for (int i = 0; i < 160; ++i)
    if (i % 3 != 1 && !(i >= 64 && i < 96)) wanted[i] = count;
  expect_same(got, wanted);
}

CASE(recursion) {
  Kernels kernels;
  Buffer<int> out(64), pairs(64);
  kernels.run("recursion", {}, {64}, out.address());
  std::vector<int> wanted(64);
  std::function<int(int)> fibonacci = [&](int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); };
  for (int i = 0; i < 64; ++i) wanted[i] = fibonacci(i % 16);
  expect_same(out.get(), wanted);

  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16 * 1024));
  kernels.run("deep_recursion", {}, {32}, pairs.address());
  std::function<int(int, int, int*)> ackermann = [&](int m, int n, int* calls) {
    ++*calls;
    if (m == 0) return n + 1;
    return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1, calls), calls);
  };
  for (int i = 0; i < 32; ++i) {
    wanted[2 * i + 1] = 0;
    wanted[2 * i] = ackermann(2, i % 8, &wanted[2 * i + 1]);
  }
  expect_same(pairs.get(), wanted);

  kernels.run("mutual_recursion", {}, {64}, out.address());
  for (int i = 0; i < 64; ++i) wanted[i] = i % 2 == 0 ? 2 : 1;
  expect_same(out.get(), wanted);
}

CASE(stack_overflow) {
  Kernels kernels;
  Buffer<int> out(64);
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
  OK(kernels.try_launch("recursion_to", {}, {1}, 0, nullptr, 1000000, out.address()));
  CUresult result = cuCtxSynchronize();
  HOLDS(result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_HARDWARE_STACK_ERROR ||
        result == CUDA_ERROR_LAUNCH_FAILED);
}

CASE(calls) {
  Kernels kernels;
  Buffer<int> out(96);
  kernels.run("function_pointers", {}, {96}, out.address());
  std::vector<int> wanted(96);
  for (int i = 0; i < 96; ++i) {
    int a = i, b = 3 + i % 5, power = 1;
    for (int k = 0; k < (b & 7); ++k) power = static_cast<int>(static_cast<unsigned>(power) * a);
    wanted[i] = std::vector<int>{a + b, a - b, a * b, power}[(i >> 1) & 3];
  }
  expect_same(out.get(), wanted);

  Buffer<float> areas(96);
  kernels.run("virtual_functions", {}, {96}, areas.address());
  std::vector<float> wanted_areas(96);
  for (int i = 0; i < 96; ++i) {
    float size = static_cast<float>(i);
    wanted_areas[i] = i % 3 == 0 ? 3.0f * size * size : i % 3 == 1 ? size * 2.0f + 4 : size * size + 40;
  }
  expect_same(areas.get(), wanted_areas);

  Buffer<float> series(32);
  kernels.run("structures_by_value", {}, {32}, series.address());
  std::vector<float> fibonacci = {0, 1};
  while (fibonacci.size() < 32) fibonacci.push_back(fibonacci[fibonacci.size() - 1] + fibonacci[fibonacci.size() - 2]);
  expect_same(series.get(), fibonacci);
}

CASE(spin_locks) {
  Kernels kernels;
  for (const char* name : {"spin_lock", "spin_lock_in_loop"}) {
    Buffer<int> lock(1), counter(1);
    lock.clear();
    counter.clear();
    kernels.run(name, {8}, {96}, lock.address(), counter.address());
    expect_same(counter.get(), {8 * 96});
    expect_same(lock.get(), {0});
  }
}

CASE(waiting_lanes) {
  Kernels kernels;
  Buffer<int> turn(1), order(256), sums(32);
  turn.clear();
  kernels.run("chain_of_lanes", {4}, {64}, turn.address(), order.address());
  std::vector<int> wanted(256);
  for (int i = 0; i < 256; ++i) wanted[i] = i * i;
  expect_same(order.get(), wanted);

  kernels.run("producer_and_consumer", {}, {32}, sums.address());
  wanted.assign(32, 0);
  for (int i = 1; i < 32; i += 2) wanted[i] = i / 2 * 190;
  expect_same(sums.get(), wanted);
}

CASE(warp_barriers) {
  Kernels kernels;
  Buffer<int> out(64);
  kernels.run("warp_barriers", {}, {64}, out.address());
  std::vector<int> wanted(64, 496);
  std::fill(wanted.begin() + 32, wanted.end(), 496 + 32 * 32);
  expect_same(out.get(), wanted);

  Buffer<unsigned> masks(64);
  kernels.run("active_masks", {}, {32}, masks.address());
  std::vector<unsigned> wanted_masks(64, ~0u);
  for (unsigned i = 0; i < 32; ++i) wanted_masks[i] = i % 4 == 1 ? 0x22222222u : i < 8 ? 0xddu : 0;
  expect_same(masks.get(), wanted_masks);
}

CASE(block_barriers) {
  Kernels kernels;
  Buffer<int> out(3 * 250), consumed(64);
  kernels.run("barrier_reductions", {}, {250}, out.address());
  std::vector<int> wanted(250, 84);
  wanted.resize(500, 0);
  wanted.resize(750, 10);
  expect_same(out.get(), wanted);

  kernels.run("named_barriers", {}, {128}, consumed.address());
  wanted.assign(64, 0);
  for (int i = 0; i < 64; ++i) wanted[i] = (63 - i) * 10;
  expect_same(consumed.get(), wanted);
}

CASE(predicated_stores) {
  Kernels kernels;
  constexpr int rounds = 20, threads = 64;
  Buffer<int> out(std::vector<int>(rounds * threads, 999));
  kernels.run("predicated_stores", {}, {threads}, out.address(), rounds);
  std::vector<int> wanted(rounds * threads, 999);
  for (int k = 0; k < rounds; ++k)
    for (int i = 0; i < threads; ++i)
      if ((i >> (k & 4)) & 1) wanted[k * threads + i] = k - i;
  expect_same(out.get(), wanted);
}

CASE(clocks) {
  Kernels kernels;
  Buffer<long long> out(2);
  kernels.run("clocks", {}, {1}, out.address());
  std::vector<long long> got = out.get();
  HOLDS(got[0] > 0);
  HOLDS(got[1] > 0);
}

CASE(mandelbrot) {
  constexpr int width = 200, height = 150;
  Kernels kernels;
  Buffer<unsigned char> out(width * height);
  kernels.run("mandelbrot", {(width + 15) / 16, (height + 15) / 16}, {16, 16}, out.address(), width, height);
  std::vector<unsigned char> wanted(width * height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      float cx = -2.0f + 3.0f * static_cast<float>(x) / width;
      float cy = -1.0f + 2.0f * static_cast<float>(y) / height, zx = 0, zy = 0;
      int steps = 0;
      while (steps < 100 && zx * zx + zy * zy < 4.0f) {
        float next = zx * zx - zy * zy + cx;
        zy = 2.0f * zx * zy + cy;
        zx = next;
        ++steps;
      }
      wanted[y * width + x] = static_cast<unsigned char>(steps);
    }
  }
  expect_same(out.get(), wanted);
}

#endif
