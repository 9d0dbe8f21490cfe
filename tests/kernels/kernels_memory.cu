// The memory spaces: global, constant, shared, local, parameters, and generic pointers to them.

#include "harness.h"

struct Record {
  char tag;
  short small;
  int medium;
  long long large;
  double real;
  float vector[3];
};

#ifdef __CUDACC__

__constant__ int constant_table[64];
__constant__ float constant_initialized[4] = {1.5f, -2.25f, 1e-3f, 3e8f};
__device__ int device_counter = 41;
__device__ unsigned char device_bytes[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
__device__ int* device_pointer = &device_counter;
__device__ const char* device_text = "text in device memory";
__managed__ int managed_value = 7;

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

extern "C" __global__ void read_constants(int* out, float* floats) {
  out[threadIdx.x] = constant_table[63 - threadIdx.x] * 2;
  if (threadIdx.x < 4) floats[threadIdx.x] = constant_initialized[threadIdx.x];
}

extern "C" __global__ void use_globals(int* out, char* text) {
  if (threadIdx.x == 0) {
    ++device_counter;
    out[0] = *device_pointer;
    out[1] = managed_value++;
    for (int i = 0; (text[i] = device_text[i]) != 0; ++i)
      ;
  }
  __syncthreads();
  if (threadIdx.x < 16) device_bytes[threadIdx.x] ^= threadIdx.x;
}

// Blocks of 256: each element moves to its mirror image within the block.
extern "C" __global__ void reverse_in_shared(int* data) {
  __shared__ int tile[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  tile[threadIdx.x] = data[i];
  __syncthreads();
  data[i] = tile[255 - threadIdx.x];
}

extern "C" __global__ void reverse_in_dynamic_shared(int* data, int count) {
  extern __shared__ int dynamic_tile[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) dynamic_tile[i] = data[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = dynamic_tile[count - 1 - i];
}

extern "C" __global__ void shared_sizes(unsigned* out) {
  unsigned dynamic_bytes, total_bytes;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic_bytes));
  asm volatile("mov.u32 %0, %%total_smem_size;" : "=r"(total_bytes));
  __shared__ int fixed[100];
  fixed[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[0] = dynamic_bytes;
  out[1] = total_bytes - dynamic_bytes >= sizeof fixed ? fixed[0] : 1;
}

// Indexing that is not known at compile time keeps the array in local memory.
extern "C" __global__ void permute_in_local(const int* in, int* out, int rounds) {
  int values[32];
  for (int i = 0; i < 32; ++i) values[i] = in[i] + threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    int from = (round * 7 + threadIdx.x) & 31, to = (round * 13 + 5) & 31;
    int swap = values[from];
    values[from] = values[to];
    values[to] = swap;
  }
  for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = values[i];
}

__device__ __noinline__ int sum_through(const int* generic, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum = sum * 3 + generic[i];
  return sum;
}

// One routine reads global, shared, local and constant memory through generic pointers.
extern "C" __global__ void generic_pointers(const int* global, int* out) {
  __shared__ int shared[16];
  int local[16];
  if (threadIdx.x < 16) shared[threadIdx.x] = global[threadIdx.x] + 1;
  for (int i = 0; i < 16; ++i) local[i] = global[(i + threadIdx.x) & 15];
  __syncthreads();
  const int* pointers[] = {global, shared, local, constant_table};
  const int* chosen = pointers[threadIdx.x & 3];
  out[threadIdx.x] = sum_through(chosen, 16);
  bool is_right = __isGlobal(global) && __isShared(shared) && __isLocal(local) && __isConstant(constant_table) &&
                  !__isGlobal(shared) && !__isShared(local) && !__isLocal(global);
  if (!is_right) out[threadIdx.x] = 0;
}

extern "C" __global__ void copy_records(const Record* in, Record* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Record record = in[i];
  record.tag ^= 0x20;
  record.small += 1;
  record.medium -= 2;
  record.large *= 3;
  record.real /= 4;
  record.vector[i % 3] = 5;
  out[i] = record;
}

extern "C" __global__ void record_parameter(const Record record, int index, float* out) {
  out[0] = record.tag + record.small + record.medium;
  out[1] = static_cast<float>(record.large) + static_cast<float>(record.real);
  out[2] = record.vector[index];
}

extern "C" __global__ void parameters_of_all_sizes(char a, short b, int c, long long d, char e, double f, float3 g,
                                                   unsigned char h, double* out) {
  double values[] = {double(a), double(b), double(c), double(d), double(e), f, g.x, g.y, double(g.z), double(h)};
  for (int i = 0; i < 10; ++i) out[i] = values[i];
}

extern "C" __global__ void vector_accesses(const uint4* in4, const ushort4* in_short, const uchar4* in_byte,
                                           const double2* in_double, uint4* out4, ushort4* out_short, uchar4* out_byte,
                                           double2* out_double) {
  int i = threadIdx.x;
  uint4 a = in4[i];
  out4[i] = make_uint4(a.w, a.z, a.y, a.x);
  ushort4 b = in_short[i];
  out_short[i] = make_ushort4(b.w, b.z, b.y, b.x);
  uchar4 c = in_byte[i];
  out_byte[i] = make_uchar4(c.w, c.z, c.y, c.x);
  double2 d = in_double[i];
  out_double[i] = make_double2(d.y, d.x);
}

// The cache operators change nothing that one can see.
extern "C" __global__ void cache_operators(const int* in, int* out) {
  int i = threadIdx.x;
  int sum = __ldg(in + i) + __ldca(in + i) + __ldcg(in + i) + __ldcs(in + i) + __ldlu(in + i) + __ldcv(in + i);
  __stwb(out + i, sum);
  __stcg(out + i + 32, sum);
  __stcs(out + i + 64, sum);
  __stwt(out + i + 96, sum);
}

extern "C" __global__ void transpose(const float* in, float* out, int width, int height) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int row = 0; row < 32; row += 8)
    if (x < width && y + row < height) tile[threadIdx.y + row][threadIdx.x] = in[(y + row) * width + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int row = 0; row < 32; row += 8)
    if (x < height && y + row < width) out[(y + row) * height + x] = tile[threadIdx.x][threadIdx.y + row];
}

