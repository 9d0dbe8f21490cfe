#pragma once
// What a launch must know of its function beforehand.

#include <cuda.h>

#include "server/worker/objects/contexts.h"
#include "driver_table.h"
#include "server/worker/objects/handles.h"

namespace fargpu::server {

/// Asked for once, and kept with the function's handle. Used by the executor only.
class FunctionLayouts {
 public:
  FunctionLayouts(DriverTable& driver, Handles& handles, Contexts& contexts)
      : driver_(driver), handles_(handles), contexts_(contexts) {}

  /// A function, or a kernel; null if the handle is neither.
  Handles::Entry* entry(Handle handle, bool& kernel) {
    Handles::Entry* const function = handles_.find(HandleKind::function, handle);
    kernel = !function;
    return function ? function : handles_.find(HandleKind::kernel, handle);
  }
  /// The parameters of a function, or of a kernel. What is found lives as long as the handle.
  CUresult find(Handles::Entry& entry, bool kernel, FunctionLayout*& found);
  /// Before the function, or the kernel in this context, is given to the driver: charges what its threads need of local
  /// memory.
  CUresult hold_local(const Handles::Entry& entry, bool kernel, FunctionLayout& layout, ContextState* kernel_context);

 private:
  DriverTable& driver_;
  Handles& handles_;
  Contexts& contexts_;
};

}  // namespace fargpu::server
