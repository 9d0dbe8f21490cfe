// A file of tokens and a token that a client shows:
// a client that is let in has shown a token whose hash the file has, and
// the names that are accepted are plain ones. An input is the file, a zero byte, and the token.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "fuzz.h"
#include "protocol/site/tokens.h"

namespace fargpu::fuzz {
namespace {

std::string hex(const site::TokenEntry::Hash& hash) {
  std::string text;
  for (const std::byte byte : hash) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

std::string line(const char* name, const char* tenant, const char* expires, const std::string& token) {
  return fmt::format("{} {} {} {}\n", name, tenant, expires, hex(site::hash_token(token)));
}

// A file that is in memory alone; what it holds is exchanged.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("tokens", MFD_CLOEXEC)) { expect(descriptor_ >= 0, "no file in memory"); }
  void fill(std::span<const std::uint8_t> bytes) {
    expect(::ftruncate(descriptor_, 0) == 0 &&
               ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
           "the file cannot be written");
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace

std::vector<Input> seeds() {
  const std::string file = "# a comment\n\n" + line("anna", "lab", "never", "fargpu_a") +
                           line("old", "lab", "2020-02-29T12:00:00Z", "fargpu_b") +
                           line("node.1-x_2", "other", "2999-12-31T23:59:59Z", "fargpu_c");
  std::vector<Input> all;
  for (const char* const token : {"fargpu_a", "fargpu_b", "fargpu_c", "fargpu_unknown", ""})
    all.push_back(from_text(file + std::string(1, '\0') + token));
  all.push_back(from_text("anna lab never\n" + std::string(1, '\0') + "fargpu_a"));
  return all;
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  static fuzz::MemoryFile file;
  const std::span<const std::uint8_t> input(data, size);
  const auto zero = std::find(input.begin(), input.end(), 0);
  const auto text = input.first(static_cast<std::size_t>(zero - input.begin()));
  const auto shown = input.subspan(std::min(size, text.size() + 1));
  const std::string token(shown.begin(), shown.end());
  file.fill(text);
  try {
    const auto found = site::TokenBook(file.path()).find(token);
    std::string lower(text.begin(), text.end());
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool there = lower.find(fuzz::hex(site::hash_token(token))) != std::string::npos;
    fuzz::expect(!found || there, "a token that the file does not know");
    fuzz::expect(!found || (site::plain_name(found->name) && site::plain_name(found->tenant)), "a name that is none");
    for (const site::TokenEntry& entry : site::read_tokens(file.path())) {
      fuzz::expect(site::plain_name(entry.name) && site::plain_name(entry.tenant), "a name that is none");
      // What `fargpu token` would write of it is read as the same.
      (void)site::time_text(entry.expires);
    }
  } catch (const site::TokenError&) {}
  return 0;
}
