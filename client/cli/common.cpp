#include <cstdlib>
#include <stdexcept>

#include "commands.h"

namespace fargpu::client::cli {

std::vector<PoolHost> pool_hosts(const std::string& pool) {
  const char* const variable = std::getenv("FARGPU_POOL");
  const std::string text = !pool.empty() ? pool : variable ? variable : "";
  if (text.empty()) {
    throw std::runtime_error("no pool is named; set FARGPU_POOL=host[:port][,host...] or give --pool");
  }
  if (text == "none") throw std::runtime_error("FARGPU_POOL=none: no GPU is to be used");
  std::string error;
  std::vector<PoolHost> hosts = parse_pool(text, error, pool.empty() ? "FARGPU_POOL" : "--pool");
  if (!error.empty()) throw std::runtime_error(error);
  return hosts;
}

std::filesystem::path library_folder() {
  std::error_code error;
  const std::filesystem::path prefix = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  for (const std::filesystem::path& folder :
       {prefix / FARGPU_LIBDIR_NAME / "fargpu",            // installed, and perhaps moved since
        prefix / "lib",                                    // the build tree
        std::filesystem::path(FARGPU_LIBDIR) / "fargpu"})  // installed, the commands elsewhere
  {
    if (std::filesystem::exists(folder / "libcuda.so.1", error)) return folder;
  }
  return {};
}

}  // namespace fargpu::client::cli
