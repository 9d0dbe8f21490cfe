#include "library_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "library_release.h"
#include "protocol/own_executable.h"
#include "protocol/text.h"
#include "protocol/version.h"

namespace fargpu::client::cli {

namespace fs = std::filesystem;

constexpr const char* library = "libcuda.so.1";
constexpr const char* device_library = "libnvidia-ml.so.1";

std::vector<fs::path> library_folders() {
  std::error_code error;
  const fs::path own = own_executable().parent_path();
  const fs::path prefix = own.parent_path();
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
  };
  if (!own.empty()) {
    add(own);
    for (const char* name : {FARGPU_LIBDIR_NAME, "lib", "lib64", "lib/" FARGPU_MULTIARCH})
      add(prefix / name / "fargpu");
    // PREFIX/lib itself may hold a driver's library. It counts in a build tree alone.
    if (fs::exists(prefix / "CMakeCache.txt", error)) add(prefix / "lib");
  }
  add(fs::path(FARGPU_LIBDIR) / "fargpu");
  return folders;
}

fs::path library_folder() {
  std::error_code error;
  for (const fs::path& folder : library_folders())
    if (fs::exists(folder / library, error)) return folder;
  return {};
}

std::string library_fault(const fs::path& folder) {
  std::error_code error;
  for (const char* const name : {library, device_library}) {
    const fs::path path = folder / name;
    if (!fs::exists(path, error)) continue;
    try {
      const std::string release = library_release(path);
      if (release != our_release)
        return fmt::format("{} is of {}, and this command of fargpu {}", path.string(),
                           release.empty() ? "fargpu before 0.2.0, or not of fargpu" : "fargpu " + printable(release),
                           our_release);
    } catch (const std::runtime_error& fault) {
      return fmt::format("{} cannot be used: {}", path.string(), fault.what());
    }
  }
  return {};
}

std::string library_repair() {
  return "install the package fargpu-client again, or `fargpu` and both libraries from one build";
}

std::string missing_library_text() {
  std::string places;
  for (const fs::path& folder : library_folders()) places += (places.empty() ? "" : ", ") + folder.string();
  return fmt::format("the client library ({}) is in none of these folders: {}", library, places);
}

std::string missing_library_repair() {
  return fmt::format("install the package fargpu-client, or put {} into one of them", library);
}

}  // namespace fargpu::client::cli
