#pragma once
// The name of this machine, as its system has it.

#include <unistd.h>

#include <string>

namespace fargpu {

/// Empty if the system tells none.
inline std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace fargpu
