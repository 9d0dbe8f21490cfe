#include "mps.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace fargpu::server {

std::string mps_complaint(const std::string& folder) {
  struct stat pipe {};
  const std::string control = folder + "/control";
  std::string reason;
  if (::stat(control.c_str(), &pipe) != 0) reason = std::strerror(errno);
  else if (!S_ISFIFO(pipe.st_mode) && !S_ISSOCK(pipe.st_mode)) reason = "no pipe";
  if (reason.empty()) return "";
  return fmt::format(
      "no MPS daemon is at '{0}' ('{1}': {2}); as the user of the workers run CUDA_MPS_PIPE_DIRECTORY={0} "
      "nvidia-cuda-mps-control -d",
      folder, control, reason);
}

}  // namespace fargpu::server
