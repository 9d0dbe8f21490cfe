#include "orphaned_workers.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

// Nothing of a process that has ended, also while it is read: that is an error of the file's, which this form does not
// throw.
std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// "PID (NAME) STATE PARENT ...", where a name may hold anything.
std::string parent_of(const fs::path& process) {
  const std::string stat = contents(process / "stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= stat.size()) return "";
  const std::size_t begin = name_end + 4;
  return stat.substr(begin, stat.find(' ', begin) - begin);
}

}  // namespace

std::vector<pid_t> orphaned_workers(const std::string& worker) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", fs::directory_options::skip_permission_denied, error)) {
    const std::string name = entry.path().filename();
    pid_t process = 0;
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (wrong != std::errc{} || end != name.data() + name.size()) continue;
    // By its first words: what it runs cannot be asked of a worker, which nobody may trace.
    const std::string arguments = contents(entry.path() / "cmdline");
    if (!arguments.starts_with(worker + '\0' + "--driver" + '\0')) continue;
    if (arguments.find(std::string("\0--door\0", 8)) != std::string::npos) continue;
    if (contents(fs::path("/proc") / parent_of(entry.path()) / "comm") != "fargpud\n") found.push_back(process);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace fargpu::server
