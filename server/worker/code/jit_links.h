#pragma once
// Links of images that the session has under way in the driver.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "jit_options.h"

namespace fargpu::server {

/// What the driver is told of an input beside its bytes. It may look at that again when the link is completed.
struct JitInput {
  std::string name;
  std::shared_ptr<const void> held;  // the image
  JitOptions options;
  HostCharge charge;  // of the name
};

struct JitLink {
  CUlinkState state = nullptr;
  std::uint32_t context = 0;          // in which it was made
  JitOptions options;                 // the driver writes its logs until the link is destroyed
  std::list<JitInput> inputs;         // as long
  const std::byte* linked = nullptr;  // the result, which is the driver's
  std::size_t linked_bytes = 0;
  bool busy = false;  // a call with it runs beside the executor
};

using JitLinks = std::map<std::uint64_t, std::shared_ptr<JitLink>>;  // by handle

}  // namespace fargpu::server
