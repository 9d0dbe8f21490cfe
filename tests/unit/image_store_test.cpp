// Images by content, in a folder that several sessions share.

#include "server/worker/code/image_store.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "frames.h"
#include "protocol/image_hash.h"
#include "protocol/limits.h"
#include "tests/temporary_folder.h"

using namespace fargpu;
using namespace fargpu::server;
using namespace fargpu::test;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t plenty = 1u << 30;
HostBudget unbounded(0);

struct Folder : test::TemporaryFolder {
  /// Besides the account of what they take.
  std::vector<fs::path> all() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.path() != account()) found.push_back(entry.path());
    return found;
  }
  std::size_t files() const { return all().size(); }
  fs::path only_file() const { return all().front(); }
  fs::path account() const { return path / FolderAccount::file_name; }
};

ImageHash hash_of(const Bytes& bytes) { return hash_image(bytes); }
Bytes found(ImageStore& store, const Bytes& image) {
  const auto bytes = store.find(hash_of(image), image.size());
  return {bytes.begin(), bytes.end()};
}
bool taken(ImageStore& store, const ImageHash& hash, std::size_t bytes, std::size_t offset,
           std::span<const std::byte> part) {
  return store.receive(hash, bytes, offset, part) == ImageStore::Received::taken;
}
bool receive(ImageStore& store, const Bytes& image) { return taken(store, hash_of(image), image.size(), 0, image); }
std::span<const std::byte> part(const Bytes& image, std::size_t offset, std::size_t bytes) {
  return std::span(image).subspan(offset, bytes);
}

}  // namespace

TEST_CASE("an image is there once it was received") {
  ImageStore store({}, plenty, unbounded);
  const Bytes image = pattern(10000);
  CHECK(found(store, image).empty());
  CHECK(receive(store, image));
  const auto bytes = store.find(hash_of(image), image.size());
  CHECK(Bytes(bytes.begin(), bytes.end()) == image);
  CHECK(store.find(hash_of(image), image.size()).data() == bytes.data());
  CHECK(receive(store, image));  // once more is no harm
  CHECK(store.find(hash_of(image), image.size() - 1).empty());
}

TEST_CASE("parts in order make an image") {
  ImageStore store({}, plenty, unbounded);
  const Bytes image = pattern(1000);
  const ImageHash hash = hash_of(image);
  CHECK(taken(store, hash, 1000, 0, part(image, 0, 400)));
  CHECK(found(store, image).empty());
  CHECK(taken(store, hash, 1000, 400, part(image, 400, 599)));
  CHECK(found(store, image).empty());
  CHECK(taken(store, hash, 1000, 999, part(image, 999, 1)));
  CHECK(found(store, image) == image);
}

TEST_CASE("several images may be under way at once") {
  ImageStore store({}, plenty, unbounded);
  const Bytes first = pattern(1000, 1), second = pattern(1000, 2);
  CHECK(taken(store, hash_of(first), 1000, 0, part(first, 0, 500)));
  CHECK(taken(store, hash_of(second), 1000, 0, part(second, 0, 500)));
  CHECK(taken(store, hash_of(first), 1000, 500, part(first, 500, 500)));
  CHECK(taken(store, hash_of(second), 1000, 500, part(second, 500, 500)));
  CHECK(found(store, first) == first);
  CHECK(found(store, second) == second);
}

TEST_CASE("a part that leaves a gap drops the image, which can then be sent anew") {
  ImageStore store({}, plenty, unbounded);
  const Bytes image = pattern(1000);
  const ImageHash hash = hash_of(image);
  CHECK(taken(store, hash, 1000, 0, part(image, 0, 400)));
  CHECK_FALSE(taken(store, hash, 1000, 500, part(image, 500, 500)));
  CHECK(found(store, image).empty());
  CHECK(receive(store, image));
  CHECK(found(store, image) == image);
}

TEST_CASE("several threads may send one image at once") {
  ImageStore store({}, plenty, unbounded);
  const Bytes image = pattern(1000);
  const ImageHash hash = hash_of(image);
  CHECK(taken(store, hash, 1000, 0, part(image, 0, 400)));
  CHECK(taken(store, hash, 1000, 0, part(image, 0, 400)));
  CHECK(taken(store, hash, 1000, 400, part(image, 400, 400)));
  CHECK(taken(store, hash, 1000, 800, part(image, 800, 200)));
  CHECK(found(store, image) == image);
  CHECK(taken(store, hash, 1000, 400, part(image, 400, 400)));
  CHECK(taken(store, hash, 1000, 800, part(image, 800, 200)));
  CHECK(found(store, image) == image);
}

