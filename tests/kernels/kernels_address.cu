// Addresses: memory mapped where the program wants it, memory of the host, copies of every kind,
// several devices, and the ways in which code gets onto them.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void fill(unsigned* out, unsigned value, unsigned long long count) {
  unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
  if (i < count) out[i] = value + static_cast<unsigned>(i);
}

extern "C" __global__ void sum(const unsigned* in, unsigned long long count, unsigned long long* out) {
  unsigned long long own = 0;
  for (unsigned long long i = threadIdx.x; i < count; i += blockDim.x) own += in[i];
  atomicAdd(out, own);
}

__managed__ int counted[1000] = {5};
extern "C" __global__ void count_up(int by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 1000) counted[i] += by;
}

extern "C" __global__ void copy(const int* from, int* to, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] * 2;
}

__device__ int module_value = 3;
extern "C" __global__ void read_module_value(int* out) { *out = module_value; }

// Grids of several devices meet, again and again: what each block wrote before, all blocks find after.
extern "C" __global__ void meet(unsigned* arrived, unsigned* words, unsigned* errors, unsigned first, unsigned blocks,
                                unsigned rounds) {
  const unsigned own = first + blockIdx.x;
  for (unsigned round = 1; round <= rounds; ++round) {
    if (threadIdx.x == 0) *reinterpret_cast<volatile unsigned*>(words + own) = round * 100 + own;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      atomicAdd_system(arrived, 1u);
      while (atomicAdd_system(arrived, 0u) < (2 * round - 1) * blocks) {}
      __threadfence_system();
    }
    __syncthreads();
    if (threadIdx.x < blocks && *reinterpret_cast<volatile unsigned*>(words + threadIdx.x) != round * 100 + threadIdx.x)
      atomicAdd_system(errors, 1u);
    __syncthreads();
    if (threadIdx.x == 0) {  // nobody writes before all have looked
      atomicAdd_system(arrived, 1u);
      while (atomicAdd_system(arrived, 0u) < 2 * round * blocks) {}
    }
    __syncthreads();
  }
}

#else

#include <sys/mman.h>

#include <thread>

namespace {

constexpr size_t mebibyte = 1 << 20;

CUmemAllocationProp properties_of_device(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

void allow_access(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags, int device = 0) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = flags;
  OK(cuMemSetAccess(address, bytes, &access, 1));
}

unsigned long long sum_of(const Kernels& kernels, CUdeviceptr address, unsigned long long count) {
  Buffer<unsigned long long> total(1);
  total.clear();
  kernels.run("sum", {}, {256}, address, count, total.address());
  return total.get()[0];
}

int devices() {
  int count;
  OK(cuDeviceGetCount(&count));
  return count;
}

}  // namespace

// A very large range at the address the program asks for, filled piece by piece.
CASE(reserved_range) {
  Kernels kernels;
  constexpr CUdeviceptr base = 0x100000000000;
  constexpr size_t window = size_t{4} << 40;
  CUmemAllocationProp properties = properties_of_device(0);
  size_t granularity;
  OK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  HOLDS(granularity == 2 * mebibyte);
  CUdeviceptr reserved;
  OK(cuMemAddressReserve(&reserved, window, 0, base, 0));
  HOLDS(reserved == base);
  size_t bytes = 4 * mebibyte;
  CUdeviceptr places[] = {base, base + bytes, base + (size_t{3} << 40), base + window - bytes};
  CUmemGenericAllocationHandle handles[4];
  for (int i = 0; i < 4; ++i) {
    OK(cuMemCreate(&handles[i], bytes, &properties, 0));
    OK(cuMemMap(places[i], bytes, 0, handles[i], 0));
    allow_access(places[i], bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemRelease(handles[i]));  // the mapping keeps it
  }
  unsigned long long count = bytes / 4, wanted = count * (count - 1) / 2;
  for (unsigned i = 0; i < 4; ++i) {
    kernels.run("fill", {static_cast<unsigned>(count / 256)}, {256}, places[i], i, count);
    HOLDS(sum_of(kernels, places[i], count) == wanted + i * count);
  }
  // The first two lie side by side: copies and sets go across.
  std::vector<unsigned> got(16);
  OK(cuMemcpyDtoH(got.data(), places[1] - 32, 64));
  for (unsigned i = 0; i < 8; ++i) HOLDS(got[i] == count - 8 + i && got[8 + i] == 1 + i);
  OK(cuMemsetD32(places[1] - 32, 7, 16));
  OK(cuMemcpyDtoH(got.data(), places[1] - 32, 64));
  expect_same(got, std::vector<unsigned>(16, 7));
  unsigned long long access;
  CUmemLocation location = properties.location;
  OK(cuMemGetAccess(&access, &location, places[2]));
  HOLDS(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle retained;
  OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(places[3] + 100)));
  CUmemAllocationProp found;
  OK(cuMemGetAllocationPropertiesFromHandle(&found, retained));
  HOLDS(found.location.id == 0);
  OK(cuMemRelease(retained));
  CUdeviceptr start;
  size_t size;
  OK(cuMemGetAddressRange(&start, &size, places[2] + 12345));
  HOLDS(start == places[2] && size == bytes);
  for (CUdeviceptr place : places) OK(cuMemUnmap(place, bytes));
  OK(cuMemAddressFree(base, window));
}

