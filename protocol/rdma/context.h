#pragma once
// The plugin and what it has opened.

#include <memory>
#include <stdexcept>
#include <string>

#include "interface.h"

namespace fargpu::rdma {

/// RDMA cannot be had. The text says what is missing and what to do.
struct RdmaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The plugin's functions, once it has been loaded; it stays loaded. Looked for beside the library or program that
/// asks, and where it is installed. Throws RdmaError. Threads: any.
const Interface& plugin();

/// For tests: this instead of the plugin; null for the plugin again.
void use_instead(const Interface* functions);

/// Some devices of this machine, opened. Lines of it hold it. Threads: any.
class OpenedDevices {
 public:
  /// As Interface::open. Throws RdmaError.
  OpenedDevices(const Interface& functions, const std::string& devices, const std::string& transports);
  ~OpenedDevices();
  OpenedDevices(const OpenedDevices&) = delete;
  OpenedDevices& operator=(const OpenedDevices&) = delete;

  const Interface& functions() const { return functions_; }
  Context* context() const { return context_; }

 private:
  const Interface& functions_;
  Context* const context_;
};

}  // namespace fargpu::rdma
