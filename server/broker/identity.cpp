#include "identity.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "event_log.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

using Keys = std::map<std::string, std::vector<std::byte>>;

// Throws where a file of this setting cannot be read; the text names the user that must be able to.
void require_readable(const char* setting, const std::string& path) {
  if (path.empty() || ::access(path.c_str(), R_OK) == 0) return;
  const int error = errno;
  std::string what = fmt::format("{}: cannot read {} ({})", setting, path, std::strerror(error));
  if (error == EACCES) {
    const passwd* const user = ::getpwuid(::geteuid());
    what += fmt::format("; fargpud runs as {}, a user that must be able to read it and to enter its folders",
                        user ? std::string("user '") + user->pw_name + "'" : fmt::format("user {}", ::geteuid()));
  }
  throw SettingsError(what + (error == ENOENT && std::string_view(setting) == "token_file"
                                  ? fmt::format("; `fargpu token create --file {}` makes one", path)
                                  : ""));
}

// One line a key: NAME:KEY, the key in hexadecimal digits.
Keys read_keys(const std::string& path) {
  std::ifstream file(path);
  Keys keys;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::size_t colon = line.find(':');
    const auto key = colon == std::string::npos ? std::nullopt : parse_hex(line.substr(colon + 1));
    if (!key || !site::plain_name(line.substr(0, colon)) || key->size() < tls_key_bytes_min ||
        key->size() > tls_key_bytes_max) {
      throw SettingsError(
          fmt::format("psk_file: line {} of '{}' is not TENANT:KEY with a key of {} to {} hexadecimal digits", number,
                      path, 2 * tls_key_bytes_min, 2 * tls_key_bytes_max));
    }
    keys[line.substr(0, colon)] = *key;
  }
  return keys;
}

}  // namespace

std::string KnownBy::text() const {
  switch (kind) {
    case wire::Identity::Kind::TOKEN: return "token " + name;
    case wire::Identity::Kind::CERTIFICATE: return "certificate " + name;
    case wire::Identity::Kind::KEY: return "key " + name;
    case wire::Identity::Kind::USER: return "user " + name;
    default: return "nothing";
  }
}

Identity::Identity(const Settings& settings)
    : token_file_(settings.token_file),
      asks_certificates_(!settings.tls_client_ca.empty()),
      has_keys_(!settings.psk_file.empty()),
      tokens_(settings.token_file) {
  require_readable("token_file", settings.token_file);
  require_readable("psk_file", settings.psk_file);
  require_readable("tls_certificate", settings.tls_certificate);
  require_readable("tls_key", settings.tls_key);
  require_readable("tls_client_ca", settings.tls_client_ca);
  if (!settings.token_file.empty()) {
    try {
      site::read_tokens(settings.token_file);
    } catch (const site::TokenError& error) {
      throw SettingsError(fmt::format("token_file: {}", error.what()));
    }
  }
  if (settings.tls_certificate.empty() != settings.tls_key.empty())
    throw SettingsError("tls_certificate and tls_key belong together; one of them is not set");
  if (settings.tls_certificate.empty() && settings.psk_file.empty()) return;
  TlsService service;
  service.certificate_file = settings.tls_certificate;
  service.key_file = settings.tls_key;
  service.client_ca_file = settings.tls_client_ca;
  if (!settings.psk_file.empty()) {
    service.find_key =
        [keys = read_keys(settings.psk_file)](const std::string& identity) -> std::optional<std::vector<std::byte>> {
      const auto found = keys.find(identity);
      return found == keys.end() ? std::nullopt : std::optional(found->second);
    };
  }
  try {
    context_ = make_server_context(std::move(service));
  } catch (const TlsError& error) {
    throw SettingsError(error.what());
  }
}

std::vector<site::TokenEntry> Identity::strays(const Tenants& tenants) const {
  if (token_file_.empty()) return {};
  std::vector<site::TokenEntry> entries = site::read_tokens(token_file_);
  std::erase_if(entries, [&](const site::TokenEntry& entry) { return tenants.find(entry.tenant) != nullptr; });
  return entries;
}