CASE(mapping_rules) {
  CUmemAllocationProp properties = properties_of_device(0);
  size_t bytes = 2 * mebibyte;
  CUmemGenericAllocationHandle handle;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 12345, &properties, 0));
  OK(cuMemCreate(&handle, bytes, &properties, 0));
  CUdeviceptr range;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&range, 12345, 0, 0, 0));
  OK(cuMemAddressReserve(&range, 4 * bytes, 0, 0, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(range + 4096, bytes, 0, handle, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(range + 4 * bytes, bytes, 0, handle, 0));
  OK(cuMemMap(range, bytes, 0, handle, 0));
  CUresult twice = cuMemMap(range, bytes, 0, handle, 0);
  HOLDS(twice == CUDA_ERROR_INVALID_VALUE || twice == CUDA_ERROR_ALREADY_MAPPED);
  allow_access(range, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemsetD8(range, 1, 16));
  // One memory at two addresses.
  OK(cuMemMap(range + bytes, bytes, 0, handle, 0));
  allow_access(range + bytes, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  unsigned word;
  OK(cuMemcpyDtoH(&word, range + bytes, 4));
  HOLDS(word == 0x01010101);
  HOLDS(cuMemAddressFree(range, 4 * bytes) != CUDA_SUCCESS);
  OK(cuMemUnmap(range, 2 * bytes));
  OK(cuMemAddressFree(range, 4 * bytes));
  OK(cuMemRelease(handle));
}

// Two pieces of memory change places, again and again. Contents go with the handle, access with the place.
CASE(memory_changes_places) {
  Kernels kernels;
  CUmemAllocationProp properties = properties_of_device(0);
  constexpr size_t bytes = 2 * mebibyte, count = bytes / 4, wanted = count * (count - 1) / 2;
  CUmemGenericAllocationHandle handles[2];
  CUdeviceptr range;
  OK(cuMemAddressReserve(&range, 3 * bytes, 0, 0, 0));
  for (auto& handle : handles) OK(cuMemCreate(&handle, bytes, &properties, 0));
  const auto map = [&](int place, int memory, CUmemAccess_flags flags) {
    OK(cuMemMap(range + place * bytes, bytes, 0, handles[memory], 0));
    allow_access(range + place * bytes, bytes, flags);
  };
  for (int i = 0; i < 2; ++i) {
    map(i, i, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    kernels.run("fill", {count / 256}, {256}, range + i * bytes, 7u + i, static_cast<unsigned long long>(count));
    OK(cuMemUnmap(range + i * bytes, bytes));
  }
  for (unsigned round = 0; round < 4; ++round) {
    const int first = round % 2, second = 1 - first;
    map(0, first, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    map(1, second, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    map(2, first, CU_MEM_ACCESS_FLAGS_PROT_READ);  // once more
    CUmemGenericAllocationHandle retained;
    OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(range + 2 * bytes)));
    OK(cuMemRelease(handles[first]));
    handles[first] = retained;
    HOLDS(sum_of(kernels, range, count) == wanted + (7u + first) * count);
    HOLDS(sum_of(kernels, range + bytes, count) == wanted + (7u + second) * count);
    HOLDS(sum_of(kernels, range + 2 * bytes, count) == wanted + (7u + first) * count);
    unsigned long long access;
    OK(cuMemGetAccess(&access, &properties.location, range + 2 * bytes));
    HOLDS(access == CU_MEM_ACCESS_FLAGS_PROT_READ);
    CUmemAllocationProp found;
    OK(cuMemGetAllocationPropertiesFromHandle(&found, handles[second]));
    HOLDS(found.location.id == 0 && found.requestedHandleTypes == properties.requestedHandleTypes);
    for (int place = 0; place < 3; ++place) OK(cuMemUnmap(range + place * bytes, bytes));
  }
  for (const auto handle : handles) OK(cuMemRelease(handle));
  OK(cuMemAddressFree(range, 3 * bytes));
}

CASE(access_without_rights) {
  Kernels kernels;
  CUmemAllocationProp properties = properties_of_device(0);
  size_t bytes = 2 * mebibyte;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr range;
  OK(cuMemCreate(&handle, bytes, &properties, 0));
  OK(cuMemAddressReserve(&range, bytes, 0, 0, 0));
  OK(cuMemMap(range, bytes, 0, handle, 0));
  OK(kernels.try_launch("fill", {}, {32}, 0, nullptr, range, 1u, 32ull));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

CASE(shared_handles) {
  CUmemAllocationProp properties = properties_of_device(0);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t bytes = 2 * mebibyte;
  CUmemGenericAllocationHandle exported, imported;
  OK(cuMemCreate(&exported, bytes, &properties, 0));
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  HOLDS(descriptor >= 0);
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{descriptor}),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CUdeviceptr first, second;
  OK(cuMemAddressReserve(&first, bytes, 0, 0, 0));
  OK(cuMemAddressReserve(&second, bytes, 0, 0, 0));
  OK(cuMemMap(first, bytes, 0, exported, 0));
  OK(cuMemMap(second, bytes, 0, imported, 0));
  allow_access(first, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  allow_access(second, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemsetD32(first, 0xabcdef, 100));
  unsigned word;
  OK(cuMemcpyDtoH(&word, second + 396, 4));
  HOLDS(word == 0xabcdef);
  OK(cuMemUnmap(first, bytes));
  OK(cuMemUnmap(second, bytes));
  OK(cuMemRelease(exported));
  OK(cuMemRelease(imported));
}

// Whether memory that is allocated is missing, and is there again when it is freed. Other programs change what is free,
// too.
bool allocation_counts() {
  size_t total_bytes, before, with, after;
  CUdeviceptr memory;
  OK(cuMemGetInfo(&before, &total_bytes));
  OK(cuMemAlloc(&memory, 64 * mebibyte));
  OK(cuMemGetInfo(&with, &total_bytes));
  OK(cuMemFree(memory));
  OK(cuMemGetInfo(&after, &total_bytes));
  HOLDS(before <= total_bytes && with <= total_bytes && after <= total_bytes);
  return with <= before - 64 * mebibyte && after + 32 * mebibyte >= before;
}

CASE(allocations) {
  size_t free_bytes, total_bytes;
  OK(cuMemGetInfo(&free_bytes, &total_bytes));
  bool counts = false;
  for (int attempt = 0; attempt < 20 && !counts; ++attempt) counts = allocation_counts();
  HOLDS(counts);
  CUdeviceptr memory;
  OK(cuMemAlloc(&memory, 64 * mebibyte));
  HOLDS(memory % 256 == 0);
  CUdeviceptr start;
  size_t size;
  OK(cuMemGetAddressRange(&start, &size, memory + 1000));
  HOLDS(start == memory && size == 64 * mebibyte);
  OK(cuMemFree(memory));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory));
  OK(cuMemFree(0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&memory, 0));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, total_bytes * 2));
  size_t pitch;
  OK(cuMemAllocPitch(&memory, &pitch, 1001, 10, 4));
  HOLDS(pitch >= 1001 && pitch % 256 == 0);
  OK(cuMemFree(memory));
}

