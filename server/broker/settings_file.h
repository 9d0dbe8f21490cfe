#pragma once
// A settings file as TOML, and what people are told of a value in it that is not what belongs there.

#include <toml++/toml.h>

#include <string>

#include "protocol/nearest.h"
#include "settings_error.h"

namespace fargpu::server {

/// "the text "many"", "the number 5", "a list".
std::string what_is(const toml::node& node);
/// "FILE (line 3)".
std::string place_of(const std::string& file, const toml::node& node);
std::string place_of(const std::string& file, const toml::key& key);

/// A text as a settings file has it.
std::string quoted(const std::string& text);

/// A settings file as TOML has it. Throws SettingsError, with the place, and a word more for text without quotes.
toml::table read_toml(const std::string& file);

}  // namespace fargpu::server
