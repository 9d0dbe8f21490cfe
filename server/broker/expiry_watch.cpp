#include "expiry_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "event_log.h"
#include "protocol/site/pki.h"
#include "protocol/site/tokens.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

struct Named {
  const char* setting;
  const std::string Settings::*file;
  std::chrono::sys_seconds (*expiry)(const std::filesystem::path&);
  const char* renewal;
  bool needed;  ///< fargpud is of no use without it
};
constexpr Named named[] = {
    {"tls_certificate", &Settings::tls_certificate, site::expiry,
     "renew it (`fargpu pki renew`), and send fargpud SIGHUP", true},
    {"tls_client_ca", &Settings::tls_client_ca, site::authority_expiry,
     "make another authority with `fargpu pki init`, and certificates by it", true},
    {"pool_certificate", &Settings::pool_certificate, site::expiry,
     "give this host another one, and restart fargpud: its sessions go on", false},
};

ExpiryWatch::Time now_in_seconds() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

const Named& by_setting(std::string_view setting) {
  return *std::find_if(std::begin(named), std::end(named), [&](const Named& one) { return setting == one.setting; });
}

std::string days_text(std::chrono::seconds left) {
  return so_many(static_cast<std::uint64_t>(left / std::chrono::days(1)), "day");
}

}  // namespace

std::vector<ExpiryWatch::Certificate> ExpiryWatch::certificates() const {
  std::vector<Certificate> found;
  for (const Named& one : named) {
    const std::string& file = settings_.*one.file;
    if (file.empty()) continue;
    try {
      found.push_back({one.setting, file, one.expiry(file)});
    } catch (const site::PkiError& error) {  // a reload that fails says what is wrong with it
      EventLog::debug("certificate not read", {{"file", file}, {"reason", error.what()}});
    }
  }
  return found;
}

std::vector<site::TokenEntry> ExpiryWatch::tokens(std::size_t most) const {
  std::vector<site::TokenEntry> found;
  if (settings_.token_file.empty()) return found;
  try {
    found = site::read_tokens(settings_.token_file);
  } catch (const site::TokenError& error) {
    EventLog::debug("tokens not read", {{"reason", error.what()}});
  }
  const Time now = now_in_seconds();
  std::erase_if(found, [&](const site::TokenEntry& token) { return !token.expires || *token.expires <= now; });
  std::sort(found.begin(), found.end(),
            [](const auto& one, const auto& other) { return *one.expires < *other.expires; });
  if (found.size() > most) found.resize(most);
  return found;
}

void ExpiryWatch::require_valid(const Settings& settings, Time now) {
  for (const Named& one : named) {
    const std::string& file = settings.*one.file;
    if (file.empty() || !one.needed) continue;
    try {
      const Time expires = one.expiry(file);
      if (expires <= now)
        throw SettingsError(
            fmt::format("{}: {} has expired on {}; {}", one.setting, file, site::time_text(expires), one.renewal));
    } catch (const site::PkiError& error) {
      throw SettingsError(fmt::format("{}: {}", one.setting, error.what()));
    }
  }
}

void ExpiryWatch::look() {
  const Time now = now_in_seconds();
  for (const Certificate& one : certificates()) {
    if (one.expires > now + notice) continue;
    if (one.expires <= now)
      EventLog::error(
          "certificate has expired",
          {{"setting", one.setting},
           {"file", one.file},
           {"expired", site::time_text(one.expires)},
           {"meaning", std::string(by_setting(one.setting).needed ? "clients refuse it; " : "etcd refuses it; ") +
                           by_setting(one.setting).renewal}});
    else
      EventLog::warn("certificate expires", {{"setting", one.setting},
                                             {"file", one.file},
                                             {"expires", site::time_text(one.expires)},
                                             {"left", days_text(one.expires - now)},
                                             {"meaning", by_setting(one.setting).renewal}});
  }
  if (settings_.token_file.empty()) return;
  try {
    for (const site::TokenEntry& token : site::read_tokens(settings_.token_file))
      if (token.expires && *token.expires > now && *token.expires <= now + notice)
        EventLog::warn("token expires",
                       {{"token", token.name},
                        {"tenant", token.tenant},
                        {"expires", site::time_text(token.expires)},
                        {"left", days_text(*token.expires - now)},
                        {"meaning", "its clients are refused then; `fargpu token create` makes another one"}});
  } catch (const site::TokenError& error) {
    EventLog::error("no tokens", {{"reason", error.what()}});
  }
}

void ExpiryWatch::start() {
  look();
  wait();
}

void ExpiryWatch::wait() {
  timer_.expires_after(std::chrono::days(1));
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) start();
  });
}

}  // namespace fargpu::server
