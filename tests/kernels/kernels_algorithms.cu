// Whole algorithms, as programs use them.

#include "harness.h"

#ifdef __CUDACC__

#include <curand_kernel.h>

extern "C" __global__ void matrix_product(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[16][16], tile_b[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int first = 0; first < n; first += 16) {
    int k = first + threadIdx.x, l = first + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < n && k < n ? a[row * n + k] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = l < n && column < n ? b[l * n + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, int count) {
  __shared__ unsigned own[256];
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) atomicAdd(&own[in[i]], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

// Sorts blocks of 512 numbers in shared memory.
extern "C" __global__ void bitonic_sort(int* data) {
  __shared__ int values[512];
  int* block = data + blockIdx.x * 512;
  values[threadIdx.x] = block[threadIdx.x];
  values[threadIdx.x + 256] = block[threadIdx.x + 256];
  for (int size = 2; size <= 512; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      int low = 2 * threadIdx.x - (threadIdx.x & (stride - 1)), high = low + stride;
      bool is_ascending = (low & size) == 0;
      int a = values[low], b = values[high];
      if ((a > b) == is_ascending) {
        values[low] = b;
        values[high] = a;
      }
    }
  }
  __syncthreads();
  block[threadIdx.x] = values[threadIdx.x];
  block[threadIdx.x + 256] = values[threadIdx.x + 256];
}

// One bit of a radix sort of one block: ones go behind the zeros.
extern "C" __global__ void radix_sort(unsigned* data, int count) {
  __shared__ unsigned warp_zeros[32];
  __shared__ unsigned all_zeros;
  int i = threadIdx.x, lane = i % 32;
  unsigned value = i < count ? data[i] : ~0u;
  extern __shared__ unsigned sorted[];
  for (int bit = 0; bit < 32; ++bit) {
    bool is_zero = ((value >> bit) & 1) == 0;
    unsigned zeros = __ballot_sync(~0u, is_zero);
    if (lane == 0) warp_zeros[i / 32] = __popc(zeros);
    __syncthreads();
    if (i == 0) {
      unsigned sum = 0;
      for (unsigned w = 0; w < blockDim.x / 32; ++w) {
        unsigned own = warp_zeros[w];
        warp_zeros[w] = sum;
        sum += own;
      }
      all_zeros = sum;
    }
    __syncthreads();
    unsigned before = warp_zeros[i / 32] + __popc(zeros & ((1u << lane) - 1));
    sorted[is_zero ? before : all_zeros + i - before] = value;
    __syncthreads();
    value = sorted[i];
    __syncthreads();
  }
  if (i < count) data[i] = value;
}

extern "C" __global__ void stencil_1d(const float* in, float* out, int count) {
  __shared__ float tile[128 + 6];
  int i = blockIdx.x * 128 + threadIdx.x;
  auto at = [&](int k) { return k >= 0 && k < count ? in[k] : 0.0f; };
  tile[threadIdx.x + 3] = at(i);
  if (threadIdx.x < 3) {
    tile[threadIdx.x] = at(i - 3);
    tile[threadIdx.x + 131] = at(i + 128);
  }
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 7; ++k) sum += tile[threadIdx.x + k];
  if (i < count) out[i] = sum;
}

extern "C" __global__ void heat(const double* in, double* out, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  int i = y * width + x;
  if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
    out[i] = in[i];
    return;
  }
  out[i] = in[i] + 0.125 * (in[i - 1] + in[i + 1] + in[i - width] + in[i + width] - 4 * in[i]);
}

extern "C" __global__ void n_body(const float4* positions, float4* forces, int count) {
  __shared__ float4 tile[64];
  int i = blockIdx.x * 64 + threadIdx.x;
  float4 own = positions[i];
  float x = 0, y = 0, z = 0;
  for (int first = 0; first < count; first += 64) {
    tile[threadIdx.x] = positions[first + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 64; ++k) {
      float4 other = tile[k];
      float dx = other.x - own.x, dy = other.y - own.y, dz = other.z - own.z;
      float square = dx * dx + dy * dy + dz * dz + 1e-3f;
      float inverse = __frcp_rn(__fsqrt_rn(square));
      float strength = other.w * inverse * inverse * inverse;
      x += dx * strength;
      y += dy * strength;
      z += dz * strength;
    }
    __syncthreads();
  }
  forces[i] = make_float4(x, y, z, own.w);
}