TEST_CASE("a thread that goes on sending an image that was dropped finds that it is not there, and sends it anew") {
  HostBudget budget(1500);
  ImageStore store({}, plenty, budget);
  const Bytes image = pattern(1000);
  const ImageHash hash = hash_of(image);
  CHECK(taken(store, hash, 1000, 0, part(image, 0, 400)));
  CHECK_FALSE(taken(store, hash, 1000, 600, part(image, 600, 100)));  // of another thread
  CHECK(taken(store, hash, 1000, 400, part(image, 400, 400)));
  CHECK(taken(store, hash, 1000, 800, part(image, 800, 200)));
  CHECK(found(store, image).empty());
  CHECK(budget.charged() == 0);
  CHECK(receive(store, image));
  CHECK(found(store, image) == image);
}

TEST_CASE("an image is as large as its first part said") {
  HostBudget budget(1500);
  ImageStore store({}, plenty, budget);
  const Bytes image = pattern(2000);
  CHECK(taken(store, hash_of(image), 1000, 0, part(image, 0, 500)));
  CHECK_FALSE(taken(store, hash_of(image), 2000, 500, part(image, 500, 1500)));
  CHECK(budget.charged() == 0);
}

TEST_CASE("sizes that cannot be are refused") {
  ImageStore store({}, plenty, unbounded);
  const Bytes image = pattern(1000);
  const ImageHash hash = hash_of(image);
  CHECK_FALSE(taken(store, hash, 0, 0, {}));
  CHECK_FALSE(taken(store, hash, limits::image_bytes_max + 1, 0, image));
  CHECK_FALSE(taken(store, hash, 999, 0, image));
  CHECK_FALSE(taken(store, hash, 1000, 1001, {}));
  CHECK_FALSE(taken(store, hash, 1000, 1, image));
  CHECK_FALSE(taken(store, hash, 1000, ~std::size_t{0}, part(image, 0, 2)));
  CHECK(store.find(hash, 0).empty());
  CHECK(store.find(hash, limits::image_bytes_max + 1).empty());
}

TEST_CASE("an image that is not what its hash says is not kept") {
  Folder folder;
  ImageStore store(folder.path, plenty, unbounded);
  const Bytes image = pattern(1000, 1), other = pattern(1000, 2);
  CHECK_FALSE(taken(store, hash_of(image), 1000, 0, other));
  CHECK(found(store, image).empty());
  CHECK(found(store, other).empty());
  CHECK(folder.files() == 0);
  CHECK(taken(store, hash_of(image), 1000, 0, part(image, 0, 999)));
  CHECK_FALSE(taken(store, hash_of(image), 1000, 999, part(other, 999, 1)));
  CHECK(found(store, image).empty());
  CHECK(receive(store, image));
}

TEST_CASE("only so many images are under way at once") {
  ImageStore store({}, plenty, unbounded);
  for (unsigned i = 0; i < 64; ++i) {
    const Bytes image = pattern(100, i);
    CHECK(taken(store, hash_of(image), 100, 0, part(image, 0, 50)));
  }
  const Bytes one_more = pattern(100, 64);
  CHECK_FALSE(taken(store, hash_of(one_more), 100, 0, part(one_more, 0, 50)));
  // Those under way are not disturbed, and make room when they are complete.
  const Bytes first = pattern(100, 0);
  CHECK(taken(store, hash_of(first), 100, 50, part(first, 50, 50)));
  CHECK(found(store, first) == first);
  CHECK(taken(store, hash_of(one_more), 100, 0, part(one_more, 0, 50)));
}

TEST_CASE("another session finds what one has received") {
  Folder folder;
  const fs::path inner = folder.path / "not" / "there yet";
  const Bytes image = pattern(5000);
  {
    ImageStore store(inner, plenty, unbounded);
    CHECK(receive(store, image));
  }
  ImageStore other(inner, plenty, unbounded);
  CHECK(found(other, image) == image);
  CHECK(other.find(hash_of(image), 4999).empty());
  ImageStore without({}, plenty, unbounded);
  CHECK(found(without, image).empty());
}

