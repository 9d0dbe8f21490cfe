// What those who look after GPU hosts need: tokens, and certificates of the site's own.

#include <fmt/format.h>

#include <iostream>

#include "commands.h"
#include "protocol/quantity.h"
#include "server/site/pki.h"
#include "server/site/tokens.h"

namespace fargpu::client::cli {
namespace {

std::chrono::seconds duration(const std::string& flag, const std::string& text) {
  const auto seconds = parse_duration(text);
  if (!seconds || seconds->count() == 0) throw std::runtime_error(flag + " is '" + text + "'; give a time, for example 24h or 90d");
  return *seconds;
}

std::chrono::days days(const std::string& flag, const std::string& text) {
  return std::chrono::ceil<std::chrono::days>(duration(flag, text));
}

}  // namespace

int create_token(const TokenOptions& options) {
  std::optional<std::chrono::seconds> life;
  if (options.ttl != "never") life = duration("--ttl", options.ttl);
  const std::string token = site::create_token(options.file, options.name, options.tenant, life);
  std::cout << token << "\n";
  std::cerr << "fargpu: this is shown once; keep it in a file that only its user can read, and name that in FARGPU_TOKEN_FILE\n"
            << "fargpu: it counts at hosts whose settings have [tenant." << options.tenant << "] and token_file = \"" << options.file << "\"\n";
  return 0;
}

int list_tokens(const TokenOptions& options) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const auto entries = site::read_tokens(options.file);
  std::cout << fmt::format("{:<24} {:<24} {}\n", "name", "tenant", "expires");
  for (const site::TokenEntry& entry : entries) {
    std::cout << fmt::format("{:<24} {:<24} {}{}\n", entry.name, entry.tenant, site::time_text(entry.expires),
                             entry.expires && *entry.expires <= now ? "  (over)" : "");
  }
  return 0;
}

int revoke_token(const TokenOptions& options) {
  if (site::revoke_token(options.file, options.name)) return 0;
  std::cerr << "fargpu: there is no token '" << options.name << "' in " << options.file << "; `fargpu token list` shows them\n";
  return exit_own_error;
}

int init_pki(const PkiOptions& options) {
  const site::PkiFiles files = site::make_authority(options.folder, days("--life", options.life));
  std::cout << files.certificate.string() << "   for everybody: FARGPU_CA, and tls_client_ca of fargpud\n"
            << files.key.string() << "   to be kept where nobody else can read it\n";
  return 0;
}

int issue_pki(const PkiOptions& options) {
  if (options.server.empty() == options.tenant.empty()) throw std::runtime_error("give either --server NAME with its --host names, or --tenant NAME");
  const std::chrono::days life = days("--life", options.life);
  if (!options.tenant.empty()) {
    const site::PkiFiles files = site::issue_client(options.folder, options.tenant, life);
    std::cout << files.certificate.string() << "   FARGPU_CERT\n" << files.key.string() << "   FARGPU_KEY\n";
    return 0;
  }
  const site::PkiFiles files = site::issue_server(options.folder, options.server, options.hosts, life);
  std::cout << files.certificate.string() << "   tls_certificate of fargpud\n"
            << files.key.string() << "   tls_key of fargpud\n"
            << site::fingerprint(files.certificate) << "   FARGPU_FINGERPRINT, for clients without FARGPU_CA\n";
  return 0;
}

}  // namespace fargpu::client::cli
