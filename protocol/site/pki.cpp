#include "pki.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <optional>

#include "protocol/tls.h"
#include "tokens.h"
#include "whole_file.h"

namespace fargpu::site {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* thing) const {
    Free(thing);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;

void require(bool good, const std::string& what) {
  if (!good) throw PkiError(what + ": " + tls_complaint());
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(bytes)};
}

// Never over what is there: a key that is lost cannot be had again.
void write_new(const std::filesystem::path& path, const std::string& text, int mode) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (descriptor < 0) {
    throw PkiError(errno == EEXIST
                       ? path.string() +
                             " is there already; `fargpu pki renew` makes its certificate anew, and another "
                             "name or folder is for another one"
                       : "cannot write " + path.string() + " " + why_unwritten(errno));
  }
  const bool written = write_all(descriptor, text);
  const int error = errno;
  ::close(descriptor);
  if (written) return;
  ::unlink(path.c_str());
  throw PkiError("cannot write " + path.string() + " " + why_unwritten(error));
}

Certificate read_certificate(const std::filesystem::path& path) {
  const Bio in(BIO_new_file(path.c_str(), "r"));
  Certificate certificate(in ? PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr) : nullptr);
  require(certificate != nullptr,
          "cannot read certificate " + path.string() + " (`fargpu pki init` makes an authority)");
  return certificate;
}

Key read_key(const std::filesystem::path& path) {
  const Bio in(BIO_new_file(path.c_str(), "r"));
  Key key(in ? PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr) : nullptr);
  require(key != nullptr, "cannot read key " + path.string());
  return key;
}

void extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  require(extension && X509_add_ext(certificate, extension.get(), -1) == 1,
          "cannot add '" + value + "' to a certificate");
}

// A number that no other certificate has, and a time that begins now.
void begin_life(X509* certificate, std::chrono::days life) {
  unsigned char serial[16];
  if (::getrandom(serial, sizeof(serial), 0) != sizeof(serial)) throw PkiError("no random numbers");
  serial[0] &= 0x7F;
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(BN_bin2bn(serial, sizeof(serial), nullptr));
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate));
  constexpr long clock_differences = 300;
  X509_gmtime_adj(X509_getm_notBefore(certificate), -clock_differences);
  X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(life.count()), 0, nullptr);
}

void sign(X509* certificate, X509* issuer, EVP_PKEY* issuer_key) {
  require(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
              X509_sign(certificate, issuer_key, EVP_sha256()) > 0,
          "cannot sign a certificate");
}

