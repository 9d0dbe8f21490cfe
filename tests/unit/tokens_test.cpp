// Files of tokens, and whose a token is.

#include "protocol/site/tokens.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/temporary_folder.h"

using namespace fargpu::site;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

struct Folder : fargpu::test::TemporaryFolder {
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file).rdbuf();
    return all.str();
  }
  std::string complaint(const std::string& content) const {
    std::ofstream(file) << content;
    try {
      read_tokens(file);
    } catch (const TokenError& error) {
      return error.what();
    }
    return "no complaint";
  }
  fs::path file = path / "tokens";
};

}  // namespace

TEST_CASE("tokens: one that was made is known, and is not in the file") {
  Folder f;
  const std::string token = create_token(f.file, "laptop", "lab", 1h);
  CHECK(token.size() == 7 + 64);
  CHECK(f.text().find(token) == std::string::npos);
  CHECK(f.text().find(token.substr(7, 20)) == std::string::npos);
  struct stat status {};
  REQUIRE(::stat(f.file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  TokenBook book(f.file);
  const auto found = book.find(token);
  REQUIRE(found);
  CHECK(found->tenant == "lab");
  CHECK(found->name == "laptop");
  CHECK_FALSE(found->expired);
  CHECK_FALSE(book.find(token + "0"));
  CHECK_FALSE(book.find(token.substr(0, token.size() - 1)));
  CHECK_FALSE(book.find(""));
  CHECK_FALSE(book.find(std::string(100'000, 'x')));
}

TEST_CASE("tokens: changes of the file count at once") {
  Folder f;
  const std::string first = create_token(f.file, "first", "lab", std::nullopt);
  TokenBook book(f.file);
  CHECK(book.find(first));
  const std::string second = create_token(f.file, "second", "other", std::nullopt);
  CHECK(book.find(second)->tenant == "other");
  CHECK(revoke_token(f.file, "first"));
  CHECK_FALSE(book.find(first));
  CHECK(book.find(second));
  CHECK_FALSE(revoke_token(f.file, "first"));
}

TEST_CASE("tokens: they expire") {
  Folder f;
  const std::string token = create_token(f.file, "short", "lab", 0s);
  CHECK(TokenBook(f.file).find(token)->expired);
  CHECK(read_tokens(f.file).at(0).expires);
  CHECK_FALSE(read_tokens(f.file).at(0).name.empty());
}

TEST_CASE("tokens: a name is taken once, and is plain") {
  Folder f;
  create_token(f.file, "a", "lab", 1h);
  CHECK_THROWS_AS(create_token(f.file, "a", "lab", 1h), TokenError);
  for (const char* name : {"", "two words", "a\nb", "../x", ".x"}) {
    CHECK_THROWS_AS(create_token(f.file, name, "lab", 1h), TokenError);
    CHECK_THROWS_AS(create_token(f.file, "b", name, 1h), TokenError);
  }
  CHECK(read_tokens(f.file).size() == 1);
}

TEST_CASE("tokens: commands at the same time lose nothing") {
  Folder f;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { create_token(f.file, "t" + std::to_string(i), "lab", 1h); });
  for (std::thread& thread : threads) thread.join();
  CHECK(read_tokens(f.file).size() == 8);
}

TEST_CASE("tokens: what is wrong in a file is named, and nobody is known by half a file") {
  Folder f;
  const std::string hash(64, 'a');
  CHECK(f.complaint("# words\n\na lab never " + hash + "\n") == "no complaint");
  CHECK(f.complaint("a lab never\n").find("line 1: four words") != std::string::npos);
  CHECK(f.complaint("a lab never " + hash + " more\n").find("four words") != std::string::npos);
  CHECK(f.complaint("\na lab tomorrow " + hash + "\n").find("line 2: 'tomorrow' is no time") != std::string::npos);
  CHECK(f.complaint("a lab never " + hash.substr(1) + "\n").find("no SHA-256") != std::string::npos);
  CHECK(f.complaint("a lab never " + hash.substr(0, 2) + ":" + hash.substr(2) + "\n").find("no SHA-256") !=
        std::string::npos);
  CHECK(f.complaint("a l/b never " + hash + "\n").find("names are") != std::string::npos);
  CHECK_THROWS_AS(TokenBook(f.file).find("x"), TokenError);
  CHECK_THROWS_AS(TokenBook(f.path / "none").find("x"), TokenError);
  CHECK_FALSE(TokenBook("").find("x"));
}

TEST_CASE("tokens: times as they are written") {
  CHECK(time_text(std::nullopt) == "never");
  CHECK(time_text(std::chrono::sys_seconds(0s)) == "1970-01-01T00:00:00Z");
}