TEST_CASE("what was found in an image is known to later sessions, as far as it is well-formed") {
  Folder folder;
  const ImageHash hash = hash_of(pattern(5000)), another = hash_of(pattern(5001)), absent = hash_of(pattern(5002));
  {
    ImageStore store(folder.path, plenty, unbounded);
    CHECK(receive(store, pattern(5000)));
    CHECK(receive(store, pattern(5001)));
    store.note_found(absent, "of no image");
    CHECK(store.names_found(hash).empty());
    for (const char* name : {"_Z4firstv", "second", "_Z4firstv", "", "two\nlines"}) store.note_found(hash, name);
    store.note_found(hash, std::string(5000, 'x'));
    CHECK(store.names_found(hash) == std::vector<std::string>{"_Z4firstv", "second"});
  }
  ImageStore later(folder.path, plenty, unbounded);
  CHECK(later.names_found(hash) == std::vector<std::string>{"_Z4firstv", "second"});
  CHECK(later.names_found(another).empty());
  CHECK(later.names_found(absent).empty());
  for (int i = 0; i < 100; ++i) later.note_found(another, "kernel" + std::to_string(i));
  ImageStore last(folder.path, plenty, unbounded);
  CHECK(last.names_found(another).size() == 16);
}

TEST_CASE("which load followed an image is kept with it") {
  Folder folder;
  const Bytes image = pattern(5000), request = pattern(120), other = pattern(80);
  {
    ImageStore store(folder.path, plenty, unbounded);
    CHECK(receive(store, image));
    CHECK(store.next_load(hash_of(image)).empty());
    store.note_next_load(hash_of(image), request);
    store.note_next_load(hash_of(pattern(7)), request);   // of no image
    store.note_next_load(hash_of(image), pattern(5000));  // longer than any
    CHECK(store.next_load(hash_of(image)) == request);
  }
  CHECK(folder.files() == 2);
  {
    ImageStore store(folder.path, plenty, unbounded);
    CHECK(store.next_load(hash_of(image)) == request);
    CHECK(store.next_load(hash_of(pattern(7))).empty());
    store.note_next_load(hash_of(image), other);
  }
  ImageStore last(folder.path, plenty, unbounded);
  CHECK(last.next_load(hash_of(image)) == other);
  CHECK(folder.files() == 2);
}

TEST_CASE("a file that was changed, cut or lengthened is not believed") {
  Folder folder;
  const Bytes image = pattern(5000);
  {
    ImageStore store(folder.path, plenty, unbounded);
    REQUIRE(receive(store, image));
  }
  REQUIRE(folder.files() == 1);
  const fs::path file = folder.only_file();
  CHECK(file.filename().string().size() == 64);
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  SECTION("changed") {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(2500);
    stream.put('!');
  }
  SECTION("cut") { fs::resize_file(file, 4999); }
  SECTION("emptied") { fs::resize_file(file, 0); }
  SECTION("a link to the right bytes") {
    fs::rename(file, folder.path / "elsewhere");
    fs::create_symlink(folder.path / "elsewhere", file);
  }
  ImageStore store(folder.path, plenty, unbounded);
  CHECK(found(store, image).empty());
  // The client sends it again, and all is well.
  CHECK(receive(store, image));
  CHECK(found(store, image) == image);
  ImageStore other(folder.path, plenty, unbounded);
  CHECK(found(other, image) == image);
}

TEST_CASE("above its limit the folder loses what was used longest ago") {
  Folder folder;
  ImageStore store(folder.path, 10000, unbounded);
  std::vector<Bytes> images;
  const auto age = [&](const Bytes& image, int minutes) {  // as if it had been used that long ago
    for (const auto& entry : fs::directory_iterator(folder.path)) {
      std::ifstream stream(entry.path(), std::ios::binary);
      Bytes contents(image.size());
      stream.read(reinterpret_cast<char*>(contents.data()), static_cast<std::streamsize>(contents.size()));
      if (contents == image)
        fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
    }
  };
  for (unsigned i = 0; i < 2; ++i) images.push_back(pattern(1000, i));
  CHECK(receive(store, images[0]));
  CHECK(receive(store, images[1]));
  CHECK(folder.files() == 2);
  age(images[0], 20);
  age(images[1], 10);
  {
    ImageStore user(folder.path, 10000, unbounded);
    CHECK(found(user, images[0]) == images[0]);  // used just now
  }
  images.push_back(pattern(1000, 2));
  CHECK(receive(store, images[2]));
  CHECK(folder.files() == 2);
  ImageStore fresh(folder.path, 10000, unbounded);
  CHECK(found(fresh, images[0]) == images[0]);
  CHECK(found(fresh, images[1]).empty());
  CHECK(found(fresh, images[2]) == images[2]);
  // The store that received it still has it.
  CHECK(found(store, images[1]) == images[1]);
}