// A list of as many nodes as the thread's number says, on the device's heap.
struct Node {
  int value;
  Node* next;
};

extern "C" __global__ void lists_on_heap(int* sums, int* failures) {
  Node* first = nullptr;
  int count = (threadIdx.x + blockIdx.x) % 40;
  for (int i = 1; i <= count; ++i) {
    Node* node = static_cast<Node*>(malloc(sizeof(Node)));
    if (node == nullptr) {
      atomicAdd(failures, 1);
      break;
    }
    *node = Node{i, first};
    first = node;
  }
  int sum = 0;
  while (first != nullptr) {
    Node* next = first->next;
    sum += first->value;
    free(first);
    first = next;
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void exhaust_heap(unsigned long long bytes, int* was_null) {
  void* memory = malloc(bytes);
  *was_null = memory == nullptr;
  free(memory);
}

extern "C" __global__ void fill_bytes(unsigned char* out, int count) {
  memset(out, 0xa5, count);
  memcpy(out + count, out, count / 2);
}

extern "C" __global__ void global_index(unsigned* out) {
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned lane, warp, warps;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  // The slot of the multiprocessor, which others may share (PTX ISA, %warpid)
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm("mov.u32 %0, %%nwarpid;" : "=r"(warps));
  out[block * threads + thread] =
      block * 1000 + thread + (lane == thread % 32 ? 0 : 100000) + (warp < warps ? 0 : 1000000);
}

#else

namespace {

std::vector<int> iota(size_t count, int first = 0) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<int>(i);
  return values;
}

CUdeviceptr global(const Kernels& kernels, const char* name, size_t bytes) {
  CUdeviceptr address;
  size_t size;
  OK(cuModuleGetGlobal(&address, &size, kernels.module(), name));
  HOLDS(size == bytes);
  return address;
}

}  // namespace

CASE(vector_add) {
  size_t count = 100003;
  auto a = random_values<float>(count, -1e3f, 1e3f), b = random_values<float>(count, -1.f, 1.f);
  Kernels kernels;
  Buffer<float> x(a), y(b), z(count);
  kernels.run("vector_add", {blocks_for(count)}, {block_size}, x.address(), y.address(), z.address(),
              static_cast<int>(count));
  for (size_t i = 0; i < count; ++i) a[i] += b[i];
  expect_same(z.get(), a);
}

CASE(constants) {
  Kernels kernels;
  std::vector<int> table = random_values<int>(64, -1000, 1000);
  OK(cuMemcpyHtoD(global(kernels, "constant_table", 256), table.data(), 256));
  Buffer<int> out(64);
  Buffer<float> floats(4);
  kernels.run("read_constants", {}, {64}, out.address(), floats.address());
  std::vector<int> wanted(64);
  for (size_t i = 0; i < 64; ++i) wanted[i] = table[63 - i] * 2;
  expect_same(out.get(), wanted);
  expect_same(floats.get(), {1.5f, -2.25f, 1e-3f, 3e8f});
}

CASE(globals) {
  Kernels kernels;
  Buffer<int> out(2);
  Buffer<char> text(64);
  text.clear();
  kernels.run("use_globals", {}, {32}, out.address(), text.address());
  kernels.run("use_globals", {}, {32}, out.address(), text.address());
  expect_same(out.get(), {43, 8});
  HOLDS(text.get().data() == std::string("text in device memory"));
  std::vector<unsigned char> bytes(16), wanted(16);
  OK(cuMemcpyDtoH(bytes.data(), global(kernels, "device_bytes", 16), 16));
  for (size_t i = 0; i < 16; ++i) wanted[i] = static_cast<unsigned char>(i + 1);
  expect_same(bytes, wanted);
  // Each module has globals of its own.
  Kernels other;
  int counter = 0;
  OK(cuMemcpyDtoH(&counter, global(other, "device_counter", 4), 4));
  HOLDS(counter == 41);
  CUdeviceptr managed = global(kernels, "managed_value", 4);
  unsigned is_managed = 0;
  OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  HOLDS(is_managed == 1);
  int value;
  std::memcpy(&value, reinterpret_cast<void*>(managed), sizeof value);
  HOLDS(value == 9);
  CUdeviceptr address;
  GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, nullptr, kernels.module(), "no_such"));
}

