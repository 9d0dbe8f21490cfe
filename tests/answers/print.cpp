#include "print.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace answers {

namespace {

constexpr std::size_t shown_bytes_max = 16;  // of memory of no type; more is told by its hash
constexpr std::uint64_t number_max = 1ull << 32;

std::uint64_t word_of(const unsigned char* at, std::uint32_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, std::min<std::size_t>(bytes, sizeof value));
  return value;
}

std::string printable(const char* text, std::size_t length_max) {
  std::string result = "\"";
  for (std::size_t i = 0; i < length_max && text[i]; ++i) {
    const char c = text[i];
    result += c < ' ' || c > '~' || c == '"' || c == '|' || c == ';' ? '.' : c;
  }
  return result + "\"";
}

/// Memory of no type: its words as numbers or by their names, those that are as before as `_`.
std::string words_of(const World& world, const unsigned char* at, std::size_t count) {
  std::string result;
  std::size_t untouched = 0;
  for (std::size_t i = 0; i < count; i += 8) {
    const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(8, count - i));
    const std::uint64_t word = word_of(at + i, bytes);
    const std::string name = bytes == 8 ? world.name_of(word) : std::string();
    if (std::all_of(at + i, at + i + bytes, [](unsigned char c) { return c == untouched_byte; })) {
      ++untouched;
      continue;
    }
    for (; untouched; --untouched) result += "_,";
    result += (!name.empty() ? name : word >= number_max ? "new" : std::to_string(word)) + ",";
  }
  if (!result.empty()) result.pop_back();
  return "[" + result + "]";
}

std::string value_of(const World& world, Role role, bool is_signed, const unsigned char* at, std::uint32_t bytes) {
  const std::uint64_t word = word_of(at, bytes);
  switch (role) {
    case Role::handle:
    case Role::address:
    case Role::pointer:
    case Role::function: {
      if (word == 0) return "null";
      const std::string name = world.name_of(word);
      return name.empty() ? "new" : name;
    }
    case Role::real: {
      char text[32];
      double value = 0;
      if (bytes == 4) {
        float narrow;
        std::memcpy(&narrow, at, sizeof narrow);
        value = narrow;
      } else {
        std::memcpy(&value, at, sizeof value);
      }
      std::snprintf(text, sizeof text, "%g", value);
      return text;
    }
    default: break;
  }
  if (role == Role::record) return words_of(world, at, bytes);
  if (bytes > 8) {
    const bool zero = std::all_of(at, at + bytes, [](unsigned char c) { return c == 0; });
    return zero ? "0" : "#" + hash_of(at, bytes);
  }
  if (is_signed || role == Role::device) {
    const std::int64_t value = bytes == 8   ? static_cast<std::int64_t>(word)
                               : bytes == 4 ? static_cast<std::int32_t>(word)
                               : bytes == 2 ? static_cast<std::int16_t>(word)
                                            : static_cast<std::int8_t>(word);
    return std::to_string(value);
  }
  return std::to_string(word);
}

/// Memory of no type: a few words, more as a hash.
std::string bytes_of(const World& world, const unsigned char* at, std::size_t count) {
  return count > shown_bytes_max ? "#" + hash_of(at, count) : words_of(world, at, count);
}

}  // namespace

std::string hash_of(const unsigned char* bytes, std::size_t count) {
  std::uint64_t hash = 14695981039346656037ull;
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  char text[16];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(hash ^ hash >> 32));
  return text;
}

Outputs::Outputs(const Call& call, const Slot* slots, const World& world) : world_(world) {
  for (std::uint32_t p = 0; p < call.count; ++p) {
    if (call.parameters[p].role != Role::pointer) continue;
    const auto* at = slots[p].get<const unsigned char*>();
    const std::size_t bytes = world.bytes_at(at);
    if (bytes) places_.push_back({&call.parameters[p], at, {at, at + bytes}});
  }
}

std::string Outputs::changed(bool masked) const {
  std::string result;
  for (const Place& place : places_) {
    if (!std::memcmp(place.at, place.before.data(), place.before.size())) continue;
    result +=
        std::string(" ") + place.parameter->name + "=" + (masked || place.parameter->masked ? "*" : text_of(place));
  }
  return result;
}

std::string Outputs::text_of(const Place& place) const {
  const Parameter& p = *place.parameter;
  std::size_t end = place.before.size();
  while (place.at[end - 1] == place.before[end - 1]) --end;
  if (p.element == Role::text && p.element_bytes == 8) {
    const char* const text = reinterpret_cast<const char*>(word_of(place.at, 8));
    return text ? printable(text, 200) : "null";
  }
  if (p.element == Role::text) return printable(reinterpret_cast<const char*>(place.at), end);
  if (p.field_count) {
    std::string result;
    for (std::size_t at = 0; at < end; at += p.element_bytes) {
      std::string fields;
      for (std::uint32_t f = 0; f < p.field_count; ++f) {
        const Field& field = p.fields[f];
        const std::size_t offset = at + field.offset;
        if (offset + field.bytes > place.before.size()) continue;
        if (!std::memcmp(place.at + offset, place.before.data() + offset, field.bytes)) continue;
        if (!fields.empty()) fields += " ";
        fields += std::string(field.name) + "=" +
                  value_of(world_, field.role, field.is_signed, place.at + offset, field.bytes);
      }
      result += "{" + fields + "}";
    }
    return result;
  }
  if (p.element_bytes == 0 || p.element == Role::other || p.element_bytes > 16) {
    return bytes_of(world_, place.at, end);
  }
  std::string result;
  for (std::size_t at = 0; at < end; at += p.element_bytes) {
    if (!result.empty()) result += ",";
    result += value_of(world_, p.element, p.element_signed, place.at + at, p.element_bytes);
  }
  return result;
}

}  // namespace answers
