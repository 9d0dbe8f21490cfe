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
  std::vector<PoolHost> hosts = parse_pool(text, error);
  if (!error.empty()) throw std::runtime_error(error);
  return hosts;
}

std::filesystem::path library_folder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const std::filesystem::path& folder :
       {self.parent_path().parent_path() / "lib", std::filesystem::path(FARGPU_LIBDIR) / "fargpu",
        self.parent_path().parent_path() / FARGPU_LIBDIR_NAME / "fargpu"}) {
    if (std::filesystem::exists(folder / "libcuda.so.1", error)) return folder;
  }
  return {};
}

}  // namespace fargpu::client::cli
