#pragma once
// What the program's address space says of an address.

#include <cstdint>
#include <string>

namespace fargpu::client {

/// The path of the file that is mapped there; empty if none is.
std::string file_mapped_at(std::uint64_t address);

}  // namespace fargpu::client
