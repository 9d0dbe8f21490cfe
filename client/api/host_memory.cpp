// Pinned and registered host memory. CUDA Driver API, "Memory Management".

#include "client/memory/host_memory.h"

#include <sys/mman.h>

#include <string_view>

#include "client/base/pages.h"
#include "client/call/refusal.h"
#include "client/memory/mapped_file.h"
#include "client/session/entry.h"
#include "client/session/pool.h"
#include "client/session/route.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

constexpr unsigned alloc_flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned register_flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                    CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

// Whether there is memory all over the range, as far as its pages go. The system says so of a range that it is to write
// back some time, which private memory never is.
bool all_mapped(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t begin = address / page_bytes * page_bytes;
  const std::uint64_t length = address - begin + bytes;
  if (length < bytes || begin + length < begin || begin + length > UINT64_MAX - page_bytes) return false;
  return ::msync(reinterpret_cast<void*>(begin), length, MS_ASYNC) == 0;
}

// By such files the ranks of an NCCL communicator wait for each other, where their devices see no memory of each other.
constexpr std::string_view nccl_files = "/dev/shm/nccl-";

// Memory of the host is known to the session that allocated or registered it; where no other one does, the thread's has
// the word.
template <class Use>
CUresult with_owner(Thread& thread, const void* memory, Use&& use) {
  Pool* const pool = process().pool();
  if (!pool) [[likely]]
    return use(session_of(thread));
  Session* const owner = pool->knowing(reinterpret_cast<std::uint64_t>(memory));
  if (!owner) return use(session_of(thread));
  const Route route(thread, *owner);
  return use(*owner);
}

// It goes: no copy to or from another host may be at it.
void settle_copies() {
  if (Pool* const pool = process().pool()) pool->between.settle();
}

}  // namespace

CUresult cuMemHostAlloc(Thread& thread, void** pp, std::size_t bytesize, unsigned flags) {
  if (!pp || (flags & ~alloc_flags)) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = thread.context();
  if (const CUresult bad = check_usable(context); bad != CUDA_SUCCESS) return bad;
  if (bytesize == 0) {
    *pp = nullptr;
    return CUDA_SUCCESS;
  }
  return session_of(thread).host_memory.allocate(thread, *context, bytesize, flags, pp);
}

CUresult cuMemFreeHost(Thread& thread, void* p) {
  if (!p) return CUDA_SUCCESS;
  settle_copies();
  return with_owner(thread, p, [&](Session& session) { return session.host_memory.free(thread, p, session.fences); });
}

CUresult cuMemHostRegister_v2(Thread& thread, void* p, std::size_t bytesize, unsigned flags) {
  if (!p || bytesize == 0 || (flags & ~register_flags)) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_MEMHOSTREGISTER_IOMEMORY) {
    refuse_use("cuMemHostRegister of I/O memory");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Context* const context = thread.context();
  if (const CUresult bad = check_usable(context); bad != CUDA_SUCCESS) return bad;
  if (!all_mapped(reinterpret_cast<std::uint64_t>(p), bytesize)) return CUDA_ERROR_INVALID_VALUE;
  if (const Pool* const pool = process().pool()) {
    const auto address = reinterpret_cast<std::uint64_t>(p);
    if (Session* const owner = pool->knowing(address); owner && owner != context->session)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (file_mapped_at(address).starts_with(nccl_files)) {
      return refuse_use(
          "an NCCL communicator among GPUs of different hosts (its kernels would wait for each other in memory that "
          "only one host sees), for which the program needs GPUs of one host (--hosts 1)");
    }
  }
  return session_of(thread).host_memory.add(thread, *context, p, bytesize, flags);
}

CUresult cuMemHostUnregister(Thread& thread, void* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  settle_copies();
  return with_owner(thread, p, [&](Session& session) { return session.host_memory.remove(thread, p, session.fences); });
}

CUresult cuMemHostGetDevicePointer_v2(Thread& thread, CUdeviceptr* pdptr, void* p, unsigned flags) {
  if (!pdptr || !p || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t address = 0;
  const CUresult result = session_of(thread).host_memory.map(thread, reinterpret_cast<std::uint64_t>(p), address);
  if (result == CUDA_SUCCESS) *pdptr = address;
  return result;
}

CUresult cuMemHostGetFlags(Thread& thread, unsigned* flags, void* p) {
  if (!flags || !p) return CUDA_ERROR_INVALID_VALUE;
  std::optional<Region> region;
  (void)with_owner(thread, p, [&](Session& session) {
    region = session.map.find(reinterpret_cast<std::uint64_t>(p));
    return CUDA_SUCCESS;
  });
  if (!region || !region->on_host()) return CUDA_ERROR_INVALID_VALUE;
  // All pinned memory is mapped when it is wanted, as under unified addressing.
  *flags = region->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
