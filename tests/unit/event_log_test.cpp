// One event a line, whatever the values hold.

#include "server/broker/event_log.h"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using fargpu::server::EventLog;
using fargpu::server::Field;

namespace {

// What is written to stderr while `body` runs.
template <class Body>
std::string written(Body&& body) {
  const int file = ::memfd_create("stderr", MFD_CLOEXEC), before = ::dup(STDERR_FILENO);
  ::dup2(file, STDERR_FILENO);
  body();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text(static_cast<std::size_t>(::lseek(file, 0, SEEK_END)), '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  ::close(file);
  CHECK(got == static_cast<ssize_t>(text.size()));
  return text;
}

// A text line without its time, which is checked to be one.
std::string line(const std::string& event, const std::vector<Field>& fields, const std::string& level = "info") {
  const std::string text = written([&] {
    EventLog::start(level, "text");
    EventLog::info(event, fields);
  });
  if (text.empty()) return text;
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.back() == '\n');
  CHECK(text[10] == 'T');
  return text.substr(text.find(' ') + 1, text.size() - text.find(' ') - 2);
}

nlohmann::json object(const std::string& event, const std::vector<Field>& fields) {
  const std::string text = written([&] {
    EventLog::start("info", "json");
    EventLog::info(event, fields);
  });
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  return nlohmann::json::parse(text);
}

}  // namespace

TEST_CASE("plain values stand as they are") {
  CHECK(line("listening", {{"address", "127.0.0.1"}, {"port", 8470}}) == "info listening address=127.0.0.1 port=8470");
  CHECK(line("stopped", {}) == "info stopped");
}

TEST_CASE("values that could be taken for something else are quoted") {
  CHECK(line("e", {{"a", ""}}) == R"(info e a="")");
  CHECK(line("e", {{"a", "two words"}, {"b", 1}}) == R"(info e a="two words" b=1)");
  CHECK(line("e", {{"a", "x=1"}}) == R"(info e a="x=1")");
  CHECK(line("e", {{"a", R"(say "it")"}}) == R"(info e a="say \"it\"")");
  CHECK(line("e", {{"a", "first\nsecond event=forged"}}) == R"(info e a="first\nsecond event=forged")");
}

TEST_CASE("braces and percent signs mean nothing") { CHECK(line("e", {{"a", "{}%v%s{0}"}}) == "info e a={}%v%s{0}"); }

TEST_CASE("JSON lines hold the same, numbers as numbers") {
  const auto made = object("began", {{"program", "a \"b\"\n\x1b[31m"}, {"session", 7}});
  CHECK(made["event"] == "began");
  CHECK(made["level"] == "info");
  CHECK(made["program"] == "a \"b\"\n\x1b[31m");
  CHECK(made["session"].dump() == "7");
  CHECK(made["time"].get<double>() > 1.7e9);
}

TEST_CASE("of values in JSON lines the types are kept") {
  const auto made = object("e", {{"large", ~std::uint64_t{0}},
                                 {"negative", std::int64_t{-5}},
                                 {"small", static_cast<std::uint8_t>(65)},
                                 {"half", 0.5},
                                 {"warm", true},
                                 {"letter", 'x'},
                                 {"digits", "12"},
                                 {"text", std::string("34")}});
  CHECK(made["large"].dump() == "18446744073709551615");
  CHECK(made["negative"].dump() == "-5");
  CHECK(made["small"].dump() == "65");
  CHECK(made["half"].dump() == "0.5");
  CHECK(made["warm"].dump() == "true");
  CHECK(made["letter"].dump() == "\"x\"");
  CHECK(made["digits"].dump() == "\"12\"");
  CHECK(made["text"].dump() == "\"34\"");
  CHECK(line("e", {{"warm", true}, {"half", 0.5}, {"small", static_cast<std::uint8_t>(65)}}) ==
        "info e warm=true half=0.5 small=65");
}

TEST_CASE("bytes that are no UTF-8 do not break a JSON line") {
  const auto made = object("e", {{"a", "x\xff\xfey"}});
  CHECK_THAT(made["a"].get<std::string>(), Catch::StartsWith("x") && Catch::EndsWith("y"));
}

TEST_CASE("only what is wanted is written") {
  CHECK(line("e", {}, "error").empty());
  CHECK(line("e", {}, "warn").empty());
  CHECK(line("e", {}, "debug") == "info e");
  const auto all = [](const std::string& level) {
    return written([&] {
      EventLog::start(level, "text");
      EventLog::error("1");
      EventLog::warn("2");
      EventLog::info("3");
      EventLog::debug("4");
    });
  };
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  CHECK(lines(all("error")) == 1);
  CHECK(lines(all("warn")) == 2);
  CHECK(lines(all("info")) == 3);
  CHECK(lines(all("debug")) == 4);
}