CASE(memsets) {
  constexpr size_t count = 1000;
  Buffer<unsigned char> buffer(count);
  CUdeviceptr at = buffer.address();
  buffer.clear();
  OK(cuMemsetD8(at + 3, 0xab, 11));
  OK(cuMemsetD16(at + 100, 0x1234, 20));
  OK(cuMemsetD32(at + 200, 0xdeadbeef, 5));
  OK(cuMemsetD2D8(at + 300, 50, 0x77, 10, 4));
  OK(cuMemsetD2D16(at + 500, 64, 0x4321, 8, 3));
  OK(cuMemsetD2D32(at + 700, 64, 0x01020304, 4, 3));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(at + 1, 1, 4));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(at + 2, 1, 4));
  std::vector<unsigned char> wanted(count);
  auto put = [&](size_t place, uint32_t value, size_t bytes, size_t times) {
    for (size_t i = 0; i < times; ++i) std::memcpy(&wanted[place + i * bytes], &value, bytes);
  };
  put(3, 0xab, 1, 11);
  put(100, 0x1234, 2, 20);
  put(200, 0xdeadbeef, 4, 5);
  for (size_t row = 0; row < 4; ++row) put(300 + 50 * row, 0x77, 1, 10);
  for (size_t row = 0; row < 3; ++row) put(500 + 64 * row, 0x4321, 2, 8);
  for (size_t row = 0; row < 3; ++row) put(700 + 64 * row, 0x01020304, 4, 4);
  expect_same(buffer.get(), wanted);
}

