// The fake driver's linker: inputs are texts, and the result is all of them behind each other.

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "objects.h"

namespace fargpu::fake {
namespace {

struct Linker {
  CUcontext context = nullptr;  // the only one in which it may be used
  std::thread::id thread;       // as well
  char* error_log = nullptr;
  std::size_t error_room = 0;
  void** error_size = nullptr;
  std::string text;
  // A driver may look at names again when the link is completed.
  std::vector<std::pair<const char*, std::string>> names;
};

// A driver can crash where a link is used in another context than its own, or on several threads.
bool is_own(const Linker& linker) {
  return linker.context == current_context() && linker.thread == std::this_thread::get_id();
}

}  // namespace

namespace behaviour {

CUresult cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values, CUlinkState* out) {
  const Lock lock(mutex());
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  auto* const linker = make<Linker>();
  linker->context = current_context();
  linker->thread = std::this_thread::get_id();
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) linker->error_log = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      linker->error_room = reinterpret_cast<std::size_t>(values[i]);
      linker->error_size = &values[i];
    }
  }
  if (linker->error_size) *linker->error_size = nullptr;
  *out = reinterpret_cast<CUlinkState>(linker);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, std::size_t bytes, const char* name,
                          unsigned, CUjit_option*, void**) {
  const Lock lock(mutex());
  Linker* const linker = live<Linker>(state);
  if (!linker) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_own(*linker)) return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_JIT_INPUT_PTX) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const std::string text(static_cast<const char*>(data), strnlen(static_cast<const char*>(data), bytes));
  if (text.find("syntax error") != std::string::npos) {
    if (linker->error_log) {
      const int length = std::snprintf(linker->error_log, linker->error_room, "%s: syntax error", name);
      *linker->error_size = reinterpret_cast<void*>(static_cast<std::size_t>(length));
    }
    return CUDA_ERROR_INVALID_PTX;
  }
  linker->text += text;
  if (name) linker->names.emplace_back(name, name);
  return CUDA_SUCCESS;
}

CUresult cuLinkComplete(CUlinkState state, void** linked, std::size_t* bytes) {
  const Lock lock(mutex());
  Linker* const linker = live<Linker>(state);
  if (!linker) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_own(*linker)) return CUDA_ERROR_INVALID_CONTEXT;
  for (const auto& [at, name] : linker->names)
    if (name != at) return CUDA_ERROR_UNKNOWN;
  *linked = linker->text.data();
  *bytes = linker->text.size() + 1;
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  const Lock lock(mutex());
  const Linker* const linker = live<Linker>(state);
  if (linker && !is_own(*linker)) return CUDA_ERROR_INVALID_CONTEXT;
  return destroy<Linker>(state);
}

}  // namespace behaviour
}  // namespace fargpu::fake
