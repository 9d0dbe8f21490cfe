#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/array.h"
#include "driver/context.h"
#include "driver/copy.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

void check_order(CUmemcpySrcAccessOrder order, unsigned flags) {
  require(order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
  require((flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) == 0);
}

struct BatchCopy {
  std::unique_ptr<CopyOperation> operation;
  CUmemcpySrcAccessOrder order;
};

/// All are checked before the first is done. They are done one after the other, which nobody may
/// rely on.
void run_batch(const std::shared_ptr<Stream>& stream, std::vector<BatchCopy> copies) {
  stream->context()->check();
  require(stream->kind() != Stream::Kind::legacy);
  for (const BatchCopy& copy : copies)
    if (!copy.operation->is_empty()) copy.operation->check();
  bool is_captured = stream_is_captured(*stream);
  for (BatchCopy& copy : copies) {
    CopyOperation& operation = *copy.operation;
    if (operation.is_empty()) continue;
    operation.node_context = stream->context()->handle();
    bool must_wait = operation.writes_pageable() && !is_captured;
    bool is_read_now = copy.order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
                           ? operation.reads_what_host_writes()
                           : copy.order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && operation.reads_pageable();
    if (is_read_now && !is_captured && !must_wait) operation.stage();
    if (must_wait) submit_and_wait(stream, std::move(copy.operation));
    else submit(stream, std::move(copy.operation));
  }
}

CUresult copy_batch(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count, CUmemcpyAttributes* attributes,
                    size_t* first, size_t attribute_count, CUstream stream, bool per_thread) {
  return entry([&] {
    require(to != nullptr && from != nullptr && sizes != nullptr && count != 0);
    require(attributes != nullptr && first != nullptr && first[0] == 0);
    require(attribute_count != 0 && attribute_count <= count);
    for (size_t i = 1; i < attribute_count; ++i) require(first[i] > first[i - 1] && first[i] < count);
    std::vector<BatchCopy> copies;
    size_t attribute = 0;
    for (size_t i = 0; i < count; ++i) {
      if (attribute + 1 < attribute_count && first[attribute + 1] == i) ++attribute;
      check_order(attributes[attribute].srcAccessOrder, attributes[attribute].flags);
      copies.push_back({CopyOperation::linear(to[i], from[i], sizes[i]), attributes[attribute].srcAccessOrder});
    }
    run_batch(find_stream(stream, per_thread), std::move(copies));
  });
}

/// In elements of the arrays that take part, in bytes if there is none.
size_t element_bytes(const CUDA_MEMCPY3D_BATCH_OP& op) {
  size_t bytes = 0;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    require(operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY);
    auto array = ArrayTable::instance().get(operand->op.array.array, CUDA_ERROR_INVALID_HANDLE);
    size_t own = array->texel_bytes();
    require(bytes == 0 || own == bytes);
    bytes = own;
  }
  return bytes == 0 ? 1 : bytes;
}

CUresult copy_shaped_batch(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags, CUstream stream,
                           bool per_thread) {
  return entry([&] {
    require(count != 0 && ops != nullptr && flags == 0);
    std::vector<BatchCopy> copies;
    for (size_t i = 0; i < count; ++i) {
      const CUDA_MEMCPY3D_BATCH_OP& op = ops[i];
      check_order(op.srcAccessOrder, op.flags);
      require(op.extent.width != 0 && op.extent.height != 0 && op.extent.depth != 0);
      size_t element = element_bytes(op);
      CUDA_MEMCPY3D copy = {};
      copy.WidthInBytes = op.extent.width * element;
      copy.Height = op.extent.height;
      copy.Depth = op.extent.depth;
      if (op.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.srcArray = op.src.op.array.array;
        copy.srcXInBytes = op.src.op.array.offset.x * element;
        copy.srcY = op.src.op.array.offset.y;
        copy.srcZ = op.src.op.array.offset.z;
      } else {
        copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        copy.srcDevice = op.src.op.ptr.ptr;
        copy.srcPitch = op.src.op.ptr.rowLength * element;
        copy.srcHeight = op.src.op.ptr.layerHeight;
      }
      if (op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.dstArray = op.dst.op.array.array;
        copy.dstXInBytes = op.dst.op.array.offset.x * element;
        copy.dstY = op.dst.op.array.offset.y;
        copy.dstZ = op.dst.op.array.offset.z;
      } else {
        copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        copy.dstDevice = op.dst.op.ptr.ptr;
        copy.dstPitch = op.dst.op.ptr.rowLength * element;
        copy.dstHeight = op.dst.op.ptr.layerHeight;
      }
      copies.push_back({CopyOperation::from_descriptor(copy), op.srcAccessOrder});
    }
    run_batch(find_stream(stream, per_thread), std::move(copies));
  });
}

}  // namespace

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count, CUstream stream) {
  return copy_batch(to, from, sizes, count, attributes, first, attribute_count, stream, false);
}
CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                    CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count,
                                    CUstream stream) {
  return copy_batch(to, from, sizes, count, attributes, first, attribute_count, stream, true);
}
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags, CUstream stream) {
  return copy_shaped_batch(count, ops, flags, stream, false);
}
CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                                      CUstream stream) {
  return copy_shaped_batch(count, ops, flags, stream, true);
}
