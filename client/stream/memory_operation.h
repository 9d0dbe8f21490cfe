#pragma once
// One memory operation of a stream or of a graph node: a wait for a value, a write, a flush or a barrier. CUDA Driver
// API, "Stream Memory Operations".

#include <cuda.h>

#include <cstdint>

#include "operations.capnp.h"

namespace fargpu::client {

struct MemoryOperation {
  CUstreamBatchMemOpType type = CU_STREAM_MEM_OP_BARRIER;
  std::uint64_t address = 0;  ///< on the host: where the program itself finds the value
  std::uint64_t value = 0;
  unsigned flags = 0;
  bool on_host = false;

  bool waits() const { return type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64; }
  bool writes() const { return type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64; }
  bool wide() const { return type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64; }

  /// Whether a wait on the host is over.
  bool satisfied() const;
  /// Does a write on the host.
  void write() const;
};

void write_operation(const MemoryOperation& operation, wire::MemoryOperation::Builder out);

}  // namespace fargpu::client