extern "C" __global__ void monte_carlo_pi(unsigned long long* hits, int rounds) {
  curandState state;
  curand_init(1234, blockIdx.x * blockDim.x + threadIdx.x, 0, &state);
  unsigned own = 0;
  for (int i = 0; i < rounds; ++i) {
    float x = curand_uniform(&state), y = curand_uniform(&state);
    own += x * x + y * y <= 1.0f;
  }
  atomicAdd(hits, static_cast<unsigned long long>(own));
}

extern "C" __global__ void philox(uint4* out, unsigned long long seed) {
  curandStatePhilox4_32_10_t state;
  curand_init(seed, threadIdx.x, 0, &state);
  out[2 * threadIdx.x] = curand4(&state);
  out[2 * threadIdx.x + 1] = curand4(&state);
}

extern "C" __global__ void xorwow(unsigned* out, float* normals) {
  curandStateXORWOW_t state;
  curand_init(77, threadIdx.x, 5, &state);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = curand(&state);
  for (int i = 0; i < 64; ++i) normals[threadIdx.x * 64 + i] = curand_normal(&state);
}

extern "C" __global__ void black_scholes(const float* price, const float* strike, float* call, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float rate = 0.02f, volatility = 0.3f, years = 2.0f;
  float root = sqrtf(years);
  float d1 = (logf(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years) / (volatility * root);
  float d2 = d1 - volatility * root;
  call[i] = price[i] * normcdff(d1) - strike[i] * expf(-rate * years) * normcdff(d2);
}

// A sparse matrix in rows, one warp per row.
extern "C" __global__ void sparse_product(const int* row_start, const int* columns, const double* values,
                                          const double* x, double* y, int rows) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  double sum = 0;
  for (int i = row_start[row] + lane; i < row_start[row + 1]; i += 32) sum += values[i] * x[columns[i]];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) y[row] = sum;
}

// Breadth-first search, one level per launch.
extern "C" __global__ void search_level(const int* edge_start, const int* edges, int* levels, int level, int vertices,
                                        int* has_changed) {
  int vertex = blockIdx.x * blockDim.x + threadIdx.x;
  if (vertex >= vertices || levels[vertex] != level) return;
  for (int i = edge_start[vertex]; i < edge_start[vertex + 1]; ++i)
    if (atomicCAS(&levels[edges[i]], -1, level + 1) == -1) *has_changed = 1;
}

extern "C" __global__ void game_of_life(const unsigned char* in, unsigned char* out, int size) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= size || y >= size) return;
  int neighbours = 0;
  for (int dy = -1; dy <= 1; ++dy)
    for (int dx = -1; dx <= 1; ++dx)
      if (dx != 0 || dy != 0) neighbours += in[(y + dy + size) % size * size + (x + dx + size) % size];
  out[y * size + x] = neighbours == 3 || (neighbours == 2 && in[y * size + x]);
}

// Walsh-Hadamard transform of blocks of 256 numbers.
extern "C" __global__ void walsh(float* data) {
  __shared__ float values[256];
  float* block = data + blockIdx.x * 256;
  values[threadIdx.x] = block[threadIdx.x];
  values[threadIdx.x + 128] = block[threadIdx.x + 128];
  for (int stride = 1; stride < 256; stride *= 2) {
    __syncthreads();
    int low = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
    float a = values[low], b = values[low + stride];
    values[low] = a + b;
    values[low + stride] = a - b;
  }
  __syncthreads();
  block[threadIdx.x] = values[threadIdx.x];
  block[threadIdx.x + 128] = values[threadIdx.x + 128];
}

extern "C" __global__ void fast_fourier(double2* data, int log_size) {
  int size = 1 << log_size;
  extern __shared__ double2 points[];
  for (int i = threadIdx.x; i < size; i += blockDim.x) points[__brev(i) >> (32 - log_size)] = data[i];
  for (int half = 1; half < size; half *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < size / 2; i += blockDim.x) {
      int k = i % half, low = i / half * 2 * half + k;
      double sine, cosine;
      sincospi(-static_cast<double>(k) / half, &sine, &cosine);
      double2 a = points[low], b = points[low + half];
      double2 turned = make_double2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
      points[low] = make_double2(a.x + turned.x, a.y + turned.y);
      points[low + half] = make_double2(a.x - turned.x, a.y - turned.y);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += blockDim.x) data[i] = points[i];
}

