#pragma once
// Bearer tokens: random words that say whose a client is. A file holds what is needed to know them again, and not the
// tokens.

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace fargpu::site {

/// What cannot be done with a file of tokens, and why.
struct TokenError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TokenEntry {
  using Hash = std::array<std::byte, 32>;
  std::string name;  ///< for people: what it is for
  std::string tenant;
  std::optional<std::chrono::sys_seconds> expires;  ///< nothing: never
  Hash hash{};                                      ///< SHA-256 of the token
};

/// Whether a name can stand in the file, and a tenant's in the settings.
bool plain_name(const std::string& name);

std::vector<TokenEntry> read_tokens(const std::filesystem::path& file);
/// A new token of this name, added to the file, which is made if there is none. This is the only time that it can be
/// seen. `show` is called with the token before the file is changed; what it throws, leaves the file as it is.
std::string create_token(const std::filesystem::path& file, const std::string& name, const std::string& tenant,
                         std::optional<std::chrono::seconds> life,
                         const std::function<void(const std::string&)>& show = {});
/// False if there is none of this name.
bool revoke_token(const std::filesystem::path& file, const std::string& name);

TokenEntry::Hash hash_token(const std::string& token);
/// Whether it has the form of what `create_token` makes.
bool looks_like_token(const std::string& text);
/// "2026-11-20T18:40:00Z"; "never" for nothing.
std::string time_text(const std::optional<std::chrono::sys_seconds>& time);

/// The tokens of a file, read again whenever it has changed.
class TokenBook {
 public:
  /// An empty path stands for no tokens.
  explicit TokenBook(std::filesystem::path file) : file_(std::move(file)) {}

  struct Found {
    std::string tenant;
    std::string name;
    std::optional<std::chrono::sys_seconds> expires;  ///< nothing: never
    bool expired = false;
  };
  /// The owner of a token; nothing for one that is not known. Takes as long for every token.
  /// Throws TokenError if the file cannot be read.
  std::optional<Found> find(const std::string& token);

 private:
  void refresh();

  const std::filesystem::path file_;
  struct Stamp {
    long seconds = -1, nanoseconds = 0;
    unsigned long inode = 0;
    long bytes = 0;
    bool operator==(const Stamp&) const = default;
  } stamp_;
  std::vector<TokenEntry> entries_;
};

}  // namespace fargpu::site