CASE(copies) {
  constexpr size_t count = 100000;
  std::vector<int> values = random_values<int>(count, -1000000, 1000000);
  Buffer<int> first(values), second(count);
  second.clear();
  OK(cuMemcpyDtoD(second.address() + 400, first.address(), 4 * (count - 100)));
  std::vector<int> wanted(100);
  wanted.insert(wanted.end(), values.begin(), values.end() - 100);
  expect_same(second.get(), wanted);
  // Whatever the direction, found out from the addresses.
  std::vector<int> host(count);
  OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(host.data()), second.address(), 4 * count));
  expect_same(host, wanted);
  OK(cuMemcpy(second.address(), reinterpret_cast<CUdeviceptr>(values.data()), 4 * count));
  expect_same(second.get(), values);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(host.data(), 0x1000, 16));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(first.address() + 4 * count - 4, host.data(), 1 << 30));
  OK(cuMemcpyHtoD(first.address(), nullptr, 0));

  // A rectangle out of one plane into another.
  CUDA_MEMCPY2D rectangle = {};
  rectangle.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rectangle.srcDevice = second.address();
  rectangle.srcPitch = 400;
  rectangle.srcXInBytes = 40;
  rectangle.srcY = 5;
  rectangle.dstMemoryType = CU_MEMORYTYPE_HOST;
  rectangle.dstHost = host.data();
  rectangle.dstPitch = 80;
  rectangle.dstXInBytes = 8;
  rectangle.dstY = 1;
  rectangle.WidthInBytes = 60;
  rectangle.Height = 7;
  std::fill(host.begin(), host.end(), 0);
  OK(cuMemcpy2D(&rectangle));
  wanted.assign(count, 0);
  for (size_t y = 0; y < 7; ++y)
    for (size_t x = 0; x < 15; ++x) wanted[(y + 1) * 20 + 2 + x] = values[(y + 5) * 100 + 10 + x];
  expect_same(host, wanted);
  rectangle.WidthInBytes = 401;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&rectangle));
}

CASE(host_memory) {
  Kernels kernels;
  constexpr int count = 10000;
  // Allocated by the driver.
  int* pinned;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), count * 4,
                    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr address;
  OK(cuMemHostGetDevicePointer(&address, pinned, 0));
  unsigned flags;
  OK(cuMemHostGetFlags(&flags, pinned));
  HOLDS((flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
  CUmemorytype type;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  HOLDS(type == CU_MEMORYTYPE_HOST);
  for (int i = 0; i < count; ++i) pinned[i] = i;

  // The program's own, registered.
  size_t page = 4096;
  void* mapped = mmap(nullptr, 20 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HOLDS(mapped != MAP_FAILED);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&address, static_cast<char*>(mapped), 0));
  OK(cuMemHostRegister(mapped, 20 * page, CU_MEMHOSTREGISTER_DEVICEMAP));
  GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(mapped, 20 * page, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr registered;
  OK(cuMemHostGetDevicePointer(&registered, mapped, 0));
  OK(cuMemHostGetDevicePointer(&address, pinned, 0));
  kernels.run("copy", {blocks_for(count)}, {block_size}, address, registered, count);
  for (int i = 0; i < count; ++i) HOLDS(static_cast<int*>(mapped)[i] == 2 * i);
  OK(cuMemHostUnregister(mapped));
  GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(mapped));
  munmap(mapped, 20 * page);
  OK(cuMemFreeHost(pinned));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
}

CASE(managed_memory) {
  Kernels kernels;
  constexpr int count = 5000;
  CUdeviceptr from, to;
  OK(cuMemAllocManaged(&from, count * 4, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemAllocManaged(&to, count * 4, CU_MEM_ATTACH_GLOBAL));
  auto* values = reinterpret_cast<int*>(from);
  for (int i = 0; i < count; ++i) values[i] = i + 3;
  CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  OK(cuMemPrefetchAsync(from, count * 4, device, 0, nullptr));
  OK(cuMemAdvise(from, count * 4, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  kernels.run("copy", {blocks_for(count)}, {block_size}, from, to, count);
  for (int i = 0; i < count; ++i) HOLDS(reinterpret_cast<int*>(to)[i] == 2 * (i + 3));
  unsigned is_managed = 0;
  OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, from));
  HOLDS(is_managed == 1);
  OK(cuMemFree(from));
  OK(cuMemFree(to));
}

CASE(pointer_attributes) {
  Buffer<int> buffer(100);
  CUmemorytype type;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer.address() + 8));
  HOLDS(type == CU_MEMORYTYPE_DEVICE);
  int ordinal = -1;
  OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, buffer.address()));
  HOLDS(ordinal == 0);
  CUcontext context, current;
  OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, buffer.address()));
  OK(cuCtxGetCurrent(&current));
  HOLDS(context == current);
  CUdeviceptr start;
  size_t size;
  OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, buffer.address() + 40));
  OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, buffer.address() + 40));
  HOLDS(start == buffer.address() && size == 400);
  unsigned long long id, other;
  Buffer<int> another(100);
  OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, buffer.address()));
  OK(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, another.address()));
  HOLDS(id != other);
  int on_host;
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&on_host)));
  // Asked for several at once, unknown addresses are no error.
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* answers[] = {&type, &context};
  OK(cuPointerGetAttributes(2, wanted, answers, reinterpret_cast<CUdeviceptr>(&on_host)));
  HOLDS(context == nullptr);
  CUpointer_attribute host_pointer = CU_POINTER_ATTRIBUTE_HOST_POINTER;
  void *there = &on_host, *to_there = &there;
  OK(cuPointerGetAttributes(1, &host_pointer, &to_there, buffer.address()));
  HOLDS(there == nullptr);
  OK(cuPointerGetAttributes(1, &host_pointer, &to_there, reinterpret_cast<CUdeviceptr>(&on_host)));
  HOLDS(there == &on_host);
}