CASE(managed_variables) {
  // Program and kernel take turns at the variable of each of two modules.
  Kernels kernels, others;
  Buffer<int> out(2);
  Buffer<char> text(64);
  auto* one = reinterpret_cast<volatile int*>(global(kernels, "managed_value", 4));
  auto* other = reinterpret_cast<volatile int*>(global(others, "managed_value", 4));
  HOLDS(one != other);
  for (int round = 0; round < 3; ++round) {
    *one = 100 * round;
    *other = 1000 * round;
    kernels.run("use_globals", {}, {32}, out.address(), text.address());
    HOLDS(out.get()[1] == 100 * round);
    others.run("use_globals", {}, {32}, out.address(), text.address());
    HOLDS(out.get()[1] == 1000 * round);
    HOLDS(*one == 100 * round + 1);
    HOLDS(*other == 1000 * round + 1);
  }
  CUlibrary library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUdeviceptr address;
  size_t bytes;
  OK(cuLibraryGetManaged(&address, &bytes, library, "managed_value"));
  HOLDS(bytes == 4);
  HOLDS(*reinterpret_cast<int*>(address) == 7);
  GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&address, &bytes, library, "device_bytes"));
  OK(cuLibraryUnload(library));
}

CASE(managed_variable_before_a_context) {
  // As CUDA's runtime asks for the variables of a program, when it has no context yet.
  CUcontext own, primary;
  OK(cuCtxPopCurrent(&own));
  CUlibrary library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUdeviceptr address;
  OK(cuLibraryGetManaged(&address, nullptr, library, "managed_value"));
  auto* variable = reinterpret_cast<volatile int*>(address);
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxPushCurrent(primary));
  HOLDS(*variable == 7);
  *variable = 40;
  {
    Buffer<int> out(2);
    Buffer<char> text(64);
    CUkernel kernel;
    OK(cuLibraryGetKernel(&kernel, library, "use_globals"));
    CUdeviceptr at = out.address(), text_at = text.address();
    void* arguments[] = {&at, &text_at};
    OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuCtxSynchronize());
    HOLDS(*variable == 41);
    HOLDS(out.get()[1] == 40);
  }
  OK(cuLibraryUnload(library));
  OK(cuCtxPopCurrent(nullptr));
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuCtxPushCurrent(own));
}

CASE(shared) {
  std::vector<int> values = iota(1024), wanted(1024);
  for (size_t i = 0; i < 1024; ++i) wanted[i] = values[i / 256 * 256 + 255 - i % 256];
  Kernels kernels;
  Buffer<int> data(values);
  kernels.run("reverse_in_shared", {4}, {256}, data.address());
  expect_same(data.get(), wanted);
}

CASE(dynamic_shared) {
  Kernels kernels;
  // More than 48 KiB has to be asked for.
  for (int count : {1, 1000, 12288, 20000, 57000}) {
    std::vector<int> values = iota(static_cast<size_t>(count));
    Buffer<int> data(values);
    CUfunction function = kernels.get("reverse_in_dynamic_shared");
    unsigned bytes = static_cast<unsigned>(count) * 4;
    if (bytes > 48 * 1024) {
      GIVES(CUDA_ERROR_INVALID_VALUE,
            kernels.try_launch("reverse_in_dynamic_shared", {}, {256}, bytes, nullptr, data.address(), count));
      OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(bytes)));
    }
    kernels.run_with_shared("reverse_in_dynamic_shared", {}, {256}, bytes, data.address(), count);
    expect_same(data.get(), std::vector<int>(values.rbegin(), values.rend()));
  }
}

