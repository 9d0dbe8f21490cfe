#include "sm_groups.h"

#include <charconv>

namespace fargpu::server {

std::string text_of(const SmGroups& groups) {
  std::string text;
  for (const auto& device : groups) {
    if (&device != &groups.front()) text += ':';
    for (const unsigned group : device) text += (group == device.front() ? "" : ",") + std::to_string(group);
  }
  return text;
}

std::optional<SmGroups> parse_sm_groups(std::string_view text) {
  SmGroups groups(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    unsigned group = 0;
    const auto [behind, error] = std::from_chars(at, end, group);
    auto& device = groups.back();
    if (error != std::errc{} || group >= sm_groups_max || (!device.empty() && group <= device.back()))
      return std::nullopt;
    device.push_back(group);
    if (behind == end) return groups;
    if (*behind != ',' && *behind != ':') return std::nullopt;
    if (*behind == ':') groups.emplace_back();
    at = behind + 1;
  }
}

}  // namespace fargpu::server
