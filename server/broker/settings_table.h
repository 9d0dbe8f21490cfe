#pragma once
// The table of fargpud's settings, from which they are read, written and explained.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "settings.h"

namespace fargpu::server {

/// One setting: its name in the file (the flag is --name with dashes, the variable FARGPUD_NAME), where it goes, its
/// default and what it means.
struct Setting {
  const char* name;
  std::variant<std::string Settings::*, std::uint64_t Settings::*, bool Settings::*> field;
  std::string standard;
  const char* help;
  /// What a text names: files in the settings file count from its folder. A library may also be one that the loader
  /// finds, without a slash.
  enum class Names { nothing, path, library } names = Names::nothing;

  /// A number that may be given with a unit, such as 4GiB.
  bool in_bytes() const { return std::string_view(name).ends_with("_bytes_max"); }
};

const std::vector<Setting>& settings_table();

/// A value, with this folder before it if it is a path that counts from there.
std::string from_folder(const std::filesystem::path& folder, const Setting& entry, const std::string& value);

}  // namespace fargpu::server
