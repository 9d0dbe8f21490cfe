#pragma once
// The broker's log: one event a line, with named values, as text for people or as JSON for machines.

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace fargpu::server {

/// A named value of an event.
struct Field {
  template <class T>
  Field(const char* name, const T& value) : name(name), value(fmt::format("{}", value)) {}
  std::string name;
  std::string value;
};

class EventLog {
 public:
  enum class Level { error, warn, info, debug };

  /// Writes to stderr. `level` and `format` as in the settings.
  static void start(const std::string& level, const std::string& format);
  static void write(Level level, const std::string& event, const std::vector<Field>& fields);

  static void error(const std::string& event, const std::vector<Field>& fields = {}) { write(Level::error, event, fields); }
  static void warn(const std::string& event, const std::vector<Field>& fields = {}) { write(Level::warn, event, fields); }
  static void info(const std::string& event, const std::vector<Field>& fields = {}) { write(Level::info, event, fields); }
  static void debug(const std::string& event, const std::vector<Field>& fields = {}) { write(Level::debug, event, fields); }
};

}  // namespace fargpu::server
