#include "sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "errors.h"

namespace fargpu {
namespace {

constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

int make_sealed_memory(const char* name, std::size_t bytes) {
  const int memory = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory >= 0 && ::ftruncate(memory, static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(memory, F_ADD_SEALS, wanted_seals) == 0)
    return memory;
  const int error = errno;
  if (memory >= 0) ::close(memory);
  throw SystemError(std::string("no memory to share: ") + std::strerror(error));
}

bool is_sealed_memory(int descriptor, std::size_t bytes) {
  struct stat status {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & wanted_seals) == wanted_seals && ::fstat(descriptor, &status) == 0 &&
         static_cast<std::uint64_t>(status.st_size) >= bytes;
}

}  // namespace fargpu