CASE(two_devices) {
  if (devices() < 2) return skip("there is one device");
  std::vector<int> values = random_values<int>(5000, -100, 100), doubled = values, got(5000);
  for (int& value : doubled) value *= 2;
  Kernels kernels;
  Buffer<int> here(values);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  {
    Kernels there;
    Buffer<int> target(5000), result(5000);
    OK(cuMemcpyPeer(target.address(), second, here.address(), first, 20000));
    expect_same(target.get(), values);
    int can_access;
    OK(cuDeviceCanAccessPeer(&can_access, 1, 0));
    if (can_access != 0) {
      OK(cuCtxEnablePeerAccess(first, 0));
      GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(first, 0));
      there.run("copy", {blocks_for(5000)}, {block_size}, here.address(), result.address(), 5000);
      expect_same(result.get(), doubled);
      OK(cuCtxDisablePeerAccess(first));
      GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(first));
    }
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
}

CASE(managed_for_both) {
  if (devices() < 2) return skip("there is one device");
  int can_access;
  OK(cuDeviceCanAccessPeer(&can_access, 1, 0));
  if (can_access == 0) return skip("the devices do not reach each other's memory");
  constexpr size_t count = 100000;
  CUdeviceptr before, after;
  OK(cuMemAllocManaged(&before, count * 4, CU_MEM_ATTACH_GLOBAL));
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  {
    // What the host wrote last, kernels of either device find, in memory made before and after the other context.
    Kernels there;
    OK(cuCtxSetCurrent(first));
    OK(cuMemAllocManaged(&after, count * 4, CU_MEM_ATTACH_GLOBAL));
    OK(cuCtxSetCurrent(second));
    Buffer<int> result(count);
    for (CUdeviceptr managed : {before, after}) {
      int* data = reinterpret_cast<int*>(managed);
      for (int turn = 0; turn < 3; ++turn) {
        std::vector<int> wanted(count);
        for (size_t i = 0; i < count; ++i) wanted[i] = 2 * (data[i] = static_cast<int>(i) + turn);
        there.run("copy", {blocks_for(count)}, {block_size}, managed, result.address(), static_cast<int>(count));
        expect_same(result.get(), wanted);
      }
    }
    std::vector<int> wanted(reinterpret_cast<int*>(before), reinterpret_cast<int*>(before) + count);
    there.run("copy", {blocks_for(count)}, {block_size}, before, after, static_cast<int>(count));
    for (int& value : wanted) value *= 2;
    expect_same(std::vector<int>(reinterpret_cast<int*>(after), reinterpret_cast<int*>(after) + count), wanted);
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
  OK(cuMemFree(before));
  OK(cuMemFree(after));
}

// A managed variable of a library is one, whichever device's kernels use it.
CASE(managed_variable_for_both) {
  if (devices() < 2) return skip("there is one device");
  CUlibrary library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel count_up;
  OK(cuLibraryGetKernel(&count_up, library, "count_up"));
  CUdeviceptr address;
  size_t bytes;
  OK(cuLibraryGetManaged(&address, &bytes, library, "counted"));
  HOLDS(bytes == sizeof(int) * 1000);
  int* const values = reinterpret_cast<int*>(address);
  unsigned managed = 0;
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address + 4));
  HOLDS(managed == 1);
  void* host = nullptr;
  OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 4));
  HOLDS(host == values + 1);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  HOLDS(values[0] == 5 && values[999] == 0);
  int wanted = 5;
  for (int turn = 0; turn < 3; ++turn) {
    for (CUcontext context : {first, second}) {
      OK(cuCtxSetCurrent(context));
      CUdeviceptr here;
      OK(cuLibraryGetManaged(&here, nullptr, library, "counted"));
      HOLDS(here == address);
      values[0] = wanted += 10;
      values[500 + turn] = turn;
      int by = 1;
      void* arguments[] = {&by};
      OK(cuLaunchKernel(reinterpret_cast<CUfunction>(count_up), 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
      OK(cuCtxSynchronize());
      HOLDS(values[0] == ++wanted);
      HOLDS(values[500 + turn] == turn + 1);
      HOLDS(values[999] == 2 * turn + (context == first ? 1 : 2));
    }
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
  HOLDS(values[0] == wanted);
  OK(cuLibraryUnload(library));
}

// It lives as long as the library, whichever context was the first to ask for it.
CASE(managed_variable_outlives_context) {
  CUlibrary library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel count_up;
  OK(cuLibraryGetKernel(&count_up, library, "count_up"));
  CUcontext first, other;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&other, nullptr, 0, devices() < 2 ? 0 : 1));
  CUdeviceptr address;
  OK(cuLibraryGetManaged(&address, nullptr, library, "counted"));
  int* const values = reinterpret_cast<int*>(address);
  values[0] = 10;
  int by = 1;
  void* arguments[] = {&by};
  for (CUcontext context : {other, first}) {
    OK(cuCtxSetCurrent(context));
    OK(cuLaunchKernel(reinterpret_cast<CUfunction>(count_up), 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuCtxSynchronize());
  }
  OK(cuCtxDestroy(other));
  HOLDS(values[0] == 12 && values[999] == 2);
  values[0] = 20;
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(count_up), 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
  OK(cuCtxSynchronize());
  HOLDS(values[0] == 21 && values[999] == 3);
  OK(cuLibraryUnload(library));
}

CASE(peer_copy_waits) {
  if (devices() < 2) return skip("there is one device");
  Kernels kernels;
  Buffer<int> here(100000);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  {
    Buffer<int> there(100000);
    OK(cuCtxSetCurrent(first));
    std::vector<int> wanted(100000);
    // The copy comes behind what the source's default stream has still to do, whichever context is current.
    for (int turn = 0; turn < 5; ++turn) {
      OK(kernels.try_launch("fill", {blocks_for(100000)}, {block_size}, 0, nullptr, here.address(), turn, 100000ull));
      OK(cuCtxSetCurrent(turn % 2 == 0 ? first : second));
      OK(cuMemcpyPeer(there.address(), second, here.address(), first, 400000));
      OK(cuCtxSetCurrent(second));
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = turn + static_cast<int>(i);
      expect_same(there.get(), wanted);
      OK(cuCtxSetCurrent(first));
    }
    OK(cuCtxSetCurrent(second));
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
}

CASE(launches_together) {
  if (devices() < 2) return skip("there is one device");
  int can = 0;
  OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 0));
  if (can == 0) return skip("the driver launches on one device at a time");
  constexpr int count = 100000;
  Kernels kernels;
  CUstream stream, other;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Buffer<int> from(count), to(count);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  {
    Kernels there;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    Buffer<int> from_there(count), to_there(count);
    CUdeviceptr addresses[2][2] = {{from.address(), to.address()}, {from_there.address(), to_there.address()}};
    int size = count;
    void* arguments[2][3];
    CUDA_LAUNCH_PARAMS list[2] = {};
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) arguments[i][j] = &addresses[i][j];
      arguments[i][2] = &size;
      list[i] = {(i == 0 ? kernels : there).get("copy"), 8, 1, 1, 256, 1, 1, 0, i == 0 ? stream : other, arguments[i]};
    }
    size = 8 * 256;
    OK(there.try_launch("fill", {blocks_for(count)}, {block_size}, 0, other, from_there.address(), 5u, 100000ull));
    OK(cuCtxSetCurrent(first));
    OK(kernels.try_launch("fill", {blocks_for(count)}, {block_size}, 0, stream, from.address(), 3u, 100000ull));
    OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    // What follows on one stream comes behind both kernels.
    int got[2] = {};
    OK(cuMemcpyDtoHAsync(&got[0], to.address() + 4 * 2000, 4, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxSetCurrent(second));
    OK(cuMemcpyDtoH(&got[1], to_there.address() + 4 * 2000, 4));
    HOLDS(got[0] == 2 * (3 + 2000) && got[1] == 2 * (5 + 2000));
    OK(cuLaunchCooperativeKernelMultiDevice(list, 2,
                                            CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                                CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC));
    OK(cuStreamSynchronize(other));
    OK(cuStreamSynchronize(stream));
    CUDA_LAUNCH_PARAMS wrong[2] = {list[0], list[0]};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(list, 2, 8));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(nullptr, 2, 0));
    HOLDS(cuLaunchCooperativeKernelMultiDevice(wrong, 2, 0) != CUDA_SUCCESS);  // one device twice
    wrong[1] = list[1];
    wrong[1].hStream = nullptr;
    HOLDS(cuLaunchCooperativeKernelMultiDevice(wrong, 2, 0) != CUDA_SUCCESS);
    wrong[1] = list[1];
    wrong[1].blockDimX = 128;
    HOLDS(cuLaunchCooperativeKernelMultiDevice(wrong, 2, 0) != CUDA_SUCCESS);
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
  OK(cuStreamDestroy(stream));
}

