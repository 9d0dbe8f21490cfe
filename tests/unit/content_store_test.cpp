// Contents of memory by their names, in a folder that the workers of a tenant share.

#include "server/worker/contents/content_store.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <utime.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "frames.h"
#include "server/worker/contents/content_desk.h"
#include "tests/temporary_folder.h"

using namespace fargpu;
using namespace fargpu::server;
using namespace fargpu::test;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t plenty = 1u << 30;
/// The file of a block takes as little of a disk as a file does.
constexpr std::size_t block = HashedFiles::file_bytes_min;
HostBudget unbounded(0);

struct Folder : test::TemporaryFolder {
  /// Besides the account of what they take.
  std::vector<fs::path> all() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.path() != path / FolderAccount::file_name) found.push_back(entry.path());
    return found;
  }
};

Bytes contents_of(unsigned number, std::size_t bytes = block) {
  Bytes contents = pattern(bytes);
  std::memcpy(contents.data(), &number, sizeof(number));
  return contents;
}
bool found(const ContentStore& store, const Bytes& contents) {
  Bytes read(contents.size());
  return store.read(name_content(contents), read) && read == contents;
}

/// Files that are written get no longer than this while it lives.
struct FilesEnd {
  explicit FilesEnd(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit less{bytes, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &less);
  }
  ~FilesEnd() {
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, told);
  }
  rlimit before{};
  sighandler_t told = ::signal(SIGXFSZ, SIG_IGN);
};

}  // namespace