// Edit distance of two words, one anti-diagonal after the other.
extern "C" __global__ void edit_distance(const char* a, const char* b, int n, int* out) {
  __shared__ int rows[3][129];
  int i = threadIdx.x;
  for (int diagonal = 0; diagonal <= 2 * n; ++diagonal) {
    int j = diagonal - i;
    if (i <= n && j >= 0 && j <= n) {
      int best;
      if (i == 0 || j == 0) {
        best = i + j;
      } else {
        best = min(rows[(diagonal + 2) % 3][i], rows[(diagonal + 2) % 3][i - 1]) + 1;
        best = min(best, rows[(diagonal + 1) % 3][i - 1] + (a[i - 1] != b[j - 1]));
      }
      rows[diagonal % 3][i] = best;
    }
    __syncthreads();
  }
  if (i == n) *out = rows[2 * n % 3][n];
}

extern "C" __global__ void sha_rounds(const unsigned* words, unsigned* out) {
  unsigned a = 0x67452301, b = 0xefcdab89, c = 0x98badcfe, d = 0x10325476, e = 0xc3d2e1f0;
  unsigned w[16];
  for (int i = 0; i < 16; ++i) w[i] = words[i] ^ threadIdx.x;
#pragma unroll 1
  for (int i = 0; i < 80; ++i) {
    if (i >= 16) {
      unsigned mixed = w[(i + 13) & 15] ^ w[(i + 8) & 15] ^ w[(i + 2) & 15] ^ w[i & 15];
      w[i & 15] = mixed << 1 | mixed >> 31;
    }
    unsigned f = i < 20 ? (b & c) | (~b & d) : i < 40 ? b ^ c ^ d : i < 60 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
    unsigned k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
    unsigned next = (a << 5 | a >> 27) + f + e + k + w[i & 15];
    e = d;
    d = c;
    c = b << 30 | b >> 2;
    b = a;
    a = next;
  }
  out[threadIdx.x] = a ^ b ^ c ^ d ^ e;
}

#else

CASE(matrix_product) {
  constexpr int n = 100;
  std::vector<float> a = random_values<float>(n * n, -1, 1), b = random_values<float>(n * n, -1, 1);
  Kernels kernels;
  Buffer<float> x(a), y(b), z(n * n);
  kernels.run("matrix_product", {(n + 15) / 16, (n + 15) / 16}, {16, 16}, x.address(), y.address(), z.address(), n);
  std::vector<float> wanted(n * n);
  for (int row = 0; row < n; ++row)
    for (int column = 0; column < n; ++column)
      for (int k = 0; k < n; ++k) wanted[row * n + column] += a[row * n + k] * b[k * n + column];
  expect_same(z.get(), wanted);
}

CASE(histogram) {
  constexpr int count = 100000;
  std::vector<unsigned char> in = random_values<unsigned char>(count, 0, 255);
  std::vector<unsigned> wanted(256);
  for (unsigned char value : in) ++wanted[value];
  Kernels kernels;
  Buffer<unsigned char> x(in);
  Buffer<unsigned> bins(256);
  bins.clear();
  kernels.run("histogram", {10}, {256}, x.address(), bins.address(), count);
  expect_same(bins.get(), wanted);
}

CASE(sort) {
  std::vector<int> in = random_values<int>(512 * 8, -1000000, 1000000);
  Kernels kernels;
  Buffer<int> data(in);
  kernels.run("bitonic_sort", {8}, {256}, data.address());
  for (auto first = in.begin(); first != in.end(); first += 512) std::sort(first, first + 512);
  expect_same(data.get(), in);

  std::vector<unsigned> keys = random_values<unsigned>(1000, 0, UINT32_MAX);
  Buffer<unsigned> radix(keys);
  kernels.run_with_shared("radix_sort", {}, {1024}, 4096, radix.address(), 1000);
  std::sort(keys.begin(), keys.end());
  expect_same(radix.get(), keys);
}

