#include "tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509err.h>
#include <openssl/x509_vfy.h>

#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

namespace fargpu {
namespace {

// All of them with SHA-256, which pre-shared keys are bound to here.
constexpr const char* ciphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char key_cipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

/// What belongs to a context and lives as long.
struct Attached {
  std::optional<TlsKey> key;                // a client's
  std::vector<std::byte> fingerprint;       // that a client expects
  decltype(TlsService::find_key) find_key;  // a server's
};

int attached_index() {
  static const int index = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* data, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Attached*>(data); });
  return index;
}

Attached& attached(SSL* connection) {
  return *static_cast<Attached*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), attached_index()));
}

// The library lives in strangers' processes: nothing is read from the system's configuration, and nothing runs at exit.
void start_openssl() {
  static std::once_flag once;
  std::call_once(once, [] { OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr); });
}

TlsContext make_context(const SSL_METHOD* method) {
  start_openssl();
  TlsContext context(SSL_CTX_new(method), TlsContextFree());
  if (!context) throw TlsError("OpenSSL gives no context: " + tls_complaint());
  SSL_CTX* const c = context.get();
  SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION);
  if (SSL_CTX_set_ciphersuites(c, ciphers) != 1)
    throw TlsError("OpenSSL lacks the ciphers of TLS 1.3: " + tls_complaint());
  // No tickets: a client shows its identity with each connection.
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(c, 0);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_read_buffer_len(c, 64u << 10);
  SSL_CTX_set_read_ahead(c, 1);
  SSL_CTX_set_ex_data(c, attached_index(), new Attached);
  return context;
}

Attached& attached(const TlsContext& context) {
  return *static_cast<Attached*>(SSL_CTX_get_ex_data(context.get(), attached_index()));
}

void use_certificate(SSL_CTX* context, const std::string& certificate, const std::string& key) {
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
    throw TlsError("certificate '" + certificate + "' cannot be used: " + tls_complaint());
  const std::string another = "key '" + key + "' is not that of certificate '" + certificate + "'";
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    const unsigned long error = ERR_peek_last_error();
    if (ERR_GET_LIB(error) == ERR_LIB_X509 && ERR_GET_REASON(error) == X509_R_KEY_VALUES_MISMATCH)
      throw TlsError(another);
    throw TlsError("key '" + key + "' cannot be used: " + tls_complaint());
  }
  if (SSL_CTX_check_private_key(context) != 1) throw TlsError(another);
}

