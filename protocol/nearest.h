#pragma once
// Names that people misspell: which one is meant.

#include <string>
#include <vector>

namespace fargpu {

/// The name that was meant by what is written: it differs by few letters, or one is short for the other.
/// Empty if none is near.
std::string nearest(const std::string& written, const std::vector<std::string>& names);
/// "; perhaps 'listen' is meant", or nothing.
std::string perhaps(const std::string& written, const std::vector<std::string>& names);

}  // namespace fargpu