CASE(stencils) {
  constexpr int count = 1000;
  std::vector<float> in = random_values<float>(count, -1, 1), wanted(count);
  for (int i = 0; i < count; ++i)
    for (int k = i - 3; k <= i + 3; ++k) wanted[i] += k >= 0 && k < count ? in[k] : 0.0f;
  Kernels kernels;
  Buffer<float> x(in), out(count);
  kernels.run("stencil_1d", {blocks_for(count, 128)}, {128}, x.address(), out.address(), count);
  expect_same(out.get(), wanted);

  constexpr int width = 70, height = 50;
  std::vector<double> plate = random_values<double>(width * height, 0, 100);
  Buffer<double> even(plate), odd(plate.size());
  for (int step = 0; step < 10; ++step) {
    Buffer<double>&from = step % 2 == 0 ? even : odd, &to = step % 2 == 0 ? odd : even;
    kernels.run("heat", {(width + 15) / 16, (height + 15) / 16}, {16, 16}, from.address(), to.address(), width, height);
    std::vector<double> next = plate;
    for (int y = 1; y < height - 1; ++y) {
      for (int x_at = 1; x_at < width - 1; ++x_at) {
        int i = y * width + x_at;
        next[i] = plate[i] + 0.125 * (plate[i - 1] + plate[i + 1] + plate[i - width] + plate[i + width] - 4 * plate[i]);
      }
    }
    plate = next;
  }
  expect_same(even.get(), plate);
}

CASE(n_body) {
  constexpr int count = 256;
  std::vector<float> positions = random_values<float>(4 * count, -1, 1), wanted(4 * count);
  Kernels kernels;
  Buffer<float> in(positions), out(4 * count);
  kernels.run("n_body", {count / 64}, {64}, in.address(), out.address(), count);
  for (int i = 0; i < count; ++i) {
    const float* own = &positions[4 * i];
    float x = 0, y = 0, z = 0;
    for (int k = 0; k < count; ++k) {
      const float* other = &positions[4 * k];
      float dx = other[0] - own[0], dy = other[1] - own[1], dz = other[2] - own[2];
      float square = dx * dx + dy * dy + dz * dz + 1e-3f;
      float inverse = 1.0f / std::sqrt(square);
      float strength = other[3] * inverse * inverse * inverse;
      x += dx * strength;
      y += dy * strength;
      z += dz * strength;
    }
    float result[] = {x, y, z, own[3]};
    std::copy(result, result + 4, &wanted[4 * i]);
  }
  expect_same(out.get(), wanted);
}

CASE(monte_carlo) {
  constexpr int blocks = 8, threads = 128, rounds = 200;
  Kernels kernels;
  Buffer<unsigned long long> hits(1);
  hits.clear();
  kernels.run("monte_carlo_pi", {blocks}, {threads}, hits.address(), rounds);
  double pi = 4.0 * static_cast<double>(hits.get()[0]) / (blocks * threads * rounds);
  if (std::fabs(pi - 3.14159265) > 0.02) report("pi is %.5f", pi);
}

CASE(philox) {
  constexpr uint64_t seed = 0x123456789abcdefull;
  Kernels kernels;
  Buffer<unsigned> out(32 * 8);
  kernels.run("philox", {}, {32}, out.address(), static_cast<unsigned long long>(seed));
  // Philox 4x32 with ten rounds: Salmon et al., Parallel random numbers: as easy as 1, 2, 3.
  std::vector<unsigned> wanted;
  for (unsigned thread = 0; thread < 32; ++thread) {
    for (unsigned number = 0; number < 2; ++number) {
      uint32_t c[4] = {number, 0, thread, 0}, k[2] = {uint32_t(seed), uint32_t(seed >> 32)};
      for (int round = 0; round < 10; ++round) {
        uint64_t p0 = uint64_t{0xd2511f53} * c[0], p1 = uint64_t{0xcd9e8d57} * c[2];
        uint32_t next[4] = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1],
                            uint32_t(p0)};
        std::copy(next, next + 4, c);
        k[0] += 0x9e3779b9;
        k[1] += 0xbb67ae85;
      }
      wanted.insert(wanted.end(), c, c + 4);
    }
  }
  expect_same(out.get(), wanted);
}