TEST_CASE("contents are there once they were kept, for other stores of the folder too, and after a restart") {
  Folder folder;
  const Bytes contents = contents_of(1, 100'000);
  {
    const ContentStore store(folder.path, plenty);
    CHECK_FALSE(store.has(name_content(contents), contents.size()));
    CHECK(store.keep(contents));
    CHECK(found(store, contents));
  }
  const ContentStore other(folder.path, plenty);
  CHECK(other.has(name_content(contents), contents.size()));
  CHECK(found(other, contents));
  CHECK(other.keep(contents));
  CHECK(folder.all().size() == 1);
}

TEST_CASE("contents of another length than the name's are not there") {
  Folder folder;
  const ContentStore store(folder.path, plenty);
  const Bytes contents = contents_of(1);
  CHECK(store.keep(contents));
  Bytes longer(block + 1), shorter(block - 1);
  CHECK_FALSE(store.has(name_content(contents), block + 1));
  CHECK_FALSE(store.read(name_content(contents), longer));
  CHECK_FALSE(store.read(name_content(contents), shorter));
  CHECK(found(store, contents));
}

TEST_CASE("a damaged file is never what its name says, and goes") {
  Folder folder;
  const ContentStore store(folder.path, plenty);
  const Bytes contents = contents_of(1);
  CHECK(store.keep(contents));
  const fs::path file = folder.all().front();
  SECTION("a byte of it") {
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(block - 1).put('\0').flush();
    CHECK_FALSE(found(store, contents));
    CHECK(folder.all().empty());
  }
  SECTION("its end") {
    fs::resize_file(file, block - 1);
    CHECK_FALSE(found(store, contents));
  }
  SECTION("zeros in its place, as a crash may leave them") {
    fs::resize_file(file, 0);
    fs::resize_file(file, block);
    CHECK_FALSE(found(store, contents));
  }
  SECTION("another one in its place") {
    const Folder elsewhere;
    CHECK(ContentStore(elsewhere.path, plenty).keep(contents_of(2)));
    fs::copy_file(elsewhere.all().front(), file, fs::copy_options::overwrite_existing);
    CHECK_FALSE(found(store, contents));
  }
  SECTION("a pipe in its place, which would hold up whoever opens it") {
    fs::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    CHECK_FALSE(found(store, contents));
    fs::remove(file);
  }
  CHECK(store.keep(contents));
  CHECK(found(store, contents));
}

TEST_CASE("what was used longest ago goes first, and the folder keeps to its bound") {
  Folder folder;
  constexpr unsigned most = 20;
  const ContentStore store(folder.path, most * HashedFiles::file_bytes_min);
  for (unsigned i = 0; i < most; ++i) {
    CHECK(store.keep(contents_of(i)));
    for (const fs::path& file : folder.all()) {  // a minute passes
      struct stat status {};
      ::stat(file.c_str(), &status);
      const utimbuf earlier{status.st_mtime - 100, status.st_mtime - 100};
      ::utime(file.c_str(), &earlier);
    }
  }
  CHECK(found(store, contents_of(0)));  // used now
  CHECK(store.keep(contents_of(most)));
  CHECK(folder.all().size() <= most);
  CHECK(found(store, contents_of(0)));
  CHECK(found(store, contents_of(most)));
  CHECK_FALSE(found(store, contents_of(1)));
  for (unsigned i = 0; i < 3 * most; ++i) CHECK(store.keep(contents_of(100 + i)));
  CHECK(folder.all().size() <= most);
}

TEST_CASE("what is larger than the folder may be is not kept, nor is anything where the bound is 0") {
  Folder folder;
  CHECK_FALSE(ContentStore(folder.path, HashedFiles::file_bytes_min - 1).keep(contents_of(1)));
  CHECK_FALSE(ContentStore(folder.path, 0).keep(contents_of(1)));
  CHECK(folder.all().empty());
}

TEST_CASE("contents that a full disk does not take are not kept, and leave nothing") {
  Folder folder;
  const ContentStore store(folder.path, plenty);
  {
    const FilesEnd end(block);
    CHECK_FALSE(store.keep(contents_of(1, 10 * block)));
    CHECK(folder.all().empty());
  }
  CHECK(store.keep(contents_of(1, 10 * block)));
}

TEST_CASE("a folder that cannot be written keeps nothing") {
  Folder folder;
  std::ofstream(folder.path / "file") << "x";
  const ContentStore store(folder.path / "file" / "below", plenty);
  CHECK_FALSE(store.keep(contents_of(1)));
  CHECK_FALSE(found(store, contents_of(1)));
}

TEST_CASE("a folder that goes while it is used is made again, for its owner alone") {
  Folder folder;
  const fs::path below = folder.path / "tenant" / "contents";
  const ContentStore store(below, plenty);
  CHECK(store.keep(contents_of(1)));
  fs::remove_all(folder.path / "tenant");
  CHECK_FALSE(found(store, contents_of(1)));
  CHECK(store.keep(contents_of(1)));
  CHECK(found(store, contents_of(1)));
  CHECK(fs::status(below).permissions() == fs::perms::owner_all);
  CHECK(fs::status(below.parent_path()).permissions() == fs::perms::owner_all);
}

TEST_CASE("a desk keeps what it is given and finds it, and nothing is called after its end") {
  Folder folder;
  const Bytes contents = contents_of(7, 200'000);
  ContentDesk desk(ContentStore(folder.path, plenty), unbounded);
  const auto known = [&] {
    std::promise<bool> answer;
    desk.ask(name_content(contents), contents.size(), [&](bool is) { answer.set_value(is); });
    return answer.get_future().get();
  };
  CHECK_FALSE(known());
  desk.keep(contents);
  desk.finish(std::chrono::seconds(30));
  CHECK(desk.kept_bytes() == contents.size());
  CHECK(known());
  Bytes place(contents.size());
  std::promise<bool> answer;
  desk.find(
      name_content(contents), contents.size(), [&] { return std::span(place); },
      [&](std::span<std::byte> into, bool is) { answer.set_value(is && into.data() == place.data()); });
  CHECK(answer.get_future().get());
  CHECK(place == contents);
  CHECK(desk.known_bytes() == contents.size());
  desk.end();
  desk.ask(name_content(contents), contents.size(), [](bool) { FAIL("called after the end"); });
}

TEST_CASE("a block that goes, or becomes another, between being found and being read is not known") {
  Folder folder;
  const Bytes contents = contents_of(8, 200'000);
  ContentDesk desk(ContentStore(folder.path, plenty), unbounded);
  desk.keep(contents);
  desk.finish(std::chrono::seconds(30));
  const fs::path file = folder.all().front();
  const auto change = GENERATE(0, 1, 2);
  Bytes place(contents.size());
  std::promise<std::pair<bool, std::size_t>> answer;
  desk.find(
      name_content(contents), contents.size(),
      [&] {
        if (change == 0) fs::remove(file);
        if (change == 1) fs::resize_file(file, contents.size() / 2);
        if (change == 2) std::ofstream(file, std::ios::binary) << std::string(contents.size(), 'x');
        return std::span(place);
      },
      [&](std::span<std::byte> into, bool is) {
        answer.set_value({is, into.size()});
      });
  CHECK(answer.get_future().get() == std::pair(false, contents.size()));
  CHECK(desk.known_bytes() == 0);
}

TEST_CASE("what is to be kept is charged to the session, and a session that has little memory keeps nothing") {
  Folder folder;
  const bool little = GENERATE(false, true);
  HostBudget budget(little ? 100u << 20 : 300u << 20);
  ContentDesk desk(ContentStore(folder.path, plenty), budget);
  desk.keep(contents_of(1, 200'000));
  desk.finish(std::chrono::seconds(30));
  CHECK(desk.kept_bytes() == (little ? 0 : 200'000));
  CHECK(budget.charged() == 0);
}