CASE(grids_meet) {
  if (devices() < 2) return skip("there is one device");
  int can = 0, reach = 0;
  OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 0));
  OK(cuDeviceCanAccessPeer(&reach, 1, 0));
  if (can == 0 || reach == 0)
    return skip("the driver launches on one device at a time, or the devices do not reach each other's memory");
  constexpr unsigned each = 4, rounds = 20;
  Kernels kernels;
  CUstream stream, other;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Buffer<unsigned> memory(3 * 32);  // of one device; the other reaches it
  memory.clear();
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  {
    OK(cuCtxEnablePeerAccess(first, 0));
    Kernels there;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CUdeviceptr arrived = memory.address(), words = arrived + 128, errors = arrived + 256;
    unsigned begin[2] = {0, each}, all = 2 * each, times = rounds;
    void* arguments[2][6];
    CUDA_LAUNCH_PARAMS list[2] = {};
    for (int i = 0; i < 2; ++i) {
      void* const own[] = {&arrived, &words, &errors, &begin[i], &all, &times};
      std::copy(std::begin(own), std::end(own), arguments[i]);
      list[i] = {
          (i == 0 ? kernels : there).get("meet"), each, 1, 1, 64, 1, 1, 0, i == 0 ? stream : other, arguments[i]};
    }
    OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    OK(cuStreamSynchronize(other));
    OK(cuCtxSetCurrent(first));
    OK(cuStreamSynchronize(stream));
    const std::vector<unsigned> got = memory.get();
    HOLDS(got[0] == 2 * rounds * 2 * each && got[64] == 0);
    for (unsigned i = 0; i < 2 * each; ++i) HOLDS(got[32 + i] == rounds * 100 + i);
    OK(cuCtxSetCurrent(second));
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
  OK(cuStreamDestroy(stream));
}

