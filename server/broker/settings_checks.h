#pragma once
// What values of settings must be, each and together.

#include "settings.h"

namespace fargpu::server {

/// Throws SettingsError.
void check_settings(const Settings& settings);

}  // namespace fargpu::server
