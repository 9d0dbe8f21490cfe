#pragma once
// The identity of clients: by their certificates, their keys, their tokens or, on this machine, their users.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "control.capnp.h"
#include "protocol/tls.h"
#include "protocol/site/tokens.h"
#include "settings.h"
#include "tenants.h"

namespace fargpu::server {

/// What a client has shown of itself.
struct ShownCredentials {
  bool encrypted = false;                                   ///< it came by TLS
  std::string certificate;                                  ///< common name of its certificate, which was checked
  std::optional<std::chrono::sys_seconds> certificate_end;  ///< when that certificate ends
  std::string key_identity;                                 ///< of the key that it knows
  std::string token;
  std::optional<std::uint32_t> user;  ///< of this machine, by a Unix socket
};

/// What a client is known by.
struct KnownBy {
  wire::Identity::Kind kind = wire::Identity::Kind::NOTHING;
  std::string name;
  std::optional<std::chrono::sys_seconds> expires;  ///< nothing: never
  /// "token anna", for the log.
  std::string text() const;
};

/// A tenant's name, or why there is none, in words for the client.
struct Judgement {
  std::string tenant;  ///< empty: nobody's
  std::string reason;
  bool administrator = false;  ///< whatever the tenant: root, or the user that fargpud runs as, at a Unix socket
  KnownBy known_by;
};

class Identity {
 public:
  /// Reads keys and certificates. Throws SettingsError.
  explicit Identity(const Settings& settings);

  /// For connections that speak TLS; null if the settings name neither a certificate nor keys.
  const TlsContext& context() const { return context_; }
  /// Tokens that stand for no tenant of these. Throws TokenError.
  std::vector<site::TokenEntry> strays(const Tenants& tenants) const;
  Judgement judge(const ShownCredentials& shown, const Tenants& tenants);
  /// Why no client of the network can be any of these tenants; empty if one can.
  std::string complaint(const Tenants& tenants) const;

 private:
  std::string ways_in() const;

  TlsContext context_;
  const std::string token_file_;
  const bool asks_certificates_, has_keys_;
  site::TokenBook tokens_;
};

}  // namespace fargpu::server