std::string pem_of(X509* certificate) {
  const Bio text(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(text.get(), certificate);
  return text_of(text.get());
}

/// A certificate before it is signed, with a new key.
struct Draft {
  Key key{EVP_EC_gen("P-256")};
  Certificate certificate{X509_new()};

  Draft(const std::string& name, std::chrono::days life) {
    require(key && certificate, "cannot make a key");
    X509* const c = certificate.get();
    X509_set_version(c, X509_VERSION_3);
    begin_life(c, life);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_pubkey(c, key.get());
  }

  PkiFiles sign_and_write(X509* issuer, EVP_PKEY* issuer_key, const std::filesystem::path& folder,
                          const std::string& name) {
    X509* const c = certificate.get();
    sign(c, issuer, issuer_key);
    const Bio key_text(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    PkiFiles files{folder / (name + ".crt"), folder / (name + ".key")};
    write_new(files.key, text_of(key_text.get()), 0600);
    try {
      write_new(files.certificate, pem_of(c), 0644);
    } catch (const PkiError&) {
      ::unlink(files.key.c_str());  // a key without its certificate would stand in the way of the next try
      throw;
    }
    return files;
  }
};

PkiFiles issue(Draft& draft, const std::filesystem::path& folder, const std::string& name, const std::string& use) {
  const Certificate authority = read_certificate(folder / "ca.crt");
  const Key authority_key = read_key(folder / "ca.key");
  extend(draft.certificate.get(), authority.get(), NID_basic_constraints, "critical,CA:FALSE");
  extend(draft.certificate.get(), authority.get(), NID_ext_key_usage, use);
  return draft.sign_and_write(authority.get(), authority_key.get(), folder, name);
}

void require_name(const std::string& name) {
  if (!plain_name(name) || name == "ca")
    throw PkiError("'" + name + "' cannot be a name here; use letters, digits, '-', '_' and '.'");
}

}  // namespace

PkiFiles make_authority(const std::filesystem::path& folder, std::chrono::days life) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw PkiError("cannot make folder " + folder.string() + " (" + error.message() + ")");
  // A name of its own: of two with one name the other's certificates look as if they were signed wrongly, rather than
  // by another.
  unsigned char number[4];
  if (::getrandom(number, sizeof(number), 0) != sizeof(number)) throw PkiError("no random numbers");
  Draft draft(fmt::format("fargpu authority {:02x}{:02x}{:02x}{:02x}", number[0], number[1], number[2], number[3]),
              life);
  X509* const c = draft.certificate.get();
  extend(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(c, c, NID_key_usage, "critical,keyCertSign,cRLSign");
  return draft.sign_and_write(c, draft.key.get(), folder, "ca");
}

PkiFiles issue_server(const std::filesystem::path& folder, const std::string& name,
                      const std::vector<std::string>& hosts, std::chrono::days life) {
  require_name(name);
  if (hosts.empty()) throw PkiError("name the hosts by which the server is reached");
  Draft draft(name, life);
  std::string names;
  for (const std::string& host : hosts) {
    if (host.empty() || host.find_first_of(", \n") != std::string::npos)
      throw PkiError("'" + host + "' is no host's name or address");
    unsigned char address[16];
    const bool numeric =
        ::inet_pton(AF_INET, host.c_str(), address) == 1 || ::inet_pton(AF_INET6, host.c_str(), address) == 1;
    if (!numeric && host.find_first_of(":/") != std::string::npos)
      throw PkiError("'" + host + "' is no host's name or address; leave out port and transport");
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", numeric ? "IP" : "DNS", host);
  }
  extend(draft.certificate.get(), draft.certificate.get(), NID_subject_alt_name, names);
  return issue(draft, folder, name, "serverAuth");
}

PkiFiles issue_client(const std::filesystem::path& folder, const std::string& name, std::chrono::days life) {
  require_name(name);
  Draft draft(name, life);
  return issue(draft, folder, name, "clientAuth");
}

PkiFiles renew(const std::filesystem::path& folder, const std::string& name, std::chrono::days life) {
  require_name(name);
  const PkiFiles files{folder / (name + ".crt"), folder / (name + ".key")};
  if (!std::filesystem::exists(files.certificate))
    throw PkiError("there is no " + files.certificate.string() + " to renew; `fargpu pki issue` makes one");
  const Certificate certificate = read_certificate(files.certificate);
  const Certificate authority = read_certificate(folder / "ca.crt");
  const Key authority_key = read_key(folder / "ca.key");
  begin_life(certificate.get(), life);
  sign(certificate.get(), authority.get(), authority_key.get());
  const std::filesystem::path fresh = folder / ("." + name + ".crt.new");
  ::unlink(fresh.c_str());  // of a try that was cut short
  write_new(fresh, pem_of(certificate.get()), 0644);
  if (::rename(fresh.c_str(), files.certificate.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    throw PkiError("cannot write " + files.certificate.string() + " " + why_unwritten(error));
  }
  return files;
}

std::vector<std::chrono::sys_seconds> expiries(const std::filesystem::path& path) {
  const Bio in(BIO_new_file(path.c_str(), "r"));
  std::vector<std::chrono::sys_seconds> ends;
  while (in) {
    const Certificate certificate(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (!certificate) break;
    std::tm time{};
    require(ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &time) == 1,
            "cannot read the end of a certificate in " + path.string());
    ends.emplace_back(std::chrono::seconds(::timegm(&time)));
  }
  require(!ends.empty(), "cannot read certificate " + path.string());
  ERR_clear_error();  // the end of the file is one
  return ends;
}

std::chrono::sys_seconds expiry(const std::filesystem::path& chain) {
  const auto ends = expiries(chain);
  return *std::min_element(ends.begin(), ends.end());
}

std::chrono::sys_seconds authority_expiry(const std::filesystem::path& bundle) {
  const auto ends = expiries(bundle);
  return *std::max_element(ends.begin(), ends.end());
}

std::string fingerprint(const std::filesystem::path& path) {
  const Certificate certificate = read_certificate(path);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  require(X509_digest(certificate.get(), EVP_sha256(), digest, &bytes) == 1, "cannot read " + path.string());
  std::string text;
  for (unsigned i = 0; i < bytes; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace fargpu::site