CASE(no_access_to_peers) {
  if (devices() < 2) return skip("there is one device");
  Buffer<int> here(100);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 1));
  Kernels there;
  OK(there.try_launch("fill", {}, {32}, 0, nullptr, here.address(), 1u, 32ull));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  cuCtxDestroy(second);
  OK(cuCtxSetCurrent(first));
}

CASE(libraries) {
  CUlibrary library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned count;
  OK(cuLibraryGetKernelCount(&count, library));
  HOLDS(count == 6);
  std::vector<CUkernel> kernels(count);
  OK(cuLibraryEnumerateKernels(kernels.data(), count, library));
  CUkernel kernel;
  OK(cuLibraryGetKernel(&kernel, library, "read_module_value"));
  HOLDS(std::find(kernels.begin(), kernels.end(), kernel) != kernels.end());
  GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
  const char* name;
  OK(cuKernelGetName(&name, kernels[0]));
  HOLDS(name != nullptr);
  OK(cuLibraryGetKernel(&kernel, library, "fill"));
  size_t offset, size;
  OK(cuKernelGetParamInfo(kernel, 2, &offset, &size));
  HOLDS(offset == 16 && size == 8);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelGetParamInfo(kernel, 3, &offset, &size));
  int threads;
  OK(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  HOLDS(threads == 1024);
  CUfunction function;
  OK(cuKernelGetFunction(&function, kernel));
  CUlibrary owner;
  OK(cuKernelGetLibrary(&owner, kernel));
  HOLDS(owner == library);

  // A kernel may be launched as it is.
  Buffer<int> out(1);
  CUdeviceptr out_address = out.address(), global;
  void* arguments[] = {&out_address};
  OK(cuLibraryGetKernel(&kernel, library, "read_module_value"));
  OK(cuLibraryGetGlobal(&global, &size, library, "module_value"));
  HOLDS(size == 4);
  OK(cuMemsetD32(global, 55, 1));
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  expect_same(out.get(), {55});
  CUmodule module;
  OK(cuLibraryGetModule(&module, library));
  OK(cuModuleGetFunction(&function, module, "read_module_value"));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  expect_same(out.get(), {55});
  OK(cuLibraryUnload(library));
}

// A library is one for all contexts, its globals are one for each.
CASE(library_in_two_contexts) {
  CUlibrary library;
  CUkernel kernel;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "read_module_value"));
  auto read = [&] {
    Buffer<int> out(1);
    CUdeviceptr address = out.address();
    void* arguments[] = {&address};
    OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    return out.get()[0];
  };
  CUdeviceptr global;
  OK(cuLibraryGetGlobal(&global, nullptr, library, "module_value"));
  OK(cuMemsetD32(global, 8, 1));
  HOLDS(read() == 8);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  HOLDS(read() == 3);
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
  HOLDS(read() == 8);
  OK(cuLibraryUnload(library));
}