Judgement Identity::judge(const ShownCredentials& shown, const Tenants& tenants) {
  using Kind = wire::Identity::Kind;
  const auto known = [&](const Tenant* tenant, const std::string& by, const std::string& name,
                         KnownBy known_by) -> Judgement {
    if (tenant) return {tenant->name, "", false, std::move(known_by)};
    return {"", fmt::format("{} says '{}', which is no tenant of this host; ask its operator", by, printable(name))};
  };
  if (!shown.token.empty()) {
    if (token_file_.empty())
      return {"",
              "this host takes no tokens (its settings have no token_file); unset FARGPU_TOKEN and "
              "FARGPU_TOKEN_FILE, or ask its operator"};
    try {
      const auto found = tokens_.find(shown.token);
      if (!found && !site::looks_like_token(shown.token))
        return {"",
                "what is shown as a token is none: FARGPU_TOKEN, or the first line of the file that "
                "FARGPU_TOKEN_FILE names, is what `fargpu token create` has printed"};
      if (!found) return {"", "the token is not known here, or was revoked; ask for another one (FARGPU_TOKEN_FILE)"};
      if (found->expired)
        return {"", fmt::format("the token '{}' has expired; ask for another one (FARGPU_TOKEN_FILE)", found->name)};
      return known(tenants.find(found->tenant), "the token", found->tenant, {Kind::TOKEN, found->name, found->expires});
    } catch (const site::TokenError& error) {
      EventLog::error("no tokens", {{"reason", error.what()}});
      return {"", "this host cannot read its file of tokens; ask its operator"};
    }
  }
  if (!shown.certificate.empty())
    return known(tenants.of_certificate(shown.certificate), "the certificate", shown.certificate,
                 {Kind::CERTIFICATE, shown.certificate, shown.certificate_end});
  if (!shown.key_identity.empty())
    return known(tenants.find(shown.key_identity), "the key", shown.key_identity,
                 {Kind::KEY, shown.key_identity, std::nullopt});
  if (shown.encrypted) {
    return {"", "this host asks for credentials; " + ways_in()};
  }
  if (shown.user) {
    // These users can read the keys and end the workers anyway.
    const bool keeper = *shown.user == 0 || *shown.user == ::geteuid();
    const Tenant* const tenant = tenants.of_user(*shown.user);
    if (tenant || keeper)
      return {tenant ? tenant->name : "", "", keeper, {Kind::USER, std::to_string(*shown.user), std::nullopt}};
    return {"", fmt::format("user {} of this machine is of no tenant here; ask the operator of this host to list it "
                            "under `users`, or set "
                            "FARGPU_TOKEN_FILE",
                            *shown.user)};
  }
  if (const Tenant* const everybody = tenants.find("default")) return {everybody->name, "", false, {}};
  return {"", "this host serves only clients with credentials, at its tls:// address; " + ways_in()};
}

// What a client can show here: other credentials would not be looked at.
std::string Identity::ways_in() const {
  std::string ways;
  const auto add = [&](bool taken, const char* way) {
    if (taken) ways += (ways.empty() ? "set " : ", or ") + std::string(way);
  };
  add(!token_file_.empty(), "FARGPU_TOKEN_FILE");
  add(asks_certificates_, "FARGPU_CERT and FARGPU_KEY");
  add(has_keys_, "FARGPU_PSK_FILE");
  return ways.empty()
             ? "and its settings name none that it takes (token_file, tls_client_ca, psk_file): ask its operator"
             : ways;
}

std::string Identity::complaint(const Tenants& tenants) const {
  const auto users = std::any_of(tenants.all().begin(), tenants.all().end(),
                                 [](const auto& entry) { return !entry.second.users.empty(); });
  if (!tenants.configured() || tenants.find("default") || users || !token_file_.empty() || asks_certificates_ ||
      has_keys_)
    return "";
  return "the settings have tenants, and none of token_file, tls_client_ca and psk_file: no client can say by the "
         "network whose it is";
}

}  // namespace fargpu::server
