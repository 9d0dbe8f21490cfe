#include "toml_words.h"

#include <fmt/format.h>

#include "protocol/printable.h"

namespace fargpu::server {

std::string what_is(const toml::node& node) {
  constexpr std::size_t shown_max = 60;
  if (const auto* value = node.as_string()) return "the text \"" + printable(value->get(), shown_max) + "\"";
  if (const auto* value = node.as_integer()) return fmt::format("the number {}", value->get());
  if (const auto* value = node.as_floating_point()) return fmt::format("the number {}, with a fraction", value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  return node.is_table() ? "a table" : "a date or a time";
}

std::string place_of(const std::string& file, const toml::node& node) { return fmt::format("{} (line {})", file, node.source().begin.line); }

}  // namespace fargpu::server
