// libfargpu-nccl.so, which `fargpu run` puts before a program whose devices are of several hosts: NCCL takes all of
// them for devices of one machine, and its kernels would wait for ever for memory that they do not see. Communicators
// among hosts are refused when they are made; all others are NCCL's.

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "client/tables/hosts_table.h"
#include "client/tables/table_of_driver.h"

namespace {

using fargpu::client::HostsTable;

// nccl.h, "Types" of NVIDIA's NCCL documentation: what its functions take and return.
struct UniqueId {
  char bytes[128];
};
using Result = int;
constexpr Result invalid_usage = 5;

struct Place {
  unsigned host = 0;
  unsigned devices = 0;  // that the program has there
};

// False for a program whose devices are of one host, whatever it asked for.
bool place_of(CUdevice device, Place& place) {
  const auto* const table = fargpu::client::table_of_driver<HostsTable>(fargpu::client::hosts_table_id);
  return table && table->host_of(device, &place.host, &place.devices) == CUDA_SUCCESS;
}

bool current_place(Place& place) {
  const auto current = fargpu::client::driver_function<CUresult (*)(CUdevice*)>("cuCtxGetDevice");
  CUdevice device = 0;
  return current && current(&device) == CUDA_SUCCESS && place_of(device, place);
}

Result refuse() {
  std::fputs(
      "fargpu: refused: an NCCL communicator among GPUs of different hosts, for NCCL takes them for GPUs of one "
      "machine; make communicators among the GPUs of one host, or ask for GPUs of one host (--hosts 1)\n",
      stderr);
  return invalid_usage;
}

// Files that this process has made, which end with it.
struct Files {
  ~Files() {
    for (const std::string& path : paths) ::unlink(path.c_str());
  }
  std::mutex mutex;
  std::vector<std::string> paths;
} files;

// The host that the first rank of a communicator has come from, kept where all programs of the job find it.
unsigned first_host(const UniqueId& id, unsigned host) {
  const char* const job = ::secure_getenv("FARGPU_JOB");
  if (!job) return host;
  std::size_t hash = 1469598103934665603u;
  for (const char byte : id.bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  const char* const temporary = ::secure_getenv("TMPDIR");
  const std::string path = std::string(temporary && *temporary ? temporary : "/tmp") + "/fargpu-nccl-" +
                           std::string(job).substr(0, 32) + "-" + std::to_string(hash);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return host;
  unsigned first = host;
  struct stat facts {};
  if (::flock(file, LOCK_EX) == 0 && ::fstat(file, &facts) == 0 && facts.st_uid == ::geteuid()) {
    if (::pread(file, &first, sizeof first, 0) != sizeof first) {
      first = host;
      (void)!::pwrite(file, &first, sizeof first, 0);
      const std::lock_guard lock(files.mutex);
      files.paths.push_back(path);
    }
  }
  ::close(file);
  return first;
}

// A rank of the calling thread's device, among so many.
bool spans(const UniqueId& id, int ranks) {
  Place place;
  if (ranks <= 1 || !current_place(place)) return false;
  // No two ranks share a device.
  return static_cast<unsigned>(ranks) > place.devices || first_host(id, place.host) != place.host;
}

// A library that was loaded for its loader alone, as Python loads modules, is not among those that come next.
void* in_nccl(const char* name) {
  if (void* const next = ::dlsym(RTLD_NEXT, name)) return next;
  void* const nccl = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  return nccl ? ::dlsym(nccl, name) : nullptr;
}

template <class Function, class... Arguments>
Result pass_on(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<Function>(in_nccl(name));
  if (function) return function(arguments...);
  std::fprintf(stderr, "fargpu: there is no NCCL behind %s\n", name);
  return invalid_usage;
}

}  // namespace

#define FARGPU_NCCL extern "C" __attribute__((visibility("default")))

FARGPU_NCCL Result ncclCommInitRank(void** communicator, int ranks, UniqueId id, int rank) {
  if (spans(id, ranks)) return refuse();
  return pass_on<decltype(&ncclCommInitRank)>("ncclCommInitRank", communicator, ranks, id, rank);
}

FARGPU_NCCL Result ncclCommInitRankConfig(void** communicator, int ranks, UniqueId id, int rank, void* config) {
  if (spans(id, ranks)) return refuse();
  return pass_on<decltype(&ncclCommInitRankConfig)>("ncclCommInitRankConfig", communicator, ranks, id, rank, config);
}

FARGPU_NCCL Result ncclCommInitRankScalable(void** communicator, int ranks, int rank, int ids, UniqueId* list,
                                            void* config) {
  if (ids > 0 && list && spans(list[0], ranks)) return refuse();
  return pass_on<decltype(&ncclCommInitRankScalable)>("ncclCommInitRankScalable", communicator, ranks, rank, ids, list,
                                                      config);
}

FARGPU_NCCL Result ncclCommInitAll(void** communicators, int count, const int* devices) {
  Place first, place;
  for (int i = 0; i < count; ++i) {
    if (!place_of(devices ? devices[i] : i, i == 0 ? first : place)) break;
    if (i > 0 && place.host != first.host) return refuse();
  }
  return pass_on<decltype(&ncclCommInitAll)>("ncclCommInitAll", communicators, count, devices);
}