CASE(random_states) {
  constexpr int threads = 64;
  Kernels kernels;
  Buffer<unsigned> out(threads * 4);
  Buffer<float> normals(threads * 64);
  kernels.run("xorwow", {}, {threads}, out.address(), normals.address());
  std::vector<unsigned> numbers = out.get();
  std::sort(numbers.begin(), numbers.end());
  HOLDS(std::unique(numbers.begin(), numbers.end()) == numbers.end());
  double sum = 0, squares = 0;
  for (float value : normals.get()) {
    sum += value;
    squares += double{value} * value;
  }
  HOLDS(std::fabs(sum / (threads * 64)) < 0.1);
  HOLDS(std::fabs(squares / (threads * 64) - 1) < 0.1);
}

CASE(black_scholes) {
  constexpr int count = 2000;
  std::vector<float> price = random_values<float>(count, 5, 30);
  std::vector<float> strike = random_values<float>(count, 1, 100), wanted(count);
  for (int i = 0; i < count; ++i) {
    double root = std::sqrt(2.0), p = price[i], s = strike[i];
    double d1 = (std::log(p / s) + (0.02 + 0.045) * 2) / (0.3 * root), d2 = d1 - 0.3 * root;
    auto normal = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
    wanted[i] = static_cast<float>(p * normal(d1) - s * std::exp(-0.04) * normal(d2));
  }
  Kernels kernels;
  Buffer<float> x(price), y(strike), out(count);
  kernels.run("black_scholes", {blocks_for(count)}, {block_size}, x.address(), y.address(), out.address(), count);
  expect_near(out.get(), wanted, 1e-4, 1e-4);
}

CASE(sparse_product) {
  constexpr int rows = 300;
  std::vector<int> row_start = {0}, columns;
  std::vector<double> values, x = random_values<double>(rows, -1, 1), wanted(rows);
  for (int row = 0; row < rows; ++row) {
    int length = random_values<int>(1, 0, 90)[0];
    double lanes[32] = {};
    for (int i = 0; i < length; ++i) {
      columns.push_back(random_values<int>(1, 0, rows - 1)[0]);
      values.push_back(random_values<double>(1, -1, 1)[0]);
      lanes[i % 32] += values.back() * x[columns.back()];
    }
    row_start.push_back(static_cast<int>(columns.size()));
    for (int offset = 16; offset > 0; offset /= 2)
      for (int lane = 0; lane < offset; ++lane) lanes[lane] += lanes[lane + offset];
    wanted[row] = lanes[0];
  }
  Kernels kernels;
  Buffer<int> starts(row_start), column_buffer(columns);
  Buffer<double> value_buffer(values), vector(x), out(rows);
  kernels.run("sparse_product", {blocks_for(rows * 32)}, {block_size}, starts.address(), column_buffer.address(),
              value_buffer.address(), vector.address(), out.address(), rows);
  expect_same(out.get(), wanted);
}

CASE(graph_search) {
  constexpr int vertices = 2000;
  std::vector<int> start = {0}, edges, levels(vertices, -1), wanted(vertices, -1);
  for (int vertex = 0; vertex < vertices; ++vertex) {
    for (int target : random_values<int>(3, 0, vertices - 1)) edges.push_back(target);
    start.push_back(static_cast<int>(edges.size()));
  }
  levels[0] = wanted[0] = 0;
  std::vector<int> frontier = {0};
  for (int level = 1; !frontier.empty(); ++level) {
    std::vector<int> next;
    for (int vertex : frontier)
      for (int i = start[vertex]; i < start[vertex + 1]; ++i)
        if (wanted[edges[i]] == -1) {
          wanted[edges[i]] = level;
          next.push_back(edges[i]);
        }
    frontier = next;
  }
  Kernels kernels;
  Buffer<int> starts(start), edge_buffer(edges), level_buffer(levels), has_changed(1);
  for (int level = 0; level < vertices; ++level) {
    has_changed.clear();
    kernels.run("search_level", {blocks_for(vertices)}, {block_size}, starts.address(), edge_buffer.address(),
                level_buffer.address(), level, vertices, has_changed.address());
    if (has_changed.get()[0] == 0) break;
  }
  expect_same(level_buffer.get(), wanted);
}

