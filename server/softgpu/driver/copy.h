#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "driver/array.h"
#include "driver/operation.h"

namespace fargpu::softgpu {

/// One end of a copy: rows in the address space, or in an array. Host and device addresses are
/// alike; what lies where the address space knows.
struct CopyEnd {
  DeviceAddress address = 0;
  uint64_t pitch_bytes = 0;  // between rows
  uint64_t height_rows = 0;  // between slices
  uint64_t x_bytes = 0, y = 0, z = 0;
  std::shared_ptr<Array> array;
};

/// A box of bytes, rows and slices copied from one place to another.
class CopyOperation : public Operation {
 public:
  static std::unique_ptr<CopyOperation> linear(DeviceAddress to, DeviceAddress from, uint64_t bytes);
  /// Throws INVALID_VALUE, INVALID_HANDLE.
  static std::unique_ptr<CopyOperation> from_descriptor(const CUDA_MEMCPY3D& descriptor);
  static std::unique_ptr<CopyOperation> from_descriptor(const CUDA_MEMCPY2D& descriptor);
  static std::unique_ptr<CopyOperation> from_descriptor(const CUDA_MEMCPY3D_PEER& descriptor);

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEMCPY; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>& context) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<CopyOperation>(*this); }
  CUDA_MEMCPY3D descriptor() const;

  /// Throws INVALID_VALUE if a part of either end is not there.
  void check() const;
  bool reads_pageable() const { return is_pageable(from_); }
  bool writes_pageable() const { return is_pageable(to_); }
  /// True if either end is memory of the host, pageable or not.
  bool touches_host() const { return is_host(from_) || is_host(to_); }
  /// Memory of which the program wants that synchronous copies are over when they return.
  bool touches_synchronizing() const { return is_synchronizing(from_) || is_synchronizing(to_); }
  /// True if the program may change the source by itself.
  bool reads_what_host_writes() const;
  /// Takes the bytes out of such memory now, because the program may change it once the call
  /// returns.
  void stage();
  bool is_empty() const { return width_bytes_ == 0 || height_ == 0 || depth_ == 0; }
  uint64_t total_bytes() const { return width_bytes_ * height_ * depth_; }

  CUcontext node_context = nullptr;

 private:
  static bool is_pageable(const CopyEnd& end);
  static bool is_host(const CopyEnd& end);
  static bool is_synchronizing(const CopyEnd& end);
  bool run() const;

  CopyEnd to_, from_;
  uint64_t width_bytes_ = 0, height_ = 1, depth_ = 1;
  std::shared_ptr<std::vector<std::byte>> staged_;
};

/// Fills memory with a value of 1, 2 or 4 bytes.
class MemsetOperation : public Operation {
 public:
  /// Throws INVALID_VALUE.
  MemsetOperation(CUcontext context, const CUDA_MEMSET_NODE_PARAMS& parameters);

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEMSET; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>& context) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<MemsetOperation>(*this); }
  void check() const;

  CUcontext node_context;
  CUDA_MEMSET_NODE_PARAMS parameters;
};

}  // namespace fargpu::softgpu
