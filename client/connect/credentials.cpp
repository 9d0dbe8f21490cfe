#include "credentials.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "client/base/environment.h"
#include "dial_error.h"

namespace fargpu::client {
namespace {

std::string variable(const char* name) {
  const char* const value = environment_variable(name);
  return value ? value : "";
}

[[noreturn]] void complain(const std::string& text) { throw DialError::of_setting(text); }

// The first line of a file.
std::string first_line(const char* name, const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) {
    complain(std::string(name) + " names '" + path + "', which cannot be read" +
             (errno == 0 ? ": it is empty" : std::string(" (") + std::strerror(errno) + ")"));
  }
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  return line;
}

TlsKey read_key(const std::string& path) {
  const std::string line = first_line("FARGPU_PSK_FILE", path);
  const std::size_t colon = line.find(':');
  const auto key = colon == std::string::npos ? std::nullopt : parse_hex(line.substr(colon + 1));
  if (!key || colon == 0 || colon > tls_identity_bytes_max || key->size() < tls_key_bytes_min ||
      key->size() > tls_key_bytes_max)
    complain("FARGPU_PSK_FILE names '" + path +
             "', whose first line is not NAME:KEY with a key of 32 to 128 hexadecimal digits");
  return {line.substr(0, colon), *key};
}

}  // namespace

Credentials read_credentials() {
  Credentials credentials;
  TlsTrust& trust = credentials.trust;
  trust.ca_file = variable("FARGPU_CA");
  trust.fingerprint = variable("FARGPU_FINGERPRINT");
  trust.certificate_file = variable("FARGPU_CERT");
  trust.key_file = variable("FARGPU_KEY");
  if (trust.certificate_file.empty() != trust.key_file.empty())
    complain("FARGPU_CERT and FARGPU_KEY belong together: a certificate and its key; one of them is not set");
  if (const std::string path = variable("FARGPU_PSK_FILE"); !path.empty()) trust.key = read_key(path);
  if (const std::string path = variable("FARGPU_TOKEN_FILE"); !path.empty())
    credentials.token = first_line("FARGPU_TOKEN_FILE", path);
  else credentials.token = variable("FARGPU_TOKEN");
  return credentials;
}

}  // namespace fargpu::client
