#pragma once
// Where the client library lies that `fargpu run` puts in front of the loader's path.

#include <filesystem>
#include <string>
#include <vector>

namespace fargpu::client::cli {

/// The folders in which the library may lie, in the order in which they are tried: beside the command, where packages
/// and installations below the command's own prefix have it, and where the build was configured to install it.
std::vector<std::filesystem::path> library_folders();

/// The first of them with libcuda.so.1; empty if none has it.
std::filesystem::path library_folder();

/// What is wrong with the libraries of that folder: they are not whole, or of another release than this command. Empty:
/// nothing.
std::string library_fault(const std::filesystem::path& folder);
/// How to fix that.
std::string library_repair();

/// What is wrong where none has it, with all places that were looked at.
std::string missing_library_text();

/// How to fix that.
std::string missing_library_repair();

}  // namespace fargpu::client::cli