CASE(linked_code) {
  // Two pieces of PTX, one of which calls the other.
  const char* caller =
      ".version 7.0\n.target sm_75\n.address_size 64\n"
      ".extern .func (.param .b32 result) triple(.param .b32 value);\n"
      ".visible .entry call_triple(.param .u64 out, .param .u32 value) {\n"
      "  .reg .b32 %r<3>; .reg .b64 %rd<3>;\n"
      "  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [value];\n"
      "  { .param .b32 p0; .param .b32 p1; st.param.b32 [p0], %r1;\n"
      "    call.uni (p1), triple, (p0); ld.param.b32 %r2, [p1]; }\n"
      "  cvta.to.global.u64 %rd2, %rd1; st.global.u32 [%rd2], %r2; ret; }\n";
  const char* callee =
      ".version 7.0\n.target sm_75\n.address_size 64\n"
      ".visible .func (.param .b32 result) triple(.param .b32 value) {\n"
      "  .reg .b32 %r<3>; ld.param.b32 %r1, [value]; mul.lo.s32 %r2, %r1, 3;\n"
      "  st.param.b32 [result], %r2; ret; }\n";
  char errors[1000] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {errors, reinterpret_cast<void*>(sizeof errors)};
  CUlinkState state;
  OK(cuLinkCreate(2, options, values, &state));
  OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(caller), std::strlen(caller) + 1, "caller", 0, nullptr,
                   nullptr));
  OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(callee), std::strlen(callee) + 1, "callee", 0, nullptr,
                   nullptr));
  void* image;
  size_t bytes;
  OK(cuLinkComplete(state, &image, &bytes));
  CUmodule module;
  OK(cuModuleLoadData(&module, image));
  OK(cuLinkDestroy(state));
  CUfunction function;
  OK(cuModuleGetFunction(&function, module, "call_triple"));
  Buffer<int> out(1);
  CUdeviceptr address = out.address();
  int value = 14;
  void* arguments[] = {&address, &value};
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  expect_same(out.get(), {42});
  OK(cuModuleUnload(module));
}

CASE(legacy_launch) {
  const char* code =
      ".version 7.0\n.target sm_75\n.address_size 64\n"
      ".visible .entry numbers(.param .u64 out, .param .f32 scale) {\n"
      "  .reg .b32 %r<6>; .reg .f32 %f<3>; .reg .b64 %rd<4>;\n"
      "  ld.param.u64 %rd1, [out]; ld.param.f32 %f1, [scale];\n"
      "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;\n"
      "  cvt.rn.f32.u32 %f2, %r4; mul.f32 %f2, %f2, %f1;\n"
      "  cvta.to.global.u64 %rd2, %rd1; mul.wide.u32 %rd3, %r4, 4; add.u64 %rd2, %rd2, %rd3;\n"
      "  st.global.f32 [%rd2], %f2; ret; }\n";
  CUmodule module;
  OK(cuModuleLoadData(&module, code));
  CUfunction function;
  OK(cuModuleGetFunction(&function, module, "numbers"));
  Buffer<float> out(64);
  CUdeviceptr address = out.address();
  OK(cuFuncSetBlockShape(function, 16, 1, 1));
  OK(cuFuncSetSharedSize(function, 0));
  OK(cuParamSetSize(function, 12));
  OK(cuParamSetv(function, 0, &address, sizeof address));
  OK(cuParamSetf(function, 8, 0.5f));
  OK(cuLaunchGrid(function, 4, 1));
  std::vector<float> wanted(64);
  for (size_t i = 0; i < 64; ++i) wanted[i] = 0.5f * static_cast<float>(i);
  expect_same(out.get(), wanted);
  OK(cuParamSetf(function, 8, 3));
  OK(cuLaunch(function));
  for (size_t i = 0; i < 16; ++i) wanted[i] = 3 * static_cast<float>(i);
  expect_same(out.get(), wanted);
  OK(cuModuleUnload(module));
}

CASE(bad_code) {
  CUmodule module;
  GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "no code at all, but long enough"));
  const char* broken =
      ".version 7.0\n.target sm_75\n.address_size 64\n"
      ".visible .entry k() {\n  .reg .b32 %r<3>;\n  frobnicate.b32 %r1, %r2;\n  ret;\n}\n";
  char errors[2000] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {errors, reinterpret_cast<void*>(sizeof errors)};
  GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, broken, 2, options, values));
  HOLDS(std::strstr(errors, "line 6") != nullptr);
}

CASE(contexts) {
  CUcontext current, another, popped;
  OK(cuCtxGetCurrent(&current));
  OK(cuCtxCreate(&another, nullptr, 0, 0));
  OK(cuCtxGetCurrent(&popped));
  HOLDS(popped == another);
  OK(cuCtxPopCurrent(&popped));
  HOLDS(popped == another);
  OK(cuCtxGetCurrent(&popped));
  HOLDS(popped == current);
  OK(cuCtxPushCurrent(another));
  OK(cuCtxDestroy(another));
  OK(cuCtxGetCurrent(&popped));
  HOLDS(popped == current);
  // A thread starts without one.
  CUresult result = CUDA_SUCCESS;
  std::thread([&] {
    CUdeviceptr memory;
    result = cuMemAlloc(&memory, 16);
  }).join();
  GIVES(CUDA_ERROR_INVALID_CONTEXT, result);

  CUcontext primary, again;
  unsigned flags;
  int is_active;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  HOLDS(is_active == 0);
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuDevicePrimaryCtxRetain(&again, 0));
  HOLDS(primary == again);
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  HOLDS(is_active == 1);
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  HOLDS(is_active == 0);
}

#endif
