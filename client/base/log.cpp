#include "log.h"
#include "log_words.h"

#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "environment.h"
#include "protocol/nearest.h"
#include "protocol/text.h"
#include "uncancelled.h"

namespace fargpu::client::log {
namespace {

struct State {
  Level level = Level::warn;
  bool stats = false;
  bool trace = false;
  int descriptor = STDERR_FILENO;
  std::mutex mutex;
  std::set<std::string> said;
  std::string understood, unknown;  // of FARGPU_LOG

  State() {
    const char* wanted = environment_variable("FARGPU_LOG");
    std::stringstream words(wanted ? wanted : "");
    const auto add = [](std::string& list, const std::string& word) { list += (list.empty() ? "" : ",") + word; };
    for (std::string word; std::getline(words, word, ',');) {
      if (word == "error") level = Level::error;
      else if (word == "warn") level = Level::warn;
      else if (word == "info") level = Level::info;
      else if (word == "debug") level = Level::debug;
      else if (word == "stats") stats = true;
      else if (word == "trace") trace = true;
      else {
        if (!word.empty()) add(unknown, word);
        continue;
      }
      add(understood, word);
    }
    if (const char* path = environment_variable("FARGPU_LOG_FILE"); path && *path) {
      std::string name = path;
      for (std::size_t at; (at = name.find("%p")) != std::string::npos;)
        name.replace(at, 2, std::to_string(::getpid()));
      const int opened = ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      if (opened >= 0) {
        descriptor = opened;
      } else {
        say("fargpu: warning: FARGPU_LOG_FILE '" + name + "' cannot be written; logging to stderr\n");
      }
    }
    if (!unknown.empty()) say("fargpu: warning: " + complaint() + "\n");
  }

  std::string complaint() const {
    const std::vector<std::string> known{"error", "warn", "info", "debug", "stats", "trace"};
    return "FARGPU_LOG knows no '" + printable(unknown) + "'" + perhaps(unknown, known) +
           "; use error, warn, info, debug, stats, trace";
  }

  void say(const std::string& line) const {
    const Uncancelled uncancelled;
    [[maybe_unused]] const ssize_t written = ::write(descriptor, line.data(), line.size());
  }
};

State& state() {
  static State* const instance = new State;  // never destroyed: late calls may still log
  return *instance;
}

}  // namespace

bool enabled(Level level) { return level <= state().level; }
bool stats_wanted() { return state().stats; }
bool trace_wanted() { return state().trace; }
std::string complaint() { return state().unknown.empty() ? "" : state().complaint(); }
void drop_what_is_not_understood() {
  if (!state().unknown.empty()) ::setenv("FARGPU_LOG", state().understood.c_str(), 1);
}

void write(Level level, const std::string& text) {
  if (!enabled(level)) return;
  constexpr const char* names[] = {"error: ", "warning: ", "", "debug: "};
  state().say("fargpu: " + std::string(names[static_cast<int>(level)]) + text + "\n");
}

void write_little(Level level) noexcept {
  if (level > Level::warn) return;
  int descriptor = STDERR_FILENO;
  try {
    if (!enabled(level)) return;
    descriptor = state().descriptor;
  } catch (const std::exception&) {  // nor for where it goes
  }
  const Uncancelled uncancelled;
  constexpr std::string_view error = "fargpu: error: out of memory\n", warning = "fargpu: warning: out of memory\n";
  const std::string_view line = level == Level::error ? error : warning;
  [[maybe_unused]] const ssize_t written = ::write(descriptor, line.data(), line.size());
}

void report(const std::string& text) { state().say("fargpu: " + text + "\n"); }

void write_once(Level level, const std::string& key, const std::string& text) {
  {
    const std::lock_guard lock(state().mutex);
    if (!state().said.insert(key).second) return;
  }
  write(level, text);
}

}  // namespace fargpu::client::log