// A key as OpenSSL wants it: as a session that might have been.
SSL_SESSION* session_of(SSL* connection, const std::vector<std::byte>& key, const std::string& identity) {
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(connection, key_cipher);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (cipher && session &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_ticket_appdata(session, identity.data(), identity.size()) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int use_key(SSL* connection, const EVP_MD* digest, const unsigned char** identity, std::size_t* identity_bytes,
            SSL_SESSION** session) {
  *session = nullptr;
  const std::optional<TlsKey>& key = attached(connection).key;
  if (!key || (digest && EVP_MD_get_type(digest) != NID_sha256)) return 1;  // none
  *session = session_of(connection, key->key, key->identity);
  *identity = reinterpret_cast<const unsigned char*>(key->identity.data());
  *identity_bytes = key->identity.size();
  return *session != nullptr;
}

int find_key(SSL* connection, const unsigned char* identity, std::size_t identity_bytes,
             SSL_SESSION** session) noexcept {
  *session = nullptr;
  if (identity_bytes == 0 || identity_bytes > tls_identity_bytes_max) return 1;  // none
  try {
    const std::string name(reinterpret_cast<const char*>(identity), identity_bytes);
    const auto key = attached(connection).find_key(name);
    if (!key) return 1;
    *session = session_of(connection, *key, name);
    return *session != nullptr;
  } catch (...) {
    return 0;
  }
}

// The one certificate that is expected, by whatever authority it is signed.
int verify_fingerprint(X509_STORE_CTX* store, void*) {
  auto* const connection = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const std::vector<std::byte>& expected = attached(connection).fingerprint;
  unsigned char found[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  X509* const certificate = X509_STORE_CTX_get0_cert(store);
  if (certificate && X509_digest(certificate, EVP_sha256(), found, &bytes) == 1 && bytes == expected.size() &&
      CRYPTO_memcmp(found, expected.data(), bytes) == 0) {
    X509_STORE_CTX_set_error(store, X509_V_OK);
    return 1;
  }
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
  return 0;
}

}  // namespace

TlsContext make_client_context(const TlsTrust& trust) {
  TlsContext context = make_context(TLS_client_method());
  SSL_CTX* const c = context.get();
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
  if (!trust.fingerprint.empty()) {
    const auto bytes = parse_hex(trust.fingerprint);
    if (!bytes || bytes->size() != 32)
      throw TlsError("FARGPU_FINGERPRINT is '" + trust.fingerprint + "'; a fingerprint is 64 hexadecimal digits");
    attached(context).fingerprint = *bytes;
    SSL_CTX_set_cert_verify_callback(c, verify_fingerprint, nullptr);
  } else if (!trust.ca_file.empty()) {
    if (SSL_CTX_load_verify_file(c, trust.ca_file.c_str()) != 1)
      throw TlsError("FARGPU_CA names '" + trust.ca_file + "', which cannot be used: " + tls_complaint());
  }
  if (!trust.certificate_file.empty()) use_certificate(c, trust.certificate_file, trust.key_file);
  if (trust.key) {
    attached(context).key = trust.key;
    SSL_CTX_set_psk_use_session_callback(c, use_key);
  }
  return context;
}

TlsContext make_server_context(TlsService service) {
  TlsContext context = make_context(TLS_server_method());
  SSL_CTX* const c = context.get();
  if (!service.certificate_file.empty()) use_certificate(c, service.certificate_file, service.key_file);
  if (!service.client_ca_file.empty()) {
    if (SSL_CTX_load_verify_file(c, service.client_ca_file.c_str()) != 1)
      throw TlsError("tls_client_ca names '" + service.client_ca_file + "', which cannot be used: " + tls_complaint());
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);  // a client without a certificate may have a token
  }
  if (service.find_key) {
    attached(context).find_key = std::move(service.find_key);
    SSL_CTX_set_psk_find_session_callback(c, find_key);
  }
  return context;
}

std::string tls_common_name(SSL* connection) {
  X509* const certificate = SSL_get0_peer_certificate(connection);
  if (!certificate || SSL_get_verify_result(connection) != X509_V_OK) return "";
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int place = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (place < 0) return "";
  unsigned char* text = nullptr;
  const int bytes = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, place)));
  if (bytes < 0) return "";
  const std::string name(reinterpret_cast<const char*>(text), static_cast<std::size_t>(bytes));
  OPENSSL_free(text);
  return name.find('\0') == std::string::npos ? name : "";
}

std::optional<std::chrono::sys_seconds> tls_certificate_end(SSL* connection) {
  const X509* const certificate = SSL_get0_peer_certificate(connection);
  std::tm time{};
  if (!certificate || ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time) != 1) return std::nullopt;
  return std::chrono::sys_seconds{std::chrono::seconds(::timegm(&time))};
}

std::string tls_key_identity(SSL* connection) {
  void* data = nullptr;
  std::size_t bytes = 0;
  SSL_SESSION* const session = SSL_get0_session(connection);
  if (!SSL_session_reused(connection) || !session || SSL_SESSION_get0_ticket_appdata(session, &data, &bytes) != 1 ||
      !data)
    return "";
  return {static_cast<const char*>(data), bytes};
}

std::string tls_complaint() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    const char* const reason = ERR_reason_error_string(error);
    const std::string words = ERR_SYSTEM_ERROR(error) ? std::strerror(ERR_GET_REASON(error))
                              : reason                ? reason
                                                      : "an unknown error";
    if (text.empty()) text = words;  // the first is the cause
  }
  return text.empty() ? "no reason given" : text;
}

std::optional<std::vector<std::byte>> parse_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  int high = -1;
  for (const char c : text) {
    if (c == ':' && high < 0 && !bytes.empty()) continue;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::byte>(high << 4 | digit));
      high = -1;
    }
  }
  if (high >= 0 || bytes.empty()) return std::nullopt;
  return bytes;
}

}  // namespace fargpu
