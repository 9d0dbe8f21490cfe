#include "text.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <utility>

namespace fargpu {
namespace {

/// A number and the word behind it, in small letters.
struct Amount {
  double number = 0;
  std::string unit;
};

// By hand: what C++ has for broken numbers needs the library of mathematics, which the client library is to do without.
std::optional<Amount> split(std::string_view text) {
  Amount amount;
  std::size_t place = 0, digits = 0;
  const auto digit = [&] { return place < text.size() && text[place] >= '0' && text[place] <= '9'; };
  for (; digit(); ++place, ++digits) amount.number = 10 * amount.number + (text[place] - '0');
  if (place < text.size() && text[place] == '.') {
    ++place;
    for (double part = 0.1; digit(); ++place, ++digits, part /= 10) amount.number += part * (text[place] - '0');
  }
  if (digits == 0) return std::nullopt;
  for (; place < text.size(); ++place)
    if (text[place] != ' ') amount.unit += static_cast<char>(std::tolower(static_cast<unsigned char>(text[place])));
  return amount;
}

constexpr double whole_max = 9e15;  // beyond this not every whole number is one of these numbers

bool whole(double number) {
  return number <= whole_max && static_cast<double>(static_cast<std::int64_t>(number)) == number;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  auto amount = split(text);
  if (!amount) return std::nullopt;
  std::string& unit = amount->unit;
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  else if (unit.ends_with("b")) unit.resize(unit.size() - 1);
  constexpr std::string_view units = "kmgt";
  int power = 0;
  if (unit.size() == 1 && units.find(unit[0]) != std::string_view::npos)
    power = 1 + static_cast<int>(units.find(unit[0]));
  else if (!unit.empty()) return std::nullopt;
  const double bytes = amount->number * static_cast<double>(std::uint64_t{1} << 10 * power);
  if (bytes > whole_max || (power == 0 && !whole(bytes))) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::optional<std::uint32_t> parse_percent(std::string_view text, std::uint32_t most) {
  const auto amount = split(text);
  if (!amount || (!amount->unit.empty() && amount->unit != "%")) return std::nullopt;
  if (amount->number > most || !whole(amount->number)) return std::nullopt;
  return static_cast<std::uint32_t>(amount->number);
}

std::optional<std::chrono::seconds> parse_duration(std::string_view text) {
  const auto amount = split(text);
  if (!amount) return std::nullopt;
  constexpr std::pair<std::string_view, int> units[] = {{"", 1},     {"s", 1},    {"m", 60},
                                                        {"min", 60}, {"h", 3600}, {"d", 86'400}};
  for (const auto& [unit, seconds] : units) {
    const double value = amount->number * seconds;
    if (amount->unit != unit || value > whole_max) continue;
    const auto below = static_cast<std::int64_t>(value);
    return std::chrono::seconds(whole(value) ? below : below + 1);
  }
  return std::nullopt;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(units)) {
    amount /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", amount, units[unit]);
}

std::string so_many(std::uint64_t count, std::string_view what) {
  return std::to_string(count).append(" ").append(what).append(count == 1 ? "" : "s");
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string result(text.substr(0, bytes_max));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto byte = static_cast<unsigned char>(result[i]);
    const auto next = static_cast<unsigned char>(i + 1 < result.size() ? result[i + 1] : 0);
    if (byte < 0x20 || byte == 0x7F) result[i] = '?';
    else if (byte == 0xC2 && next >= 0x80 && next < 0xA0)
      result[i] = result[i + 1] = '?';  // control characters of two bytes
  }
  return result;
}

}  // namespace fargpu
