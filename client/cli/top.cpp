// `fargpu top`: what devices do, and for whom.

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "commands.h"
#include "keys.h"
#include "pool_facts.h"
#include "protocol/text.h"
#include "statuses.h"
#include "waiting.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// What a session had used at some time.
struct Reading {
  Clock::time_point at;
  std::uint64_t busy_ns = 0;
  std::uint64_t waited_ns = 0;
};
using Readings = std::map<std::pair<std::string, std::uint64_t>, Reading>;

double part(std::uint64_t now, std::uint64_t before, Clock::duration passed) {
  const double all = std::chrono::duration<double, std::nano>(passed).count();
  return all <= 0 || now < before ? 0 : static_cast<double>(now - before) / all;
}

Json describe(const std::string& name, wire::Status::Reader status, const Filter& filter, Readings& readings) {
  const auto now = Clock::now();
  Json result{{"host", name},
              {"name", printable(status.getHostName().cStr())},
              {"policy", printable(status.getPolicy().cStr())}};
  result["devices"] = Json::array();
  for (const auto device : status.getDevices()) {
    if (!filter.shows_model(printable(device.getName().cStr()))) continue;
    Json utilisation = nullptr;
    for (const auto reading : device.getReadings())
      if (reading.getKind() == wire::Reading::Kind::GPU_UTILISATION) utilisation = reading.getValue();
    result["devices"].push_back({{"name", printable(device.getName().cStr())},
                                 {"memory_bytes", device.getMemoryBytes()},
                                 {"used_bytes", device.getUsedBytes()},
                                 {"utilisation_percent", utilisation}});
  }
  std::map<std::uint64_t, wire::LeaseStatus::Reader> leases;
  for (const auto lease : status.getLeases()) leases.emplace(lease.getId(), lease);
  result["sessions"] = Json::array();
  for (const auto session : status.getSessions()) {
    const auto busy = session.getBusyNs();
    const std::uint64_t busy_ns = std::accumulate(busy.begin(), busy.end(), std::uint64_t{0});
    const Reading before = std::exchange(readings[{name, session.getId()}], {now, busy_ns, session.getWaitedNs()});
    const bool known = before.at != Clock::time_point();
    if (!filter.shows_tenant(printable(session.getTenant().cStr()))) continue;
    const auto lease = leases.find(session.getLease());
    result["sessions"].push_back(
        {{"id", session.getId()},
         {"program", printable(session.getProgram().cStr())},
         {"tenant", printable(session.getTenant().cStr())},
         {"lease", session.getLease()},
         {"memory_bytes",
          std::accumulate(session.getMemoryBytes().begin(), session.getMemoryBytes().end(), std::uint64_t{0})},
         {"use_ratio", known ? Json(part(busy_ns, before.busy_ns, now - before.at)) : Json()},
         {"throttled_ratio", known ? Json(part(session.getWaitedNs(), before.waited_ns, now - before.at)) : Json()},
         {"share_percent", lease == leases.end() ? 0 : lease->second.getSharePercent()},
         {"known_bytes", session.getKnownBytes()},
         {"weight", lease == leases.end() ? 0 : lease->second.getWeight()},
         {"resuming", session.getResumingSeconds() != 0},
         {"residency", residency_text(session)},
         {"has_turn", lease != leases.end() && lease->second.getHasTurn()}});
  }
  result["waiting"] = describe_waiting(status.getWaiting(), filter);
  if (Json pool = describe_pool(status, filter); !pool.is_null()) result["pool"] = std::move(pool);
  return result;
}

std::string percent(const Json& ratio) {
  return ratio.is_null() ? "-" : fmt::format("{:.0f}%", 100 * ratio.get<double>());
}
struct Column {
  const char* title;
  std::size_t width;
  bool left;
  int spare;  // which of them goes first where there is no room: the highest; 0 stays
  std::string (*text)(const Json& session);
};

constexpr Column columns[] = {
    {"session", 9, false, 0, [](const Json& s) { return std::to_string(s["id"].get<std::uint64_t>()); }},
    {"program", 20, true, 0, [](const Json& s) { return s["program"].get<std::string>(); }},
    {"tenant", 16, true, 5, [](const Json& s) { return s["tenant"].get<std::string>(); }},
    {"memory", 10, false, 1, [](const Json& s) { return memory_text(s["memory_bytes"].get<std::uint64_t>()); }},
    {"use", 6, false, 0, [](const Json& s) { return percent(s["use_ratio"]); }},
    {"share", 6, false, 0, [](const Json& s) { return fmt::format("{}%", s["share_percent"].get<unsigned>()); }},
    {"weight", 7, false, 4, [](const Json& s) { return std::to_string(s["weight"].get<unsigned>()); }},
    {"throttled", 9, false, 2, [](const Json& s) { return percent(s["throttled_ratio"]); }},
    {"not sent", 10, false, 6, [](const Json& s) { return memory_text(s["known_bytes"].get<std::uint64_t>()); }},
    {"turn", 9, true, 3, [](const Json& s) {
       if (s["resuming"].get<bool>()) return std::string("resuming");
       if (const auto where = s["residency"].get<std::string>(); where != "running")
         return where.substr(0, where.find(' '));
       return std::string(s["has_turn"].get<bool>() ? "yes" : "waits");
     }}};