CASE(game_of_life) {
  constexpr int size = 64;
  std::vector<unsigned char> cells = random_values<unsigned char>(size * size, 0, 1);
  Kernels kernels;
  Buffer<unsigned char> even(cells), odd(cells.size());
  for (int step = 0; step < 8; ++step) {
    bool is_even = step % 2 == 0;
    kernels.run("game_of_life", {size / 16, size / 16}, {16, 16}, (is_even ? even : odd).address(),
                (is_even ? odd : even).address(), size);
    std::vector<unsigned char> next(cells.size());
    for (int i = 0; i < size * size; ++i) {
      int x = i % size, y = i / size, neighbours = -cells[i];
      for (int k = 0; k < 9; ++k)
        neighbours += cells[(y + k / 3 + size - 1) % size * size + (x + k % 3 + size - 1) % size];
      next[i] = neighbours == 3 || (neighbours == 2 && cells[i]);
    }
    cells = next;
  }
  expect_same(even.get(), cells);
}

CASE(transforms) {
  std::vector<float> in = random_values<float>(1024, -1, 1);
  Kernels kernels;
  Buffer<float> data(in);
  kernels.run("walsh", {4}, {128}, data.address());
  for (size_t first = 0; first < in.size(); first += 256)
    for (size_t stride = 1; stride < 256; stride *= 2)
      for (size_t i = 0; i < 256; ++i)
        if ((i & stride) == 0) {
          float a = in[first + i], b = in[first + i + stride];
          in[first + i] = a + b;
          in[first + i + stride] = a - b;
        }
  expect_same(data.get(), in);

  constexpr int size = 512;
  std::vector<double> signal = random_values<double>(2 * size, -1, 1), wanted(2 * size);
  for (int k = 0; k < size; ++k)
    for (int i = 0; i < size; ++i) {
      double angle = -2 * M_PI * (k * i % size) / size;
      double sine = std::sin(angle), cosine = std::cos(angle);
      wanted[2 * k] += signal[2 * i] * cosine - signal[2 * i + 1] * sine;
      wanted[2 * k + 1] += signal[2 * i] * sine + signal[2 * i + 1] * cosine;
    }
  Buffer<double> points(signal);
  kernels.run_with_shared("fast_fourier", {}, {128}, size * 16, points.address(), 9);
  expect_near(points.get(), wanted, 0, 1e-11);
}

CASE(edit_distance) {
  constexpr int n = 100;
  std::vector<char> a = random_values<char>(n, 'a', 'd'), b = random_values<char>(n, 'a', 'd');
  std::vector<std::vector<int> > best(n + 1, std::vector<int>(n + 1));
  for (int i = 0; i <= n; ++i)
    for (int j = 0; j <= n; ++j)
      best[i][j] =
          i == 0 || j == 0
              ? i + j
              : std::min({best[i - 1][j] + 1, best[i][j - 1] + 1, best[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
  Kernels kernels;
  Buffer<char> x(a), y(b);
  Buffer<int> out(1);
  kernels.run("edit_distance", {}, {128}, x.address(), y.address(), n, out.address());
  expect_same(out.get(), {best[n][n]});
}

CASE(hash) {
  std::vector<unsigned> words = random_values<unsigned>(16, 0, UINT32_MAX), wanted(64);
  for (unsigned thread = 0; thread < 64; ++thread) {
    unsigned h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}, w[80];
    for (int i = 0; i < 80; ++i) {
      unsigned mixed = i < 16 ? 0 : w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16];
      w[i] = i < 16 ? words[i] ^ thread : mixed << 1 | mixed >> 31;
      unsigned b = h[1], c = h[2], d = h[3];
      unsigned functions[] = {(b & c) | (~b & d), b ^ c ^ d, (b & c) | (b & d) | (c & d), b ^ c ^ d};
      unsigned constants[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
      unsigned next = (h[0] << 5 | h[0] >> 27) + functions[i / 20] + h[4] + constants[i / 20] + w[i];
      h[4] = d;
      h[3] = c;
      h[2] = b << 30 | b >> 2;
      h[1] = h[0];
      h[0] = next;
    }
    wanted[thread] = h[0] ^ h[1] ^ h[2] ^ h[3] ^ h[4];
  }
  Kernels kernels;
  Buffer<unsigned> in(words), out(64);
  kernels.run("sha_rounds", {}, {64}, in.address(), out.address());
  expect_same(out.get(), wanted);
}

#endif
