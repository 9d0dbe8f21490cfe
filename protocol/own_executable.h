#pragma once
// Where the running program lies, beside which an installation has its other parts.

#include <sys/auxv.h>

#include <filesystem>

namespace fargpu {

/// Empty if nothing says. Where /proc is not mounted, as in a bare change of root, the name counts by which the program
/// was started.
inline std::filesystem::path own_executable() {
  std::error_code error;
  const std::filesystem::path linked = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return linked;
  const char* const started = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  const std::filesystem::path whole = started ? std::filesystem::canonical(started, error) : std::filesystem::path();
  return error ? std::filesystem::path() : whole;
}

}  // namespace fargpu
