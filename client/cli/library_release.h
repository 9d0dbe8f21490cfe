#pragma once
// Which release of fargpu a library file is of, told without loading it.

#include <filesystem>
#include <string>

namespace fargpu::client::cli {

/// The release that a library tells in its note, for example "0.2.0"; empty if it has none, as before 0.2.0. Throws
/// std::runtime_error if the file cannot be read, is no library, or ends too early.
std::string library_release(const std::filesystem::path& path);

}  // namespace fargpu::client::cli
