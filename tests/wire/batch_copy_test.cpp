// Copies in batches.

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "fixture.h"

using namespace fargpu;
using test::Gate;
using test::RemoteContext;

namespace {

struct Copies : RemoteContext {
  Copies() {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 1 << 20) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(memory, 0, 1 << 20) == CUDA_SUCCESS);
    REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
  }
  static CUmemcpyAttributes order(CUmemcpySrcAccessOrder order) {
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = order;
    return attributes;
  }
  unsigned word(CUdeviceptr at) {
    unsigned value = 0;
    REQUIRE(cuMemcpyDtoH_v2(&value, at, 4) == CUDA_SUCCESS);
    return value;
  }
  static CUdeviceptr at(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
};

}  // namespace

TEST_CASE("a batch copies between all kinds of memory") {
  Copies c;
  std::vector<unsigned> out(1000), back(1000, 0);
  std::iota(out.begin(), out.end(), 1u);
  auto* const words = static_cast<unsigned*>(c.pinned);
  words[0] = 700;
  CUdeviceptr targets[] = {c.memory, c.memory + 8192, c.memory + 16384},
              sources[] = {c.at(out.data()), c.at(words), c.memory};
  std::size_t sizes[] = {4000, 4, 100};
  CUmemcpyAttributes attributes[] = {c.order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                     c.order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
  std::size_t first[] = {0, 1}, failed = 5;
  REQUIRE(cuMemsetD32Async(c.memory, 55, 25, c.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, attributes, first, 2, c.stream) == CUDA_SUCCESS);
  std::fill(out.begin(), out.end(), 0u);  // the source was read during the call
  CUdeviceptr back_targets[] = {c.at(back.data()), c.at(words + 1), c.memory + 16384};
  CUdeviceptr back_sources[] = {c.memory, c.memory + 8192, c.memory};
  REQUIRE(cuMemcpyBatchAsync(back_targets, back_sources, sizes, 3, attributes, first, 1, &failed, c.stream) ==
          CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(c.stream) == CUDA_SUCCESS);
  CHECK(failed == SIZE_MAX);
  CHECK(back[0] == 1);
  CHECK(back[999] == 1000);
  CHECK(words[1] == 700);
  CHECK(c.word(c.memory + 16384 + 96) == 25);
}

TEST_CASE("the order of access decides what a batch reads behind a host function") {
  Copies c;
  auto* const words = static_cast<unsigned*>(c.pinned);
  unsigned pageable[2] = {1, 1};
  words[0] = words[1] = 1;
  Gate gate;
  REQUIRE(cuLaunchHostFunc(c.stream, Gate::pass, &gate) == CUDA_SUCCESS);
  CUdeviceptr targets[] = {c.memory, c.memory + 4, c.memory + 8, c.memory + 12};
  CUdeviceptr sources[] = {c.at(words), c.at(pageable), c.at(words + 1), c.at(pageable + 1)};
  std::size_t sizes[] = {4, 4, 4, 4}, first[] = {0, 2};
  CUmemcpyAttributes attributes[] = {c.order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                     c.order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)};
  REQUIRE(cuMemcpyBatchAsync_v2(targets, sources, sizes, 4, attributes, first, 2, c.stream) == CUDA_SUCCESS);
  words[0] = words[1] = pageable[0] = pageable[1] = 2;
  gate.open();
  REQUIRE(cuStreamSynchronize(c.stream) == CUDA_SUCCESS);
  CHECK(c.word(c.memory) == 2);
  CHECK(c.word(c.memory + 4) == 2);
  CHECK(c.word(c.memory + 8) == 1);
  CHECK(c.word(c.memory + 12) == 1);
}

