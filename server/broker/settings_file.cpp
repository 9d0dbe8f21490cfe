#include "settings_file.h"

#include <fmt/format.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "protocol/text.h"

namespace fargpu::server {
namespace {

// What a line says whose value is text without quotes, as it should be; empty if it is none of these.
std::string with_quotes(const std::string& file, std::uint32_t number) {
  static const std::regex bare(R"re(\s*([A-Za-z0-9_-]+)\s*=\s*([A-Za-z/.][^"'#,\[\]{}]*?)\s*(#.*)?)re");
  std::ifstream in(file);
  std::string line;
  for (std::uint32_t i = 0; i < number; ++i)
    if (!std::getline(in, line)) return "";
  std::smatch parts;
  constexpr std::size_t line_max = 500;  // of what people write
  if (line.size() > line_max || !std::regex_match(line, parts, bare)) return "";
  return printable(parts[1].str() + " = \"" + parts[2].str() + "\"", line_max);
}

}  // namespace

std::string what_is(const toml::node& node) {
  constexpr std::size_t shown_max = 60;
  if (const auto* value = node.as_string()) return "the text \"" + printable(value->get(), shown_max) + "\"";
  if (const auto* value = node.as_integer()) return fmt::format("the number {}", value->get());
  if (const auto* value = node.as_floating_point()) return fmt::format("the number {}, with a fraction", value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  return node.is_table() ? "a table" : "a date or a time";
}

std::string place_of(const std::string& file, const toml::node& node) {
  return fmt::format("{} (line {})", file, node.source().begin.line);
}

std::string place_of(const std::string& file, const toml::key& key) {
  return fmt::format("{} (line {})", file, key.source().begin.line);
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') result += {'\\', c};
    else if (code < 0x20 || code == 0x7f) result += fmt::format("\\u{:04x}", code);
    else result += c;
  }
  return result + "\"";
}

toml::table read_toml(const std::string& file) {
  try {
    return toml::parse_file(file);
  } catch (const toml::parse_error& error) {
    const auto place = error.source().begin;
    if (const std::string meant = with_quotes(file, place.line); !meant.empty())
      throw SettingsError(fmt::format("{} (line {}): text goes in quotes: {}", file, place.line, meant));
    std::ostringstream where;
    where << place;
    throw SettingsError(file + ": " + std::string(error.description()) + " (" + where.str() + ")");
  }
}

}  // namespace fargpu::server
