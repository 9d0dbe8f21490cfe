#include "plugin_folders.h"

#include <dlfcn.h>

#include "own_executable.h"

namespace fargpu {

// A library looks in its own folder alone: the program around it is a stranger's.
std::vector<std::filesystem::path> plugin_folders() {
  std::error_code error;
  Dl_info self{};
  const bool known = ::dladdr(reinterpret_cast<void*>(&plugin_folders), &self) != 0 && self.dli_fname;
  const std::filesystem::path here = known ? std::filesystem::canonical(self.dli_fname, error) : "";
  const std::filesystem::path program = own_executable();
  if (!here.empty() && here != program) return {here.parent_path()};
  std::vector<std::filesystem::path> all{program.parent_path()};
  std::filesystem::path above = program.parent_path();
  for (int i = 0; i < 3 && above.has_relative_path(); ++i) {
    above = above.parent_path();
    all.push_back(above / FARGPU_LIBDIR_NAME / "fargpu");
    if (std::filesystem::exists(above / "CMakeCache.txt", error)) all.push_back(above / "lib");
  }
  all.push_back(std::filesystem::path(FARGPU_LIBDIR) / "fargpu");
  return all;
}

}  // namespace fargpu
