#include "contents.h"

#include <unistd.h>

#include <system_error>
#include <thread>

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* gone_suffix = ".gone-";

// What an earlier fargpud did not come to the end of, too.
void remove_what_is_gone(const fs::path& folder) {
  std::error_code error;
  const std::string begin = folder.filename().string() + gone_suffix;
  for (const auto& entry : fs::directory_iterator(folder.parent_path(), error)) {
    std::error_code gone;
    if (entry.path().filename().string().starts_with(begin)) fs::remove_all(entry.path(), gone);
  }
}

}  // namespace

fs::path content_folder(const Settings& settings, const std::string& tenant) {
  if (settings.content_bytes_max == 0) return {};
  if (!settings.content_folder.empty()) return fs::path(settings.content_folder) / tenant;
  return settings.image_folder.empty() ? fs::path() : fs::path(settings.image_folder) / tenant / "contents";
}

FolderAccount::Used kept_contents(const fs::path& folder) {
  if (folder.empty()) return {};
  return FolderAccount(folder).read().value_or(FolderAccount::Used{});
}

std::string clear_contents(const fs::path& folder) {
  static unsigned number = 0;
  std::error_code error;
  if (folder.empty()) return "";
  if (!fs::exists(folder, error)) {
    const bool none = !error || error == std::errc::no_such_file_or_directory;
    return none ? ""
                : "cannot look into " + folder.string() + " (" + error.message() +
                      "), which is that of the workers' user: clear it as that user";
  }
  fs::path gone = folder;
  gone += gone_suffix + std::to_string(::getpid()) + "-" + std::to_string(++number);
  fs::rename(folder, gone, error);
  if (error) return "cannot remove what is kept in " + folder.string() + " (" + error.message() + ")";
  std::thread([folder] { remove_what_is_gone(folder); }).detach();
  return "";
}

}  // namespace fargpu::server
