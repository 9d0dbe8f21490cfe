#pragma once
// TLS 1.3: contexts, and what one end learns of the other. OpenSSL stays behind this file and channel_tls.h.

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace fargpu {

/// A handshake failed, or cannot begin; the text says why and what would help.
struct TlsError : std::runtime_error {
  enum class Cause {
    not_tls,  ///< the other end sends something else
    closed,   ///< it closed the connection without a word
    other,    ///< as the text says
  };
  explicit TlsError(const std::string& text, Cause cause = Cause::other) : std::runtime_error(text), cause(cause) {}
  Cause cause;
};

/// The handshake failed for a reason that is known, to which nothing need be added.
struct TlsKnownError : TlsError {
  using TlsError::TlsError;
};

struct TlsContextFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using TlsContext = std::shared_ptr<SSL_CTX>;

/// A key that both ends know already, and what it is called between them.
struct TlsKey {
  std::string identity;  ///< bytes; sent in the clear
  std::vector<std::byte> key;
};
inline constexpr std::size_t tls_key_bytes_min = 16;
inline constexpr std::size_t tls_key_bytes_max = 64;
inline constexpr std::size_t tls_identity_bytes_max = 128;

/// How a client knows that a server is the right one, and shows its own identity.
struct TlsTrust {
  std::string ca_file;           ///< of the authority that must have signed the server's certificate
  std::string fingerprint;       ///< or: SHA-256 of the certificate itself, in hexadecimal digits
  std::string certificate_file;  ///< of this client; empty for none
  std::string key_file;
  std::optional<TlsKey> key;  ///< or: both ends show that they know it
};
/// Throws TlsError.
TlsContext make_client_context(const TlsTrust& trust);

/// What a server shows, and how it knows its clients.
struct TlsService {
  std::string certificate_file;  ///< its chain; empty where keys alone are used
  std::string key_file;
  /// Of the authority whose clients it believes; empty: certificates of clients are not asked for.
  std::string client_ca_file;
  /// The key of an identity; nothing if there is none. Called during handshakes.
  std::function<std::optional<std::vector<std::byte>>(const std::string& identity)> find_key;
};
/// Throws TlsError.
TlsContext make_server_context(TlsService service);

/// Names the client of a finished handshake: the common name of its certificate, or the identity of its key. Empty if
/// it did not say.
std::string tls_common_name(SSL* connection);
std::string tls_key_identity(SSL* connection);
/// When the certificate of that client ends; nothing if it has shown none.
std::optional<std::chrono::sys_seconds> tls_certificate_end(SSL* connection);

/// What OpenSSL complained of last, in words; and forgets it.
std::string tls_complaint();

/// Hexadecimal digits, with or without colons between; nothing if it is none.
std::optional<std::vector<std::byte>> parse_hex(const std::string& text);

}  // namespace fargpu
