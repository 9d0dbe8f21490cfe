#pragma once
// What is wrong with the settings.

#include <stdexcept>

namespace fargpu::server {

/// A setting that cannot be; the text names it, its value, where it came from and what would be right.
struct SettingsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fargpu::server