TEST_CASE("a new image is kept without looking at the others, until by the account there is no room") {
  Folder folder;
  constexpr std::uint64_t bytes_max = 40u << 10;
  ImageStore store(folder.path, bytes_max, unbounded);
  CHECK(receive(store, pattern(8, 0)));
  // Nobody is charged for these: a store that counted all files would have to make room.
  for (const char digit : {'a', 'b', 'c'})
    std::ofstream(folder.path / std::string(64, digit)) << std::string(16u << 10, 'x');
  for (unsigned i = 1; i < 10; ++i) CHECK(receive(store, pattern(8, i)));
  CHECK(folder.files() == 13);
  CHECK(receive(store, pattern(8, 10)));
  std::uint64_t bytes = 0;
  for (const fs::path& file : folder.all()) bytes += (fs::file_size(file) + 4095) / 4096 * 4096;
  CHECK(bytes <= bytes_max);
  CHECK(fs::exists(folder.account()));
}

TEST_CASE("an account that is missing, damaged or wrong is put right by a count") {
  Folder folder;
  constexpr std::uint64_t bytes_max = 40u << 10;
  {
    ImageStore store(folder.path, bytes_max, unbounded);
    for (unsigned i = 0; i < 9; ++i) CHECK(receive(store, pattern(8, i)));
  }
  CHECK(folder.files() == 9);
  SECTION("missing") { fs::remove(folder.account()); }
  SECTION("empty") { fs::resize_file(folder.account(), 0); }
  SECTION("cut") { fs::resize_file(folder.account(), 17); }
  SECTION("of another kind") { std::ofstream(folder.account()) << std::string(24, 'x'); }
  SECTION("far too high, as after deaths before files were written") {
    FolderAccount(folder.path).charge({~std::uint64_t{0}, ~std::uint64_t{0}}, {});
  }
  ImageStore store(folder.path, bytes_max, unbounded);
  CHECK(receive(store, pattern(8, 9)));
  CHECK(folder.files() == 9);  // a tenth of the folder goes at once
  CHECK_FALSE(FolderAccount(folder.path).charge({4096, 1}, {bytes_max, 100}));
  CHECK(FolderAccount(folder.path).charge({4096, 1}, {bytes_max, 100}));
}

TEST_CASE("an account that cannot be a file costs a count for each image, and nothing else") {
  Folder folder;
  fs::create_directory(folder.account());
  ImageStore store(folder.path, 40u << 10, unbounded);
  for (unsigned i = 0; i < 20; ++i) CHECK(receive(store, pattern(8, i)));
  CHECK(folder.files() <= 10);
  CHECK(found(store, pattern(8, 19)) == pattern(8, 19));
}

TEST_CASE("small images fill the folder by what they take of a disk") {
  Folder folder;
  constexpr std::uint64_t bytes_max = 64u << 10, block = 4096;
  for (unsigned i = 0; i < 40; ++i) {
    ImageStore store(folder.path, bytes_max, unbounded);
    CHECK(receive(store, pattern(8, i)));
    store.note_found(hash_of(pattern(8, i)), "kernel");
    store.note_next_load(hash_of(pattern(8, i)), pattern(16));
  }
  CHECK(folder.files() <= bytes_max / block);
}

TEST_CASE("an image larger than the folder may be is kept for the session only") {
  Folder folder;
  ImageStore store(folder.path, 500, unbounded);
  const Bytes image = pattern(1000);
  CHECK(receive(store, image));
  CHECK(found(store, image) == image);
  CHECK(folder.files() == 0);
}

TEST_CASE("a folder that cannot be written costs nothing but a transfer") {
  Folder folder;
  std::ofstream(folder.path / "file") << "x";
  ImageStore store(folder.path / "file" / "below", plenty, unbounded);
  const Bytes image = pattern(1000);
  CHECK(receive(store, image));
  CHECK(found(store, image) == image);
  CHECK(store.not_kept() == 1);
}

