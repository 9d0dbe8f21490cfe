#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "driver/context.h"
#include "driver/handle_table.h"

namespace fargpu::softgpu {

/// Multiprocessors of a device, by number. Their owners are kept, with CUDA's rules. Kernels run wherever there is a
/// thread: nobody can tell here on which multiprocessor a kernel runs.
struct Multiprocessors {
  int device = 0;
  unsigned first = 0;
  unsigned count = 0;
  unsigned split = 0;  // parts of one split may be put together; 0: the whole of something
};

/// As the program knows them. The inside of the struct is this driver's, and checked when it comes
/// back.
CUdevResource to_resource(const Multiprocessors& processors);
/// Throws INVALID_RESOURCE_TYPE, INVALID_VALUE.
Multiprocessors from_resource(const CUdevResource& resource);

/// What a green context is to be made of.
struct ResourceDescription {
  Multiprocessors processors;
};
using ResourceDescriptionTable = HandleTable<ResourceDescription, CUdevResourceDesc>;

/// A part of a device. Its streams are those of a context of their own, in which all else is the
/// primary context's.
struct GreenContext {
  std::shared_ptr<Context> context;
  Multiprocessors processors;
};
using GreenContextTable = HandleTable<GreenContext, CUgreenCtx>;

/// Handles that were green contexts' once: what a destroyed one is answered differs.
class DestroyedGreenContexts {
 public:
  static DestroyedGreenContexts& instance();
  void add(CUgreenCtx handle);
  /// The address is a live one's again.
  void forget(CUgreenCtx handle);
  bool has(CUgreenCtx handle) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<CUgreenCtx> handles_;
};

/// The green context that a context was converted from; null for others.
std::shared_ptr<GreenContext> green_of(const Context& context);

}  // namespace fargpu::softgpu