CASE(shared_sizes) {
  Kernels kernels;
  Buffer<unsigned> out(2);
  kernels.run_with_shared("shared_sizes", {}, {100}, 1234 * 4, out.address());
  expect_same(out.get(), {1234u * 4, 0u});
}

CASE(local) {
  std::vector<int> values = random_values<int>(32, -100, 100), wanted;
  constexpr int rounds = 50;
  for (int thread = 0; thread < 64; ++thread) {
    std::vector<int> own = values;
    for (int& value : own) value += thread;
    for (int round = 0; round < rounds; ++round) std::swap(own[(round * 7 + thread) & 31], own[(round * 13 + 5) & 31]);
    wanted.insert(wanted.end(), own.begin(), own.end());
  }
  Kernels kernels;
  Buffer<int> in(values), out(64 * 32);
  kernels.run("permute_in_local", {}, {64}, in.address(), out.address(), rounds);
  expect_same(out.get(), wanted);
}

CASE(generic) {
  std::vector<int> values = random_values<int>(16, -100, 100), wanted(64);
  std::vector<int> table = random_values<int>(64, -100, 100);
  Kernels kernels;
  OK(cuMemcpyHtoD(global(kernels, "constant_table", 256), table.data(), 256));
  for (int thread = 0; thread < 64; ++thread) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) {
      int choices[] = {values[i], values[i] + 1, values[(i + thread) & 15], table[i]};
      sum = sum * 3 + choices[thread & 3];
    }
    wanted[thread] = sum;
  }
  Buffer<int> in(values), out(64);
  kernels.run("generic_pointers", {}, {64}, in.address(), out.address());
  expect_same(out.get(), wanted);
}

CASE(records) {
  std::vector<Record> values(100);
  for (size_t i = 0; i < values.size(); ++i) {
    std::memset(&values[i], 0, sizeof(Record));
    values[i] = {static_cast<char>('a' + i % 26),
                 static_cast<short>(i * 300),
                 static_cast<int>(i),
                 static_cast<long long>(i) << 40,
                 i * 0.25,
                 {1, 2, 3}};
  }
  Kernels kernels;
  Buffer<Record> in(values), out(values.size());
  kernels.run("copy_records", {blocks_for(100)}, {block_size}, in.address(), out.address(), 100);
  std::vector<Record> got = out.get();
  for (size_t i = 0; i < values.size(); ++i) {
    Record& wanted = values[i];
    wanted.tag ^= 0x20;
    wanted.small = static_cast<short>(wanted.small + 1);
    wanted.medium -= 2;
    wanted.large *= 3;
    wanted.real /= 4;
    wanted.vector[i % 3] = 5;
    HOLDS(got[i].tag == wanted.tag && got[i].small == wanted.small && got[i].medium == wanted.medium &&
          got[i].large == wanted.large && got[i].real == wanted.real &&
          std::memcmp(got[i].vector, wanted.vector, sizeof wanted.vector) == 0);
  }
}

