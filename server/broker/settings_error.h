#pragma once
// What is wrong with the settings, or with what they name.

#include <stdexcept>

namespace fargpu::server {

/// A setting that cannot be; the text names it, its value, where it came from and what would be right.
struct SettingsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An address that another process has: another fargpud perhaps, which ends soon. Trying again later can help.
struct AddressInUse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An address that this machine does not have, or a name without one: it may come, as at a boot.
struct AddressMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fargpu::server