// What fits into so many columns of the terminal.
std::string sessions_text(const Json& sessions, std::size_t width) {
  std::vector<const Column*> shown;
  std::size_t taken = 0;
  for (const Column& column : columns) {
    shown.push_back(&column);
    taken += column.width + 1;
  }
  while (taken > width + 1) {
    const auto least = std::max_element(shown.begin(), shown.end(),
                                        [](const Column* a, const Column* b) { return a->spare < b->spare; });
    if ((*least)->spare == 0) break;
    taken -= (*least)->width + 1;
    shown.erase(least);
  }
  std::string text;
  const auto line = [&](auto&& cell) {
    std::string row;
    for (const Column* const column : shown) {
      // Precision counts characters as people see them.
      if (column->left)
        row += fmt::format("{}{:<{}.{}}", row.empty() ? "" : " ", cell(*column), column->width, column->width);
      else row += fmt::format("{}{:>{}}", row.empty() ? "" : " ", cell(*column), column->width);
    }
    text += row + "\n";
  };
  line([](const Column& column) { return std::string(column.title); });
  for (const Json& session : sessions) line([&](const Column& column) { return column.text(session); });
  return text;
}

std::string text_of(const Json& host, std::size_t width) {
  if (host.contains("error")) return host["host"].get<std::string>() + "  ! " + host["error"].get<std::string>() + "\n";
  std::string text = fmt::format("{}  policy {}\n", host["host"].get<std::string>(), host["policy"].get<std::string>());
  unsigned number = 0;
  for (const Json& device : host["devices"]) {
    const Json& utilisation = device["utilisation_percent"];
    text += fmt::format("  GPU {}  {:<28} {:>10} of {:>10}  {:>5}\n", number++, device["name"].get<std::string>(),
                        memory_text(device["used_bytes"].get<std::uint64_t>()),
                        memory_text(device["memory_bytes"].get<std::uint64_t>()),
                        utilisation.is_null() ? "-" : fmt::format("{}%", utilisation.get<int>()));
  }
  text += waiting_text(host["waiting"], Wishes::in_reasons);
  text += sessions_text(host["sessions"], width);
  return text;
}

Json* of_host(std::vector<Json>& hosts, const std::string& name) {
  const auto found = std::ranges::find_if(hosts, [&](const Json& host) { return host["host"] == name; });
  return found == hosts.end() ? nullptr : &*found;
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                           : std::numeric_limits<unsigned short>::max();
}

// As much of a text, and of what is below it, as the terminal shows without scrolling, so that the next look begins
// where this one did.
std::string fitted(const std::string& text, const std::string& below) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 3 || size.ws_col == 0) return text + below;
  std::istringstream all(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(all, line);) lines.push_back(line.substr(0, size.ws_col));
  const std::size_t room = size.ws_row - (below.empty() ? 1u : 2u);  // the cursor is at the end
  if (lines.size() > room) {
    const auto hidden = lines.size() - room + 1;
    lines.resize(room);
    lines.back() = fmt::format("  and {} more lines", hidden).substr(0, size.ws_col);
  }
  std::string result;
  for (const std::string& line : lines) result += line + "\n";
  return result + below;
}

}  // namespace

int top(const TopOptions& options) {
  const auto hosts = pool_hosts(options.pool);
  const bool json = options.output == "json";
  const bool live = ::isatty(STDOUT_FILENO) && !options.once && !json;
  const auto pause = std::chrono::duration<double>(options.seconds);
  Readings readings;
  const auto look = [&](const std::vector<PoolHost>& at) {
    return statuses(at, [&](const ControlConnection& broker, wire::Status::Reader status) {
      return describe(broker.name(), status, options.filter, readings);
    });
  };
  std::optional<Keys> keys;
  if (live) keys.emplace();
  // Use is what changed since the look before.
  auto found = look(hosts);
  while (true) {
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(pause);
    while (Clock::now() < until) {
      if (!keys) std::this_thread::sleep_until(until);
      else if (keys->next(until - Clock::now()) == 'q') return 0;
    }
    // A host that is named twice was found once. A single look does not wait twice for one that does not answer.
    std::vector<PoolHost> at;
    std::set<std::string> names;
    for (const PoolHost& host : hosts)
      if (const auto* const before = of_host(found, address_text(host)); before && (live || !before->contains("error")))
        if (names.insert(address_text(host)).second) at.push_back(host);
    auto next = look(at);
    for (const std::string& name : names) {
      const Json* const again = of_host(next, name);
      if (again) *of_host(found, name) = *again;
      else std::erase_if(found, [&](const Json& one) { return one["host"] == name; });  // another address of one
    }
    const auto shown = only_shown(found, options.filter);
    std::string text;
    const std::size_t width = terminal_width();
    if (json) text = Json(shown).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    else {
      for (const Json& host : shown)
        if (host.contains("error") || shows(options.filter, host)) text += text_of(host, width);
      for (const Json* const pool : pools_of(shown))
        text += pool_sums(*pool, options.filter) + waiting_text((*pool)["waiting"], Wishes::told);
      text += nothing_shown(shown, options.filter);
    }
    std::cout << (live ? "\033[H\033[2J" + fitted(text, *keys ? "q ends this\n" : "") : text) << std::flush;
    if (!live) return exit_code(found);
  }
}

}  // namespace fargpu::client::cli
