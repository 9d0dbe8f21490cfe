#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>
#include <cstring>
#include <span>

#include "api/procedure_table.h"
#include "common/limits.h"

using namespace fargpu::softgpu;

namespace {

struct Lookup {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};

/// The newest variant that the version knows. A function that has variants for per-thread default
/// streams is found only among those if the flags ask for them.
Lookup look_up(const char* name, int version, cuuint64_t flags) {
  bool wants_per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  std::span all(procedures, procedure_count);
  auto less = [](const Procedure& p, const char* n) { return std::strcmp(p.name, n) < 0; };
  auto first = std::lower_bound(all.begin(), all.end(), name, less);
  auto last = first;
  bool has_per_thread = false;
  for (; last != all.end() && std::strcmp(last->name, name) == 0; ++last) has_per_thread |= last->is_per_thread;
  Lookup result;
  if (first != last) result.status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  for (auto it = first; it != last; ++it) {
    if (it->is_per_thread != (wants_per_thread && has_per_thread) || it->version > version) continue;
    result = {it->function, CU_GET_PROC_ADDRESS_SUCCESS};
  }
  return result;
}

void check(const char* symbol, void** function, int version, cuuint64_t flags) {
  constexpr cuuint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  require(symbol != nullptr && function != nullptr && (flags & ~known) == 0 && flags != known);
  require(version <= driver_version);
}

}  // namespace

// Both work before cuInit.

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  return guarded([&] {
    check(symbol, function, version, flags);
    Lookup found = look_up(symbol, version, flags);
    require(found.function != nullptr, CUDA_ERROR_NOT_FOUND);
    *function = found.function;
  });
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return guarded([&] {
    check(symbol, function, version, flags);
    Lookup found = look_up(symbol, version, flags);
    *function = found.function;
    if (status != nullptr) *status = found.status;
  });
}
