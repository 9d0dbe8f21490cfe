#pragma once
// Every variable of fargpu's own that a client reads: one table, for `fargpu variables`, for the checks of `fargpu
// doctor`, `fargpu run` and the client library, and for docs/reference/client-variables.md. A test compares it with
// what the sources read.

#include <span>
#include <string>
#include <vector>

namespace fargpu::client {

struct EnvironmentVariable {
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
std::span<const EnvironmentVariable> environment_variables();

/// The value of a variable. Null where it is not set, and in programs that run with more rights than their user has
/// (set-user-ID programs): what those read, write, send and load is not for their user's environment to say.
const char* environment_variable(const char* name);
/// Whether this is such a program.
bool environment_withheld();

/// A variable of the environment that looks like one of fargpu and is none: misspelt, it has no effect.
struct StrangeVariable {
  std::string name;
  std::string meant;  ///< the variable that its name is near to; empty if there is none

  std::string text() const;  ///< for people
};
std::vector<StrangeVariable> strange_variables();

}  // namespace fargpu::client
