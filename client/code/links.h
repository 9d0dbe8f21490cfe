#pragma once
// Links under way: what the program lent for logs, and the result, which belongs to the link.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "jit_options.h"
#include "protocol/handle.h"

namespace fargpu::client {

struct Link {
  JitOutputs outputs;
  std::vector<std::byte> linked;
};

/// Threads: any; a link itself is used by one at a time, as CUDA wants it.
class Links {
 public:
  void add(Handle handle, const JitOutputs& outputs);
  /// Null if there is none of this handle.
  std::shared_ptr<Link> find(Handle handle) const;
  void remove(Handle handle);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Link>> links_;
};

}  // namespace fargpu::client