// The worker has pages of its own of such memory, in which the GPU would find what the program writes after the call.
// (Large pinned memory is for tests/kernels: its pages, where kernels see it, are the program's own in one process.)
TEST_CASE("what a batch is to read during the call is read then, whoever else has the memory") {
  Copies c;
  constexpr std::size_t bytes = 3u << 20;
  CUdeviceptr source = 0, seen = 0;  // as the program and as kernels know it
  std::vector<unsigned> registered(bytes / 4 + 4096);
  SECTION("managed") {
    REQUIRE(cuMemAllocManaged(&source, bytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    seen = source;
  }
  SECTION("pinned") { source = c.at(c.pinned); }
  SECTION("registered") {
    source = (c.at(registered.data()) + 4095) / 4096 * 4096;
    REQUIRE(cuMemHostRegister_v2(reinterpret_cast<void*>(source), bytes, CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  }
  if (!seen) REQUIRE(cuMemHostGetDevicePointer_v2(&seen, reinterpret_cast<void*>(source), 0) == CUDA_SUCCESS);
  auto* const words = reinterpret_cast<volatile unsigned*>(source);
  const std::size_t count = source == c.at(c.pinned) ? 1024 : bytes / 4;
  for (std::size_t i = 0; i < count; ++i) words[i] = 1;
  // The worker has it all by now.
  REQUIRE(cuMemcpyDtoDAsync_v2(c.memory, seen, 4096, c.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(c.stream) == CUDA_SUCCESS);
  for (const std::size_t i : {std::size_t{0}, count / 2, count - 1}) words[i] = 2;

  Gate gate;
  REQUIRE(cuLaunchHostFunc(c.stream, Gate::pass, &gate) == CUDA_SUCCESS);
  gate.wait_entered();
  const CUdeviceptr last = 4 * (count - 1), middle = 4 * (count / 2);
  CUdeviceptr targets[] = {c.memory, c.memory + 4, c.memory + 8, c.memory + 12, c.memory + 16},
              sources[] = {source, source + middle, seen + last, source, seen};
  std::size_t sizes[] = {4, 4, 4, 4, 4}, first[] = {0, 3};
  CUmemcpyAttributes attributes[] = {c.order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                     c.order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
  REQUIRE(cuMemcpyBatchAsync_v2(targets, sources, sizes, 5, attributes, first, 2, c.stream) == CUDA_SUCCESS);
  CUDA_MEMCPY3D_BATCH_OP operation{};
  operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operation.src.op.ptr.ptr = seen;
  operation.dst.op.ptr.ptr = c.memory + 64;
  operation.extent = {4, 1, 1};
  operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  REQUIRE(cuMemcpy3DBatchAsync_v2(1, &operation, 0, c.stream) == CUDA_SUCCESS);
  for (const std::size_t i : {std::size_t{0}, count / 2, count - 1}) words[i] = 3;
  // Other work carries it to the worker.
  CUstream other = nullptr;
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync_v2(c.memory + 8192, seen, 4, other) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  CHECK(c.word(c.memory + 8192) == 3);
  gate.open();
  REQUIRE(cuStreamSynchronize(c.stream) == CUDA_SUCCESS);
  for (const CUdeviceptr at : {0, 4, 8, 64}) CHECK(c.word(c.memory + at) == 2);
  CHECK(c.word(c.memory + 12) == 3);
  CHECK(c.word(c.memory + 16) == 3);
  if (seen != source && source != c.at(c.pinned))
    CHECK(cuMemHostUnregister(reinterpret_cast<void*>(source)) == CUDA_SUCCESS);
}

TEST_CASE("a batch with a fault in it copies nothing, and the fault is named") {
  Copies c;
  unsigned value = 9;
  CUdeviceptr targets[] = {c.memory, c.memory + (1 << 20) - 2, c.memory + 8},
              sources[] = {c.at(&value), c.at(&value), c.at(&value)};
  std::size_t sizes[] = {4, 4, 4}, first[] = {0, 1}, failed = 7;
  CUmemcpyAttributes attributes[] = {c.order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY), c.order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
  CHECK(cuMemcpyBatchAsync(targets, sources, sizes, 3, attributes, first, 1, &failed, c.stream) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(failed == 1);
  const auto refused = [&](std::size_t count, std::size_t attribute_count, CUstream stream) {
    failed = 7;
    const CUresult result =
        cuMemcpyBatchAsync(targets, sources, sizes, count, attributes, first, attribute_count, &failed, stream);
    CHECK(failed == SIZE_MAX);
    return result == CUDA_ERROR_INVALID_VALUE;
  };
  CHECK(refused(0, 1, c.stream));
  CHECK(refused(1, 0, c.stream));
  CHECK(refused(1, 2, c.stream));
  CHECK(refused(1, 1, nullptr));  // the legacy stream
  first[0] = 1;
  CHECK(refused(2, 1, c.stream));
  first[0] = 0;
  first[1] = 2;
  CHECK(refused(2, 2, c.stream));
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  CHECK(cuMemcpyBatchAsync(targets, sources, sizes, 1, attributes, first, 1, &failed, c.stream) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(failed == 0);
  attributes[0] = c.order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
  attributes[0].flags = 2;
  CHECK(cuMemcpyBatchAsync_v2(targets, sources, sizes, 1, attributes, first, 1, c.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyBatchAsync_v2(nullptr, sources, sizes, 1, attributes, first, 1, c.stream) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamSynchronize(c.stream) == CUDA_SUCCESS);
  CHECK(c.word(c.memory) == 0);
}

TEST_CASE("a batch of shaped copies, with arrays") {
  Copies c;
  CUDA_ARRAY3D_DESCRIPTOR description{};
  description.Width = 16;
  description.Height = 8;
  description.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  description.NumChannels = 1;
  CUarray array = nullptr;
  REQUIRE(cuArray3DCreate_v2(&array, &description) == CUDA_SUCCESS);
  std::vector<unsigned> source(64 * 8), back(4 * 3, 0), plain(6, 0);
  std::iota(source.begin(), source.end(), 0u);
  const auto pointer = [](CUdeviceptr at, std::size_t row_length = 0, std::size_t layer_height = 0) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operand.op.ptr.ptr = at;
    operand.op.ptr.rowLength = row_length;
    operand.op.ptr.layerHeight = layer_height;
    return operand;
  };
  const auto place = [](CUarray in, std::size_t x, std::size_t y) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    operand.op.array.array = in;
    operand.op.array.offset = {x, y, 0};
    return operand;
  };
  // In elements of the array where one takes part, in bytes where none does.
  CUDA_MEMCPY3D_BATCH_OP in[] = {
      {pointer(c.at(source.data()), 64), place(array, 2, 1), {10, 5, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, 0},
      {pointer(c.at(source.data()), 256), pointer(c.memory, 16), {8, 3, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_ANY, 0},
  };
  REQUIRE(cuMemcpy3DBatchAsync_v2(2, in, 0, c.stream) == CUDA_SUCCESS);
  CUDA_MEMCPY3D_BATCH_OP out[] = {
      {place(array, 3, 2), pointer(c.at(back.data())), {4, 3, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0},
      {pointer(c.memory, 16), pointer(c.at(plain.data())), {8, 3, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0},
  };
  std::size_t failed = 3;
  REQUIRE(cuMemcpy3DBatchAsync(2, out, &failed, 0, c.stream) == CUDA_SUCCESS);
  CHECK(failed == SIZE_MAX);
  for (unsigned y = 0; y < 3; ++y)
    for (unsigned x = 0; x < 4; ++x) CHECK(back[4 * y + x] == 64 * (y + 1) + x + 1);
  CHECK(plain == std::vector<unsigned>{0, 1, 64, 65, 128, 129});
  const auto refused = [&](CUDA_MEMCPY3D_BATCH_OP operation) {
    failed = 3;
    CUDA_MEMCPY3D_BATCH_OP both[] = {out[1], operation};
    const CUresult result = cuMemcpy3DBatchAsync(2, both, &failed, 0, c.stream);
    CHECK(failed == 1);
    return result;
  };
  CHECK(refused({place(array, 13, 0), pointer(c.memory), {4, 1, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0}) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(refused({pointer(c.memory), pointer(c.memory + 64), {0, 1, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0}) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(refused({pointer(c.memory, 7), pointer(c.memory + 64), {8, 2, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0}) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(
      refused(
          {pointer(c.memory), pointer(c.memory), {8, 1, ~std::size_t{0} / 4}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0}) ==
      CUDA_ERROR_INVALID_VALUE);
  CHECK(refused({pointer(c.memory), pointer(c.memory), {8, 1, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_INVALID, 0}) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(refused({place(nullptr, 0, 0), pointer(c.memory), {8, 1, 1}, CU_MEMCPY_SRC_ACCESS_ORDER_ANY, 0}) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemcpy3DBatchAsync_v2(1, out, 1, c.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpy3DBatchAsync_v2(1, nullptr, 0, c.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpy3DBatchAsync_v2(1, out, 0, CU_STREAM_LEGACY) == CUDA_ERROR_INVALID_VALUE);
}
