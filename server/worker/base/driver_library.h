#pragma once
// The driver library that a worker executes against, loaded by path.

#include <stdexcept>
#include <string>
#include <vector>

#include "driver_table.h"

namespace fargpu::server {

struct DriverError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Loads the library (never unloads it) and fills the table. Throws DriverError if it cannot be loaded or lacks the
/// basics. Returns the names it does not have; those functions answer CUDA_ERROR_NOT_FOUND.
std::vector<std::string> load_driver(const std::string& path, DriverTable& table);

}  // namespace fargpu::server
