#pragma once
// How this process knows that a GPU host is the right one, and how it shows its own identity.

#include <string>

#include "protocol/tls.h"

namespace fargpu::client {

struct Credentials {
  /// FARGPU_CA, FARGPU_FINGERPRINT, FARGPU_CERT and FARGPU_KEY, FARGPU_PSK_FILE.
  TlsTrust trust;
  /// FARGPU_TOKEN_FILE or FARGPU_TOKEN; empty for none.
  std::string token;

  /// Whether anything is there by which a host could be told from another that pretends to be it.
  bool can_tell_hosts() const { return !trust.ca_file.empty() || !trust.fingerprint.empty() || trust.key; }
};

/// Reads the variables, and the files that they name. Throws DialError, naming the variable.
Credentials read_credentials();

}  // namespace fargpu::client
