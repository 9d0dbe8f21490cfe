#pragma once
// What a program asks to be copied, however it said so.

#include <cuda.h>

#include "protocol/copy.h"

namespace fargpu::client {

class Thread;
struct Context;

/// A side is memory (`device` if the program named it as device memory: an address that CUDA does not know is an error;
/// `unified` or `host` otherwise) with x, y and z of 0, or an array.
struct Copy {
  CopyShape shape;
  CopySide target;
  CopySide source;
  Context* target_context = nullptr;  ///< of device memory or an array, where the program named it
  Context* source_context = nullptr;
  bool done_on_return = false;  ///< the program takes the copy for done when its call returns
  /// When memory of the host is read.
  enum class SourceOrder {
    usual,   ///< pageable memory during the call, pinned memory when the stream gets there
    stream,  ///< when the stream gets there
    early,   ///< during the call
    any,     ///< whenever it suits
  };
  SourceOrder source_order = SourceOrder::usual;

  /// Pinned memory is read when the stream gets there, and not before.
  bool reads_pinned_in_order() const {
    return !done_on_return && source_order != SourceOrder::early && source_order != SourceOrder::any;
  }
  /// Pageable memory is, too.
  bool reads_pageable_in_order() const { return source_order == SourceOrder::stream; }
  /// Rows that lie behind each other without gaps on both sides become one row.
  void flatten();
};

/// INVALID_VALUE for what the driver calls so: unknown kinds of memory, pitches and heights that are too small.
CUresult read_copy(const CUDA_MEMCPY2D& params, Copy& copy);
CUresult read_copy(const CUDA_MEMCPY3D& params, Copy& copy);
CUresult read_copy(const CUDA_MEMCPY3D_PEER& params, Copy& copy);  ///< but for the contexts

/// The context is where arrays are asked about.
CUresult read_copy(Thread& thread, Context& context, const CUDA_MEMCPY3D_BATCH_OP& params, Copy& copy);

/// Whether the arrays among the sides exist and hold what is copied. `context`: theirs, unless the copy names another.
CUresult check_arrays(Thread& thread, Context& context, const Copy& copy);

}  // namespace fargpu::client
