#pragma once
// A folder of a test's own.

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace fargpu::test {

/// Made empty among the system's temporary files, and removed with all that is in it.
struct TemporaryFolder {
  TemporaryFolder() = default;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path); }

  const std::filesystem::path path = [] {
    std::string name = std::filesystem::temp_directory_path() / "fargpu-test-XXXXXX";
    if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    return name;
  }();
};

}  // namespace fargpu::test
