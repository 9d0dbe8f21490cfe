// What administrators of GPU hosts need: tokens, and certificates of the site's own.

#include <fmt/format.h>

#include <cctype>
#include <chrono>
#include <iostream>
#include <optional>

#include "commands.h"
#include "protocol/text.h"
#include "protocol/site/pki.h"
#include "protocol/site/tokens.h"

namespace fargpu::client::cli {
namespace {

// With its unit: a user that writes 90 for a credential means days, and a number alone would be seconds.
std::optional<std::chrono::seconds> duration(const std::string& text) {
  const auto seconds = parse_duration(text);
  const bool unit = !text.empty() && std::isalpha(static_cast<unsigned char>(text.back()));
  return unit && seconds && seconds->count() > 0 ? seconds : std::nullopt;
}

std::chrono::days life_of(const PkiOptions& options, std::chrono::days usual) {
  if (options.life.empty()) return usual;
  const auto seconds = duration(options.life);
  const auto days = std::chrono::floor<std::chrono::days>(seconds.value_or(std::chrono::seconds(0)));
  if (days.count() == 0 || days != *seconds)
    throw std::runtime_error("--life is '" + options.life + "'; give whole days, for example 90d");
  return days;
}

}  // namespace

int create_token(const TokenOptions& options) {
  std::optional<std::chrono::seconds> life;
  if (options.ttl != "never") {
    life = duration(options.ttl);
    if (!life)
      throw std::runtime_error("--ttl is '" + options.ttl +
                               "'; give a time with its unit, for example 24h or 90d, or never");
  }
  // Shown before it counts: a token that counts and that nobody knows could not be had again.
  site::create_token(options.file, options.name, options.tenant, life, [](const std::string& token) {
    if (!(std::cout << token << std::endl))
      throw std::runtime_error(
          "the token cannot be written where the output goes, and was not made; free space there, "
          "then try again");
  });
  for (const site::TokenEntry& entry : site::read_tokens(options.file))
    if (entry.name == options.name)
      std::cerr << "fargpu: token '" << entry.name << "' "
                << (entry.expires ? "is good until " + site::time_text(entry.expires) : "never expires") << "\n";
  std::cerr << "fargpu: this is shown once; keep it in a file that only its user can read, and name that in "
               "FARGPU_TOKEN_FILE\n"
            << "fargpu: it counts at hosts with token_file = \"" << options.file << "\""
            << (options.tenant == "default" ? ", whose settings have no tenants or [tenant.default]"
                                            : " and [tenant." + options.tenant + "] in their settings")
            << "\n";
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
  if (site::revoke_token(options.file, options.name)) {
    std::cout << "token '" << options.name << "' is worth nothing from now on; sessions that run with it go on\n";
    return 0;
  }
  std::cerr << "fargpu: there is no token '" << options.name << "' in " << options.file
            << "; `fargpu token list` shows them\n";
  return exit_own_error;
}

int init_pki(const PkiOptions& options) {
  const site::PkiFiles files = site::make_authority(options.folder, life_of(options, site::authority_life));
  std::cout << files.certificate.string() << "   for everybody: FARGPU_CA, and tls_client_ca of fargpud\n"
            << files.key.string() << "   to be kept where nobody else can read it\n";
  return 0;
}

namespace {

// An authority's end is told to nobody else: clients alone know it.
void warn_of_authority(const PkiOptions& options, const site::PkiFiles& files) {
  const auto end = site::expiry(std::filesystem::path(options.folder) / "ca.crt");
  if (end < site::expiry(files.certificate))
    std::cerr << "fargpu: the authority ends first, on " << site::time_text(end)
              << ": from then on nobody trusts this certificate; make another authority (`fargpu pki init` in another "
                 "folder) before that\n";
}

}  // namespace

int renew_pki(const PkiOptions& options) {
  const site::PkiFiles files = site::renew(options.folder, options.name, life_of(options, std::chrono::days(365)));
  warn_of_authority(options, files);
  std::cout << files.certificate.string() << "   is good until " << site::time_text(site::expiry(files.certificate))
            << "; the key is the same. Copy it to where the old one is used; fargpud reads its own again on SIGHUP\n"
            << site::fingerprint(files.certificate) << "   FARGPU_FINGERPRINT, for clients without FARGPU_CA\n";
  return 0;
}

int issue_pki(const PkiOptions& options) {
  if (options.server.empty() == options.tenant.empty())
    throw std::runtime_error("give either --server NAME with its --host names, or --tenant NAME");
  const std::chrono::days life = life_of(options, std::chrono::days(365));
  if (!options.tenant.empty()) {
    const site::PkiFiles files = site::issue_client(options.folder, options.tenant, life);
    warn_of_authority(options, files);
    std::cout << files.certificate.string() << "   FARGPU_CERT\n" << files.key.string() << "   FARGPU_KEY\n";
    return 0;
  }
  const site::PkiFiles files = site::issue_server(options.folder, options.server, options.hosts, life);
  warn_of_authority(options, files);
  std::cout << files.certificate.string() << "   tls_certificate of fargpud\n"
            << files.key.string() << "   tls_key of fargpud\n"
            << site::fingerprint(files.certificate) << "   FARGPU_FINGERPRINT, for clients without FARGPU_CA\n";
  return 0;
}

}  // namespace fargpu::client::cli
