#pragma once
// Files of a site are written whole or not at all, and a full disk is named.

#include <string>
#include <string_view>

namespace fargpu::site {

/// Writes all of a text to an open file, and waits until the disk has it. False: errno says why.
bool write_all(int descriptor, std::string_view text);

/// What such an error means, with the repair where there is one.
std::string why_unwritten(int error);

}  // namespace fargpu::site
