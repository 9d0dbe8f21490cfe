#include "settings_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <regex>
#include <sstream>
#include <utility>

#include "protocol/text.h"

namespace fargpu::server {
namespace {

// How many letters must be changed, added or left out to make one of the other.
std::size_t changes_between(const std::string& one, const std::string& other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t before = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j)
      before = std::exchange(row[j + 1], std::min({before + (one[i] != other[j]), row[j] + 1, row[j + 1] + 1}));
  }
  return row.back();
}

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

std::string place_of(const std::string& file, const toml::key& key) { return fmt::format("{} (line {})", file, key.source().begin.line); }

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

std::string nearest(const std::string& written, const std::vector<std::string>& names) {
  constexpr std::size_t long_name = 100;  // nobody meant that
  std::string best;
  std::size_t least = written.size() > long_name ? 0 : 1 + std::max<std::size_t>(1, written.size() / 3);
  for (const std::string& name : names)
    if (const std::size_t changes = changes_between(written, name); changes < least) {
      least = changes;
      best = name;
    }
  return best;
}

std::string perhaps(const std::string& written, const std::vector<std::string>& names) {
  const std::string meant = nearest(written, names);
  return meant.empty() ? "" : "; perhaps '" + meant + "' is meant";
}

}  // namespace fargpu::server
