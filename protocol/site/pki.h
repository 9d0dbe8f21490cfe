#pragma once
// A site's own certificates: an authority, servers, clients. For sites that have none of their own.

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace fargpu::site {

struct PkiError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A certificate and its key as files of PEM.
struct PkiFiles {
  std::filesystem::path certificate;
  std::filesystem::path key;
};

/// How long an authority is good, if nothing else is said: all of a site has to learn of another one.
constexpr std::chrono::days authority_life{3650};
/// Makes an authority: ca.crt, which everybody may have, and ca.key, which nobody else may.
PkiFiles make_authority(const std::filesystem::path& folder, std::chrono::days life);
/// NAME.crt and NAME.key of a server that is reached by these names and addresses.
PkiFiles issue_server(const std::filesystem::path& folder, const std::string& name,
                      const std::vector<std::string>& hosts, std::chrono::days life);
/// NAME.crt and NAME.key of a client, which the common name stands for.
PkiFiles issue_client(const std::filesystem::path& folder, const std::string& name, std::chrono::days life);
/// NAME.crt anew, for the same key, names and use: it takes the old one's place at once, or not at all.
PkiFiles renew(const std::filesystem::path& folder, const std::string& name, std::chrono::days life);
/// When each of the certificates in a file of PEM ends, in their order. Throws PkiError if the file holds none.
std::vector<std::chrono::sys_seconds> expiries(const std::filesystem::path& certificates);
/// When a certificate ends with its chain: with the first of them.
std::chrono::sys_seconds expiry(const std::filesystem::path& chain);
/// When a file of authorities has none left that is good: with the last of them.
std::chrono::sys_seconds authority_expiry(const std::filesystem::path& bundle);
/// SHA-256 of a certificate, in hexadecimal digits.
std::string fingerprint(const std::filesystem::path& certificate);

}  // namespace fargpu::site
