#include "event_log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

namespace fargpu::server {
namespace {

bool json = false;

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = spdlog::stderr_logger_mt("fargpud");
  return instance;
}

std::string text_of(const Field::Value& value) {
  return std::visit([](const auto& one) { return fmt::format("{}", one); }, value);
}

// Values with spaces or quotes are quoted, so that a line can be taken apart again.
std::string quoted(const std::string& value) {
  if (!value.empty() && value.find_first_of(" \"=\n") == std::string::npos) return value;
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void EventLog::start(const std::string& level, const std::string& format) {
  json = format == "json";
  logger()->set_level(level == "error"   ? spdlog::level::err
                      : level == "warn"  ? spdlog::level::warn
                      : level == "debug" ? spdlog::level::debug
                                         : spdlog::level::info);
  logger()->set_pattern(json ? "%v" : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger()->flush_on(spdlog::level::debug);
}

void EventLog::write(Level level, const std::string& event, const std::vector<Field>& fields) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::err, spdlog::level::warn, spdlog::level::info,
                                                  spdlog::level::debug};
  constexpr const char* names[] = {"error", "warn", "info", "debug"};
  const auto index = static_cast<std::size_t>(level);
  std::string line;
  if (json) {
    nlohmann::ordered_json object;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    object["time"] = static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000;
    object["level"] = names[index];
    object["event"] = event;
    for (const Field& field : fields) std::visit([&](const auto& value) { object[field.name] = value; }, field.value);
    line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else {
    line = event;
    for (const Field& field : fields) line += " " + field.name + "=" + quoted(text_of(field.value));
  }
  logger()->log(levels[index], "{}", line);
}

}  // namespace fargpu::server
