#pragma once
// Links of images under way: what the program lent for logs, and the result, which belongs to the link.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "jit_options.h"
#include "protocol/handle.h"

namespace fargpu::client {

struct JitLink {
  JitOutputs outputs;
  std::vector<std::byte> linked;
};

/// Threads: any; a link itself is used by one at a time, as CUDA wants it.
class JitLinks {
 public:
  void add(Handle handle, const JitOutputs& outputs);
  /// Null if there is none of this handle.
  std::shared_ptr<JitLink> find(Handle handle) const;
  void remove(Handle handle);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<JitLink>> links_;
};

}  // namespace fargpu::client
