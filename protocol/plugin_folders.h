#pragma once
// Where plugins lie.

#include <filesystem>
#include <vector>

namespace fargpu {

/// In the order in which they are looked into.
std::vector<std::filesystem::path> plugin_folders();

}  // namespace fargpu
