#pragma once
// What the session has of GPU code.

#include "function_layouts.h"
#include "image_store.h"
#include "jit_links.h"
#include "load_order.h"
#include "system_scope.h"

namespace fargpu::server {

struct Code {
  Code(DriverTable& driver, Handles& handles, Contexts& contexts, HostBudget& budget,
       const std::filesystem::path& folder, std::uint64_t folder_bytes_max)
      : images(folder, folder_bytes_max, budget), layouts(driver, handles, contexts) {}

  ImageStore images;
  LoadOrder load_order{images};
  FunctionLayouts layouts;
  JitLinks links;  ///< under way
  SystemScope system_scope;
};

}  // namespace fargpu::server
