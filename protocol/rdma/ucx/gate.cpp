#include "gate.h"

#include <sched.h>

namespace fargpu::rdma {

bool Gate::is_empty_by(std::chrono::steady_clock::time_point deadline) const noexcept {
  while (inside_.load() != 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    ::sched_yield();
  }
  return true;
}

}  // namespace fargpu::rdma
