#include "settings.h"

#include <cstring>

namespace fargpu::rdma {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

// Read while the libraries are loaded, once.
constexpr Setting settings[] = {
    // Nothing of ours in the program: no handlers of signals, no functions put in front of malloc and mmap, no files.
    {"UCX_HANDLE_ERRORS", "none"},
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_DEBUG_SIGNO", "0"},
    {"UCX_MEM_EVENTS", "n"},
    {"UCX_MEM_MMAP_HOOK_MODE", "none"},
    {"UCX_MEM_CUDA_HOOK_MODE", "none"},
    {"UCX_MEM_MALLOC_HOOKS", "n"},
    {"UCX_MEM_MALLOC_RELOC", "n"},
    {"UCX_MEMTYPE_CACHE", "n"},
    {"UCX_VFS_ENABLE", "n"},
    {"UCX_STATS_DEST", ""},
    {"UCX_LOG_LEVEL", "error"},  // kept as the reason of what fails
    {"UCX_LOG_FILE", "stderr"},  // not standard output, which is the program's
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    // Memory is registered when it is made known, so that what fails fails there.
    {"UCX_REG_NONBLOCK_MEM_TYPES", ""},
    // Whatever is put has been seen when its flush is over.
    {"UCX_IB_PCI_RELAXED_ORDERING", "n"},
};

}  // namespace

bool is_ucx_variable(const char* name) { return std::strncmp(name, "UCX_", 4) == 0 || std::strstr(name, "_UCX_"); }

const char* ucx_setting(const char* name) {
  for (const Setting& setting : settings)
    if (std::strcmp(setting.name, name) == 0) return setting.value;
  return nullptr;
}

}  // namespace fargpu::rdma
