#pragma once
// Messages to the person who runs the program: one line each, on stderr or in the file that FARGPU_LOG_FILE names (%p
// stands for the process id). FARGPU_LOG is a comma-separated list: a level (error, warn, info, debug), `stats` for a
// table of calls at exit, and `trace` for a line per call. The default is warn: silence unless something is wrong.

#include <fmt/format.h>

#include <exception>
#include <string>

namespace fargpu::client::log {

enum class Level { error, warn, info, debug };

bool enabled(Level level);
bool stats_wanted();
bool trace_wanted();
void write(Level level, const std::string& text);
/// Text that was asked for; always written.
void report(const std::string& text);
/// As write, but each `key` only once in the life of the process.
void write_once(Level level, const std::string& key, const std::string& text);
/// In the place of text for which there is no memory.
void write_little(Level level) noexcept;

// None of these throws: much of what they tell is of things that failed, where nobody could do anything about another
// failure.

template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    if (enabled(Level::error)) write(Level::error, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
    write_little(Level::error);
  }
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    if (enabled(Level::warn)) write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
    write_little(Level::warn);
  }
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    if (enabled(Level::info)) write(Level::info, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
    write_little(Level::info);
  }
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    if (enabled(Level::debug)) write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
    write_little(Level::debug);
  }
}

}  // namespace fargpu::client::log
