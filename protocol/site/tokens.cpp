#include "tokens.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "protocol/tls.h"
#include "whole_file.h"

namespace fargpu::site {
namespace {

constexpr const char* heading =
    "# Tokens of fargpu: name, tenant, time of expiry, SHA-256 of the token. Written by `fargpu token`.\n";
constexpr const char* prefix = "fargpu_";
constexpr std::size_t token_random_bytes = 32;
constexpr std::size_t token_bytes_max = 256;

std::string hex(const std::byte* bytes, std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text += fmt::format("{:02x}", std::to_integer<unsigned>(bytes[i]));
  return text;
}

std::optional<std::chrono::sys_seconds> parse_time(const std::string& text) {
  std::tm time{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (!rest || *rest != '\0') return std::nullopt;
  return std::chrono::sys_seconds(std::chrono::seconds(::timegm(&time)));
}

TokenEntry parse_line(const std::string& line, const std::filesystem::path& file, int number) {
  const auto complain = [&](const std::string& what) {
    throw TokenError(fmt::format("{}, line {}: {}", file.string(), number, what));
  };
  std::istringstream words(line);
  TokenEntry entry;
  std::string expires, hash, more;
  if (!(words >> entry.name >> entry.tenant >> expires >> hash) || words >> more)
    complain("four words are wanted: name, tenant, expiry, hash");
  if (!plain_name(entry.name) || !plain_name(entry.tenant)) complain("names are letters, digits, '-', '_' and '.'");
  if (expires != "never" && !(entry.expires = parse_time(expires)))
    complain("'" + expires + "' is no time such as 2026-12-31T23:59:59Z");
  const auto bytes = parse_hex(hash);
  // No colons between them, as in fingerprints: a hash is written in one way.
  if (!bytes || bytes->size() != entry.hash.size() || hash.size() != 2 * entry.hash.size())
    complain("the last word is no SHA-256");
  std::copy(bytes->begin(), bytes->end(), entry.hash.begin());
  return entry;
}

// Changes by two commands at once come one after the other.
class Lock {
 public:
  explicit Lock(const std::filesystem::path& file)
      : descriptor_(::open((file.string() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0 || ::flock(descriptor_, LOCK_EX) != 0) {
      const std::string why = why_unwritten(errno);
      if (descriptor_ >= 0) ::close(descriptor_);
      throw TokenError("cannot lock " + file.string() + " " + why);
    }
  }
  ~Lock() { ::close(descriptor_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

// Whole or not at all, and for its owner's eyes.
void write_tokens(const std::filesystem::path& file, const std::vector<TokenEntry>& entries) {
  std::string text = heading;
  for (const TokenEntry& entry : entries)
    text += fmt::format("{} {} {} {}\n", entry.name, entry.tenant, time_text(entry.expires),
                        hex(entry.hash.data(), entry.hash.size()));
  const std::string fresh = file.string() + ".new";
  const int descriptor = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  struct stat before {};
  bool written = descriptor >= 0;
  if (written && ::stat(file.c_str(), &before) == 0) {  // its readers stay its readers
    ::fchmod(descriptor, before.st_mode & 0777);
    [[maybe_unused]] const int kept = ::fchown(descriptor, before.st_uid, before.st_gid);
  }
  written = written && write_all(descriptor, text);
  int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (written && ::rename(fresh.c_str(), file.c_str()) != 0) {
    written = false;
    error = errno;
  }
  if (written) return;
  if (descriptor >= 0) ::unlink(fresh.c_str());
  throw TokenError("cannot write " + file.string() + " " + why_unwritten(error));
}

std::vector<TokenEntry> read_if_there(const std::filesystem::path& file) {
  return std::filesystem::exists(file) ? read_tokens(file) : std::vector<TokenEntry>{};
}

}  // namespace

bool plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

std::vector<TokenEntry> read_tokens(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw TokenError("cannot read " + file.string() + " (" + std::strerror(errno) + ")");
  std::vector<TokenEntry> entries;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    entries.push_back(parse_line(line, file, number));
  }
  // Part of a file would become all of it when it is written next.
  if (in.bad()) throw TokenError("cannot read all of " + file.string() + " (" + std::strerror(errno) + ")");
  return entries;
}

std::string create_token(const std::filesystem::path& file, const std::string& name, const std::string& tenant,
                         std::optional<std::chrono::seconds> life,
                         const std::function<void(const std::string&)>& show) {
  if (!plain_name(name) || !plain_name(tenant))
    throw TokenError("names of tokens and tenants are letters, digits, '-', '_' and '.'");
  std::array<std::byte, token_random_bytes> random;
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    throw TokenError("no random numbers");
  const std::string token = prefix + hex(random.data(), random.size());
  TokenEntry entry{name, tenant, std::nullopt, hash_token(token)};
  if (life)
    entry.expires = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now()) + *life;
  const Lock lock(file);
  std::vector<TokenEntry> entries = read_if_there(file);
  if (std::any_of(entries.begin(), entries.end(), [&](const TokenEntry& other) { return other.name == name; }))
    throw TokenError("there is a token '" + name + "' already; revoke it first, or take another name");
  entries.push_back(std::move(entry));
  if (show) show(token);
  write_tokens(file, entries);
  return token;
}

bool revoke_token(const std::filesystem::path& file, const std::string& name) {
  const Lock lock(file);
  std::vector<TokenEntry> entries = read_tokens(file);
  if (std::erase_if(entries, [&](const TokenEntry& entry) { return entry.name == name; }) == 0) return false;
  write_tokens(file, entries);
  return true;
}

bool looks_like_token(const std::string& text) {
  return text.starts_with(prefix) && text.size() == std::strlen(prefix) + 2 * token_random_bytes;
}

TokenEntry::Hash hash_token(const std::string& token) {
  TokenEntry::Hash hash;
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
           reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

std::string time_text(const std::optional<std::chrono::sys_seconds>& time) {
  if (!time) return "never";
  const std::time_t seconds = time->time_since_epoch().count();
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void TokenBook::refresh() {
  struct stat status {};
  if (::stat(file_.c_str(), &status) != 0)
    throw TokenError("cannot read " + file_.string() + " (" + std::strerror(errno) + ")");
  const Stamp now{status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ino, status.st_size};
  if (now == stamp_) return;
  entries_ = read_tokens(file_);
  stamp_ = now;
}

std::optional<TokenBook::Found> TokenBook::find(const std::string& token) {
  if (file_.empty() || token.size() > token_bytes_max) return std::nullopt;
  refresh();
  const TokenEntry::Hash hash = hash_token(token);
  const TokenEntry* found = nullptr;
  for (const TokenEntry& entry : entries_)
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = &entry;
  if (!found) return std::nullopt;
  // In whole seconds: the clock's own unit has no room for what people write into such files.
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return Found{found->tenant, found->name, found->expires, found->expires && *found->expires <= now};
}

}  // namespace fargpu::site
