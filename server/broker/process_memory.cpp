#include "process_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace fargpu::server {

std::uint64_t private_bytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  std::uint64_t addresses = 0, resident = 0, shared = 0;
  if (!(file >> addresses >> resident >> shared) || resident < shared) return 0;
  return (resident - shared) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace fargpu::server