TEST_CASE("what lies in the folder under an image's name is read only if it can be one") {
  Folder folder;
  const Bytes image = pattern(5000);
  {
    ImageStore store(folder.path, plenty, unbounded);
    CHECK(receive(store, image));
  }
  const fs::path file = folder.only_file();
  SECTION("a pipe, which would hold up whoever opens it") {
    fs::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  }
  SECTION("a folder") {
    fs::remove(file);
    fs::create_directory(file);
  }
  SECTION("a longer file") { std::ofstream(file, std::ios::app) << "more"; }
  ImageStore store(folder.path, plenty, unbounded);
  CHECK(found(store, image).empty());
}

TEST_CASE("only images are evicted") {
  Folder folder;
  const auto put = [&](const std::string& name) { std::ofstream(folder.path / name) << std::string(5000, 'x'); };
  put("thesis.tex");
  put("0123456789abcdef");
  put(std::string(64, 'g'));
  put(std::string(64, 'a') + ".tex");
  put(std::string(64, 'b'));
  put(std::string(64, 'c') + ".17.part");
  ImageStore store(folder.path, 5000, unbounded);
  CHECK(receive(store, pattern(900)));
  CHECK(folder.files() == 5);
  for (const std::string& name : {std::string("thesis.tex"), std::string("0123456789abcdef"), std::string(64, 'g'),
                                  std::string(64, 'a') + ".tex"})
    CHECK(fs::exists(folder.path / name));
}

TEST_CASE("nobody else looks into a folder of our making") {
  Folder folder;
  const auto rights = [](const fs::path& path) { return fs::status(path).permissions(); };
  ImageStore store(folder.path / "images", plenty, unbounded);
  CHECK(receive(store, pattern(100)));
  CHECK(rights(folder.path / "images") == fs::perms::owner_all);
  for (const auto& entry : fs::directory_iterator(folder.path / "images"))
    CHECK(rights(entry.path()) == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("images in memory count, those that are still arriving too, and there is an end of them") {
  HostBudget budget(2500);
  Folder folder;
  const Bytes first = pattern(1000, 1), second = pattern(1000, 2), third = pattern(1000, 3);
  {
    ImageStore store(folder.path, plenty, budget);
    CHECK(receive(store, first));
    const auto held = store.hold(hash_of(first));
    CHECK(taken(store, hash_of(second), 1000, 0, part(second, 0, 10)));
    CHECK(budget.charged() == 2000);
    CHECK(store.receive(hash_of(third), 1000, 0, part(third, 0, 10)) == ImageStore::Received::no_room);
    CHECK_FALSE(taken(store, hash_of(second), 1000, 20, part(second, 20, 10)));  // which drops it
    CHECK(budget.charged() == 1000);
    CHECK(receive(store, third));
    CHECK(found(store, third) == third);
  }
  CHECK(budget.charged() == 0);
  HostBudget small(999);
  ImageStore store(folder.path, plenty, small);
  CHECK(found(store, first).empty());
  CHECK(store.receive(hash_of(first), 1000, 0, first) == ImageStore::Received::no_room);
}

TEST_CASE("behind an image lies a null") {
  ImageStore store({}, plenty, unbounded);
  const Bytes image = pattern(4096);  // to the end of a page
  REQUIRE(receive(store, image));
  CHECK(store.find(hash_of(image), 4096).data()[4096] == std::byte{0});
}

TEST_CASE("images that nobody holds make room for others") {
  HostBudget budget(2500);
  ImageStore store({}, plenty, budget);
  const Bytes first = pattern(1000, 1), second = pattern(1000, 2), third = pattern(1000, 3);
  REQUIRE(receive(store, first));
  REQUIRE(receive(store, second));
  auto held = store.hold(hash_of(first));
  REQUIRE(held);
  CHECK_FALSE(store.hold(hash_of(third)));
  REQUIRE(receive(store, third));
  CHECK(found(store, second).empty());
  CHECK(found(store, first) == first);
  CHECK(found(store, third) == third);
  CHECK(budget.charged() == 2000);
  // They stay while there is room.
  held.reset();
  CHECK(found(store, first) == first);
  REQUIRE(receive(store, second));
  CHECK(budget.charged() == 1000);
  CHECK(budget.refusals() == 0);
}
