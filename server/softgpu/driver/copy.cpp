#include "driver/copy.h"

#include <algorithm>
#include <cstring>

#include "driver/driver.h"

namespace fargpu::softgpu {
namespace {

/// Copies within the address space. False if a part of it is not there (any more).
bool copy_bytes(DeviceAddress to, DeviceAddress from, uint64_t bytes) {
  auto sources = addresses().spans(from, bytes);
  auto targets = addresses().spans(to, bytes);
  if (!sources || !targets) return false;
  auto source = sources->begin(), target = targets->begin();
  uint64_t source_done = 0, target_done = 0;
  while (bytes > 0) {
    uint64_t piece = std::min(source->bytes - source_done, target->bytes - target_done);
    std::memmove(target->host + target_done, source->host + source_done, piece);
    bytes -= piece;
    if ((source_done += piece) == source->bytes) {
      ++source;
      source_done = 0;
    }
    if ((target_done += piece) == target->bytes) {
      ++target;
      target_done = 0;
    }
  }
  return true;
}

/// A host address for the row of an array, else the row's place in the address space.
DeviceAddress row_of(const CopyEnd& end, uint64_t y, uint64_t z) {
  if (end.array != nullptr) return reinterpret_cast<DeviceAddress>(end.array->row(end.y + y, end.z + z)) + end.x_bytes;
  return end.address + ((end.z + z) * end.height_rows + end.y + y) * end.pitch_bytes + end.x_bytes;
}

std::shared_ptr<Array> find_array(CUarray handle) { return ArrayTable::instance().get(handle); }

struct EndDescriptor {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t pitch, height, x_bytes, y, z, lod;
};

CopyEnd make_end(const EndDescriptor& from, uint64_t width_bytes, uint64_t height, uint64_t depth) {
  CopyEnd end = {.x_bytes = from.x_bytes, .y = from.y, .z = from.z, .array = nullptr};
  require(from.lod == 0 || from.type != CU_MEMORYTYPE_ARRAY);
  switch (from.type) {
    case CU_MEMORYTYPE_HOST: end.address = reinterpret_cast<DeviceAddress>(from.host); break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: end.address = from.device; break;
    case CU_MEMORYTYPE_ARRAY: {
      end.array = find_array(from.array);
      const Array& array = *end.array;
      require(from.x_bytes <= array.row_bytes() && width_bytes <= array.row_bytes() - from.x_bytes);
      require(from.y <= array.rows() && height <= array.rows() - from.y);
      require(from.z <= array.slices() && depth <= array.slices() - from.z);
      return end;
    }
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
  require(end.address != 0 || width_bytes * height * depth == 0);
  // Where there is but one row or slice the distance to the next does not matter.
  end.pitch_bytes = from.pitch != 0 ? from.pitch : width_bytes + from.x_bytes;
  end.height_rows = from.height != 0 ? from.height : height + from.y;
  require(from.pitch == 0 || from.pitch >= width_bytes + from.x_bytes || height * depth <= 1);
  require(from.height == 0 || from.height >= height + from.y || depth <= 1);
  return end;
}

}  // namespace

std::unique_ptr<CopyOperation> CopyOperation::linear(DeviceAddress to, DeviceAddress from, uint64_t bytes) {
  auto copy = std::make_unique<CopyOperation>();
  copy->to_ = {.address = to, .pitch_bytes = bytes, .height_rows = 1, .array = nullptr};
  copy->from_ = {.address = from, .pitch_bytes = bytes, .height_rows = 1, .array = nullptr};
  copy->width_bytes_ = bytes;
  return copy;
}

std::unique_ptr<CopyOperation> CopyOperation::from_descriptor(const CUDA_MEMCPY3D& d) {
  auto copy = std::make_unique<CopyOperation>();
  copy->from_ = make_end({d.srcMemoryType, d.srcHost, d.srcDevice, d.srcArray, d.srcPitch, d.srcHeight, d.srcXInBytes,
                          d.srcY, d.srcZ, d.srcLOD},
                         d.WidthInBytes, d.Height, d.Depth);
  copy->to_ = make_end({d.dstMemoryType, d.dstHost, d.dstDevice, d.dstArray, d.dstPitch, d.dstHeight, d.dstXInBytes,
                        d.dstY, d.dstZ, d.dstLOD},
                       d.WidthInBytes, d.Height, d.Depth);
  copy->width_bytes_ = d.WidthInBytes;
  copy->height_ = d.Height;
  copy->depth_ = d.Depth;
  return copy;
}

std::unique_ptr<CopyOperation> CopyOperation::from_descriptor(const CUDA_MEMCPY2D& d) {
  auto copy = std::make_unique<CopyOperation>();
  copy->from_ =
      make_end({d.srcMemoryType, d.srcHost, d.srcDevice, d.srcArray, d.srcPitch, 0, d.srcXInBytes, d.srcY, 0, 0},
               d.WidthInBytes, d.Height, 1);
  copy->to_ =
      make_end({d.dstMemoryType, d.dstHost, d.dstDevice, d.dstArray, d.dstPitch, 0, d.dstXInBytes, d.dstY, 0, 0},
               d.WidthInBytes, d.Height, 1);
  copy->width_bytes_ = d.WidthInBytes;
  copy->height_ = d.Height;
  return copy;
}

std::unique_ptr<CopyOperation> CopyOperation::from_descriptor(const CUDA_MEMCPY3D_PEER& d) {
  auto copy = std::make_unique<CopyOperation>();
  copy->from_ = make_end({d.srcMemoryType, d.srcHost, d.srcDevice, d.srcArray, d.srcPitch, d.srcHeight, d.srcXInBytes,
                          d.srcY, d.srcZ, d.srcLOD},
                         d.WidthInBytes, d.Height, d.Depth);
  copy->to_ = make_end({d.dstMemoryType, d.dstHost, d.dstDevice, d.dstArray, d.dstPitch, d.dstHeight, d.dstXInBytes,
                        d.dstY, d.dstZ, d.dstLOD},
                       d.WidthInBytes, d.Height, d.Depth);
  copy->width_bytes_ = d.WidthInBytes;
  copy->height_ = d.Height;
  copy->depth_ = d.Depth;
  return copy;
}

CUDA_MEMCPY3D CopyOperation::descriptor() const {
  CUDA_MEMCPY3D d = {};
  d.WidthInBytes = width_bytes_;
  d.Height = height_;
  d.Depth = depth_;
  d.srcXInBytes = from_.x_bytes;
  d.srcY = from_.y;
  d.srcZ = from_.z;
  d.srcPitch = from_.pitch_bytes;
  d.srcHeight = from_.height_rows;
  d.dstXInBytes = to_.x_bytes;
  d.dstY = to_.y;
  d.dstZ = to_.z;
  d.dstPitch = to_.pitch_bytes;
  d.dstHeight = to_.height_rows;
  if (from_.array != nullptr) {
    d.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    d.srcArray = from_.array->handle();
  } else if (is_pageable(from_)) {
    d.srcMemoryType = CU_MEMORYTYPE_HOST;
    d.srcHost = reinterpret_cast<const void*>(from_.address);
  } else {
    d.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    d.srcDevice = from_.address;
  }
  if (to_.array != nullptr) {
    d.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    d.dstArray = to_.array->handle();
  } else if (is_pageable(to_)) {
    d.dstMemoryType = CU_MEMORYTYPE_HOST;
    d.dstHost = reinterpret_cast<void*>(to_.address);
  } else {
    d.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    d.dstDevice = to_.address;
  }
  return d;
}

bool CopyOperation::is_pageable(const CopyEnd& end) {
  return end.array == nullptr && addresses().is_plain_host(end.address);
}

bool CopyOperation::is_host(const CopyEnd& end) {
  if (end.array != nullptr) return false;
  auto range = addresses().find(end.address);
  return range == nullptr ? addresses().is_plain_host(end.address) : range->is_host();
}

bool CopyOperation::is_synchronizing(const CopyEnd& end) {
  if (end.array != nullptr) return false;
  auto range = addresses().find(end.address);
  return range != nullptr && range->sync_memops;
}

void CopyOperation::check() const {
  if (is_empty()) return;
  for (const CopyEnd* end : {&to_, &from_}) {
    if (end->array != nullptr || is_pageable(*end)) continue;
    require(addresses().spans(row_of(*end, 0, 0), width_bytes_).has_value());
    require(addresses().spans(row_of(*end, height_ - 1, depth_ - 1), width_bytes_).has_value());
  }
}

bool CopyOperation::reads_what_host_writes() const {
  if (from_.array != nullptr) return false;
  auto range = addresses().find(from_.address);
  return is_host(from_) || (range != nullptr && range->kind == MemoryKind::managed);
}

void CopyOperation::stage() {
  auto bytes = std::make_shared<std::vector<std::byte>>(total_bytes());
  std::byte* next = bytes->data();
  for (uint64_t z = 0; z < depth_; ++z)
    for (uint64_t y = 0; y < height_; ++y, next += width_bytes_)
      copy_bytes(reinterpret_cast<DeviceAddress>(next), row_of(from_, y, z), width_bytes_);
  from_ = {.address = reinterpret_cast<DeviceAddress>(bytes->data()),
           .pitch_bytes = width_bytes_,
           .height_rows = height_,
           .array = nullptr};
  staged_ = std::move(bytes);
}

bool CopyOperation::run() const {
  bool is_one_piece = to_.array == nullptr && from_.array == nullptr && to_.pitch_bytes == width_bytes_ &&
                      from_.pitch_bytes == width_bytes_ && depth_ == 1 && to_.x_bytes == 0 && from_.x_bytes == 0;
  if (is_one_piece) return copy_bytes(row_of(to_, 0, 0), row_of(from_, 0, 0), width_bytes_ * height_);
  for (uint64_t z = 0; z < depth_; ++z)
    for (uint64_t y = 0; y < height_; ++y)
      if (!copy_bytes(row_of(to_, y, z), row_of(from_, y, z), width_bytes_)) return false;
  return true;
}

std::shared_ptr<Task> CopyOperation::make_task(const std::shared_ptr<Context>& context) const {
  if (is_empty()) return make_marker();
  return std::make_shared<FunctionTask>(FunctionTask::Place::service, [context, copy = *this] {
    if (context->has_failed() || copy.run()) return;
    context->fail(CUDA_ERROR_ILLEGAL_ADDRESS, "copy from or to memory that is not mapped");
  });
}

MemsetOperation::MemsetOperation(CUcontext context, const CUDA_MEMSET_NODE_PARAMS& given)
    : node_context(context), parameters(given) {
  uint32_t size = parameters.elementSize;
  require(size == 1 || size == 2 || size == 4);
  require(parameters.dst % size == 0);
  if (parameters.height == 0) parameters.height = 1;
  if (parameters.height > 1) require(parameters.pitch >= parameters.width * size);
}

void MemsetOperation::check() const {
  uint64_t bytes = parameters.width * parameters.elementSize;
  if (bytes == 0) return;
  require(!addresses().is_plain_host(parameters.dst));
  require(addresses().spans(parameters.dst, bytes).has_value());
  uint64_t last = parameters.dst + (parameters.height - 1) * parameters.pitch;
  require(addresses().spans(last, bytes).has_value());
}

std::shared_ptr<Task> MemsetOperation::make_task(const std::shared_ptr<Context>& context) const {
  return std::make_shared<FunctionTask>(FunctionTask::Place::service, [context, p = parameters] {
    uint64_t bytes = p.width * p.elementSize;
    for (size_t y = 0; y < p.height && bytes != 0 && !context->has_failed(); ++y) {
      auto spans = addresses().spans(p.dst + y * p.pitch, bytes);
      if (!spans) {
        context->fail(CUDA_ERROR_ILLEGAL_ADDRESS, "memset of memory that is not mapped");
        return;
      }
      for (const MemorySpan& span : *spans) {
        if (p.elementSize == 1) {
          std::memset(span.host, static_cast<int>(p.value), span.bytes);
        } else if (p.elementSize == 2) {
          auto* values = reinterpret_cast<uint16_t*>(span.host);
          std::fill_n(values, span.bytes / 2, static_cast<uint16_t>(p.value));
        } else {
          auto* values = reinterpret_cast<uint32_t*>(span.host);
          std::fill_n(values, span.bytes / 4, p.value);
        }
      }
    }
  });
}

}  // namespace fargpu::softgpu
