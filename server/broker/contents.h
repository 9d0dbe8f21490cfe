#pragma once
// Contents of memory that the host keeps of its tenants: where, how many, and their end. Workers read and write them.

#include <filesystem>
#include <string>

#include "server/folder_account.h"
#include "settings.h"

namespace fargpu::server {

/// The folder of a tenant's contents, which no other tenant's sessions look into; empty: nothing is kept.
std::filesystem::path content_folder(const Settings& settings, const std::string& tenant);

/// How much is kept there, as its account says.
FolderAccount::Used kept_contents(const std::filesystem::path& folder);

/// Has nothing be kept there any more. What is removed was out of reach before this returns; removing it goes on
/// beside. Sessions may add to the folder at once. Returns why it cannot be done; empty if it is.
std::string clear_contents(const std::filesystem::path& folder);

}  // namespace fargpu::server
