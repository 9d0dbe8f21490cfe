#pragma once
// FARGPU_LOG=trace: the arguments of a call as text.

#include <cuda.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

#include "protocol/handle.h"
#include "symbols.h"

namespace fargpu::client {

/// An argument as eight bytes: what is longer, by its address, which must stay good for as long as the result is used.
template <class T>
std::uint64_t raw_argument(const T& argument) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<std::uintptr_t>(argument);
  else if constexpr (std::is_same_v<T, float>) return std::bit_cast<std::uint32_t>(argument);
  else if constexpr (std::is_class_v<T>) return reinterpret_cast<std::uintptr_t>(&argument);
  else return static_cast<std::uint64_t>(argument);
}

/// "*dptr=0x302000000, bytesize=4096". What the call has written is read only where it has succeeded. `name_of` gives
/// the name of a kernel; empty if it is unknown.
std::string argument_text(Symbol symbol, std::span<const std::uint64_t> arguments, CUresult result,
                          const std::function<std::string(Handle)>& name_of);

}  // namespace fargpu::client
