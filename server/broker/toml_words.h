#pragma once
// What people are told of a value in a settings file that is not what belongs there.

#include <toml++/toml.h>

#include <string>

namespace fargpu::server {

/// "the text "many"", "the number 5", "a list".
std::string what_is(const toml::node& node);
/// "FILE (line 3)".
std::string place_of(const std::string& file, const toml::node& node);

}  // namespace fargpu::server
