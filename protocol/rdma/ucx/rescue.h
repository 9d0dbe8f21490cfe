#pragma once
// UCX calls abort() where it meets what it did not expect, such as an error of a peer that is gone at a place where it
// knows of none (1.13 does). In a stranger's process, and in a worker that has more to do than UCX, that is no end:
// what called UCX is returned to instead, and leaves alone from then on what UCX was at, which may be locked.

#include <csetjmp>
#include <utility>

#include "protocol/rdma/interface.h"

namespace fargpu::rdma {

/// Where a thread goes on when UCX aborts in it; null where it is not in rescued().
inline thread_local std::jmp_buf* rescue = nullptr;
/// Of threads that UCX has started.
inline thread_local bool thread_of_ucx = false;

/// What a function of UCX that this thread has called has said last.
inline thread_local char said[why_bytes];

/// What UCX's calls of abort() end in.
[[noreturn]] void give_up() noexcept;
/// Whether a thread of UCX has given up, which is then missing to all.
bool threads_have_given_up() noexcept;

/// Calls UCX. False if it has given up. `use` has no variables with destructors.
template <class Use>
[[gnu::noinline]] bool rescued(Use&& use) {
  std::jmp_buf here;
  std::jmp_buf* const before = rescue;
  if (_setjmp(here) != 0) {
    rescue = before;
    return false;
  }
  rescue = &here;
  std::forward<Use>(use)();
  rescue = before;
  return true;
}

}  // namespace fargpu::rdma
