#pragma once
// FARGPU_TRACE and FARGPU_LOG=trace: what a frame to the worker asks for, in the words of the program.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "opcodes.h"
#include "protocol/handle.h"

namespace fargpu::client::trace {

/// What one call of the program has asked for so far, in one frame or in several.
struct Details {
  std::optional<std::string> kernel;
  std::string grid, block;  ///< "8,1,1"
  std::uint32_t shared_bytes = 0;
  std::string copy;  ///< "host to device"
  std::uint64_t copied_bytes = 0;
  std::string stream;  ///< "1", or "default"

  /// Adds what the message of a frame says. `name_of` gives the name of a function; empty if it is unknown.
  void add(Opcode opcode, std::span<const std::byte> message, const std::function<std::string(Handle)>& name_of);
  /// ": host to device, 4096 bytes"; nothing for what is no copy.
  std::string text() const;
  /// As members of a JSON object, each with a comma behind it.
  std::string json() const;
};

/// Text as it stands between the quotes of JSON.
std::string escaped(const std::string& text);

}  // namespace fargpu::client::trace
