#pragma once
// The broker's log: one event a line, with named values, as text for people or as JSON for machines.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace fargpu::server {

/// A named value of an event: in JSON a number where it is one, true or false, else a text.
struct Field {
  using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;
  template <class T>
  Field(const char* name, const T& value) : name(name), value(value_of(value)) {}
  std::string name;
  Value value;

 private:
  template <class T>
  static Value value_of(const T& value) {
    if constexpr (std::is_same_v<T, bool>) return value;
    else if constexpr (std::is_same_v<T, char>) return std::string(1, value);
    else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) return std::int64_t{value};
    else if constexpr (std::is_integral_v<T>) return std::uint64_t{value};
    else if constexpr (std::is_floating_point_v<T>) return double{value};
    else return fmt::format("{}", value);
  }
};

class EventLog {
 public:
  enum class Level { error, warn, info, debug };

  /// Writes to stderr. `level` and `format` as in the settings.
  static void start(const std::string& level, const std::string& format);
  static void write(Level level, const std::string& event, const std::vector<Field>& fields);

  static void error(const std::string& event, const std::vector<Field>& fields = {}) {
    write(Level::error, event, fields);
  }
  static void warn(const std::string& event, const std::vector<Field>& fields = {}) {
    write(Level::warn, event, fields);
  }
  static void info(const std::string& event, const std::vector<Field>& fields = {}) {
    write(Level::info, event, fields);
  }
  static void debug(const std::string& event, const std::vector<Field>& fields = {}) {
    write(Level::debug, event, fields);
  }
};

}  // namespace fargpu::server