CASE(parameters) {
  Kernels kernels;
  Buffer<float> floats(3);
  Record record{5, 1000, 100000, 1 << 20, 0.5, {1.25f, 2.5f, 3.75f}};
  for (int index = 0; index < 3; ++index) {
    kernels.run("record_parameter", {}, {1}, record, index, floats.address());
    expect_same(floats.get(), {101005.0f, 1048576.5f, record.vector[index]});
  }
  struct Float3 {
    float x, y, z;
  };
  Buffer<double> doubles(10);
  kernels.run("parameters_of_all_sizes", {}, {1}, char{-5}, short{-300}, 70000, -5000000000LL, char{7}, 0.125,
              Float3{1, 2, 3}, static_cast<unsigned char>(200), doubles.address());
  std::vector<double> wanted = {-5, -300, 70000, -5e9, 7, 0.125, 1, 2, 3, 200};
  expect_same(doubles.get(), wanted);

  // The parameters as one buffer, in which each has its natural alignment.
  doubles.clear();
  struct Packed {
    char a;
    short b;
    int c;
    long long d;
    char e;
    double f;
    Float3 g;
    unsigned char h;
    CUdeviceptr out;
  } packed = {-5, -300, 70000, -5000000000LL, 7, 0.125, {1, 2, 3}, 200, doubles.address()};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  OK(cuLaunchKernel(kernels.get("parameters_of_all_sizes"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  expect_same(doubles.get(), wanted);
}

CASE(vectors) {
  std::vector<unsigned> words = random_values<unsigned>(32 * 4, 0, UINT32_MAX);
  std::vector<unsigned short> shorts = random_values<unsigned short>(32 * 4, 0, 65535);
  std::vector<unsigned char> bytes = random_values<unsigned char>(32 * 4, 0, 255);
  std::vector<double> doubles = random_values<double>(32 * 2, -1, 1);
  Kernels kernels;
  Buffer<unsigned> in4(words), out4(words.size());
  Buffer<unsigned short> in_short(shorts), out_short(shorts.size());
  Buffer<unsigned char> in_byte(bytes), out_byte(bytes.size());
  Buffer<double> in_double(doubles), out_double(doubles.size());
  kernels.run("vector_accesses", {}, {32}, in4.address(), in_short.address(), in_byte.address(), in_double.address(),
              out4.address(), out_short.address(), out_byte.address(), out_double.address());
  auto mirrored = [](auto values, size_t group) {
    for (size_t i = 0; i < values.size(); i += group)
      std::reverse(values.begin() + static_cast<long>(i), values.begin() + static_cast<long>(i + group));
    return values;
  };
  expect_same(out4.get(), mirrored(words, 4));
  expect_same(out_short.get(), mirrored(shorts, 4));
  expect_same(out_byte.get(), mirrored(bytes, 4));
  expect_same(out_double.get(), mirrored(doubles, 2));
}

CASE(cache_operators) {
  std::vector<int> values = iota(32), wanted(128);
  for (size_t i = 0; i < 128; ++i) wanted[i] = values[i % 32] * 6;
  Kernels kernels;
  Buffer<int> in(values), out(128);
  kernels.run("cache_operators", {}, {32}, in.address(), out.address());
  expect_same(out.get(), wanted);
}

CASE(transpose) {
  constexpr int width = 301, height = 170;
  std::vector<float> values = random_values<float>(width * height, -1.f, 1.f);
  std::vector<float> wanted(values.size());
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) wanted[x * height + y] = values[y * width + x];
  Kernels kernels;
  Buffer<float> in(values), out(values.size());
  kernels.run("transpose", {(width + 31) / 32, (height + 31) / 32}, {32, 8}, in.address(), out.address(), width,
              height);
  expect_same(out.get(), wanted);
}

CASE(heap) {
  Kernels kernels;
  constexpr unsigned blocks = 20, threads = 96;
  Buffer<int> sums(blocks * threads), failures(1);
  failures.clear();
  kernels.run("lists_on_heap", {blocks}, {threads}, sums.address(), failures.address());
  std::vector<int> wanted(blocks * threads);
  for (unsigned i = 0; i < wanted.size(); ++i) {
    int count = static_cast<int>((i % threads + i / threads) % 40);
    wanted[i] = count * (count + 1) / 2;
  }
  expect_same(sums.get(), wanted);
  expect_same(failures.get(), {0});
  size_t heap_bytes;
  OK(cuCtxGetLimit(&heap_bytes, CU_LIMIT_MALLOC_HEAP_SIZE));
  HOLDS(heap_bytes >= 8 << 20);
  kernels.run("exhaust_heap", {}, {1}, static_cast<unsigned long long>(heap_bytes) * 2, failures.address());
  expect_same(failures.get(), {1});
}

CASE(heap_size) {
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20));
  size_t heap_bytes;
  OK(cuCtxGetLimit(&heap_bytes, CU_LIMIT_MALLOC_HEAP_SIZE));
  HOLDS(heap_bytes >= 64 << 20);
  Kernels kernels;
  Buffer<int> was_null(1);
  kernels.run("exhaust_heap", {}, {1}, 32ull << 20, was_null.address());
  expect_same(was_null.get(), {0});
  // Once a kernel has used the heap its size is settled.
  GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 128 << 20));
}

CASE(memory_intrinsics) {
  Kernels kernels;
  constexpr int count = 1001;
  Buffer<unsigned char> out(count + count / 2);
  kernels.run("fill_bytes", {}, {1}, out.address(), count);
  expect_same(out.get(), std::vector<unsigned char>(count + count / 2, 0xa5));
}

CASE(indices) {
  Kernels kernels;
  kernels::Grid grid{3, 2, 4}, block{5, 7, 3};
  unsigned threads = 5 * 7 * 3, blocks = 3 * 2 * 4;
  Buffer<unsigned> out(threads * blocks);
  kernels.run("global_index", grid, block, out.address());
  std::vector<unsigned> wanted(threads * blocks);
  for (unsigned i = 0; i < wanted.size(); ++i) wanted[i] = i / threads * 1000 + i % threads;
  expect_same(out.get(), wanted);
}

#endif
