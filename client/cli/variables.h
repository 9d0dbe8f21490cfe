#pragma once
// Every variable of fargpu's own that a client reads: one table, for `fargpu variables`, for the checks of `fargpu
// doctor`, and for docs/reference/client-variables.md. A test compares it with what the sources read.

#include <span>

namespace fargpu::client::cli {

struct Variable {
  /// What a value names.
  enum class Names {
    nothing,
    file,    ///< that is read
    secret,  ///< a file that only its owner is to read
    output,  ///< a file that is written
  };
  const char* name;
  const char* standard;  ///< what counts while it is not set; empty where nothing does
  const char* meaning;
  Names names = Names::nothing;
};

/// By topic, in the order in which people meet them.
std::span<const Variable> variables();

}  // namespace fargpu::client::cli
