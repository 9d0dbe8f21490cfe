// Names of contents of files: when memory counts as a file's, which files count as unchanged, what is remembered of
// them, and for how long.

#include "client/call/file_names.h"

#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/call/file_pages.h"
#include "client/call/name_table.h"
#include "client/call/own_file.h"
#include "frames.h"
#include "protocol/quiet_thread.h"
#include "tests/temporary_folder.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t s = 1'000'000'000;
constexpr std::size_t page = 4096;
constexpr std::size_t half = 64 * page;

/// A path on a tmpfs at which nothing lies.
struct TablePath {
  TablePath() { fs::remove(path); }
  ~TablePath() { fs::remove(path); }
  const std::string path = "/dev/shm/fargpu-test-names-" + std::to_string(::getpid());
};

/// A file of two halves, mapped privately.
struct Mapped {
  explicit Mapped(const fs::path& folder) : path(folder / "weights") {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(contents.data()), static_cast<std::streamsize>(contents.size()));
    const int file = ::open(path.c_str(), O_RDONLY);
    memory = static_cast<std::byte*>(::mmap(nullptr, contents.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
    ::close(file);
    REQUIRE(memory != MAP_FAILED);
    read();
  }
  ~Mapped() { ::munmap(memory, contents.size()); }
  std::span<std::byte> part(std::size_t at, std::size_t bytes) const { return {memory + at, bytes}; }
  std::span<std::byte> first() const { return part(0, half); }
  std::span<std::byte> second() const { return part(half, half); }
  void read() const {
    for (std::size_t i = 0; i < contents.size(); i += page) (void)*static_cast<volatile std::byte*>(memory + i);
  }
  FilePlace place(std::span<const std::byte> some) const {
    const auto mapping = FileMapping::at(reinterpret_cast<std::uint64_t>(some.data()));
    REQUIRE(mapping);
    const auto found = mapping->place_of(some);
    REQUIRE(found);
    return *found;
  }
  /// Whether files here can be known at all. Where not, nothing is ever found of them.
  bool can_be_known() const { return FileAtRest::open(place(first())) != nullptr; }

  const Bytes contents = pattern(2 * half);
  const fs::path path;
  std::byte* memory = nullptr;
};

/// What a process of its own says. It has to read what is mapped: pages of files are not there after fork(2).
template <typename Does>
int child(Does&& does) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(does());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}
template <typename Does>
bool in_child(Does&& does) {
  return child([&] { return does() ? 0 : 1; }) == 0;
}

bool mounts_have_numbers_of_their_own() {
  struct statx status {};
  constexpr unsigned unique = 0x4000;
  return ::statx(AT_FDCWD, "/", 0, unique, &status) == 0 && (status.stx_mask & unique) != 0;
}

NameTable::Of of_file(std::uint64_t inode, std::uint64_t offset = 0) {
  return {{.device = 1, .inode = inode, .size = 1 << 30, .modified_ns = 5, .changed_ns = 6, .mount = 7, .boot = {'b'}},
          offset,
          1 << 20};
}
ContentName name_of(std::uint64_t number) { return name_content(std::as_bytes(std::span(&number, 1))); }

void flip(const fs::path& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(~byte)).flush();
}

}  // namespace

TEST_CASE("a name that was added is found, by other tables of the path too, and by nothing but all of what it is of") {
  const TablePath at;
  const NameTable table(at.path), other(at.path);
  CHECK_FALSE(table.find(of_file(1)));
  table.add(of_file(1), name_of(1));
  CHECK(other.find(of_file(1)) == name_of(1));
  const auto changed = [](auto&& change) {
    NameTable::Of of = of_file(1);
    change(of);
    return of;
  };
  for (const NameTable::Of& of :
       {changed([](auto& of) { ++of.state.device; }), changed([](auto& of) { ++of.state.inode; }),
        changed([](auto& of) { ++of.state.size; }), changed([](auto& of) { ++of.state.modified_ns; }),
        changed([](auto& of) { ++of.state.changed_ns; }), changed([](auto& of) { ++of.state.mount; }),
        changed([](auto& of) { ++of.state.boot.front(); }), changed([](auto& of) { ++of.state.boot.back(); }),
        changed([](auto& of) { ++of.offset; }), changed([](auto& of) { --of.bytes; })})
    CHECK_FALSE(table.find(of));
  other.add(of_file(1), name_of(2));  // cannot be, and does no harm
  CHECK(table.find(of_file(1)));
}

TEST_CASE("a table that is damaged anywhere has no name, and never another one") {
  const TablePath at;
  const NameTable table(at.path);
  table.add(of_file(1), name_of(1));
  const std::uint64_t size = fs::file_size(at.path), begin = size / NameTable::record_bytes * NameTable::record_bytes;
  const std::uint64_t record = begin == size ? size - NameTable::record_bytes : begin;
  for (std::uint64_t byte = 0; byte < NameTable::record_bytes; ++byte) {
    flip(at.path, record + byte);
    CHECK_FALSE(table.find(of_file(1)));
    flip(at.path, record + byte);
    CHECK(table.find(of_file(1)) == name_of(1));
  }
  SECTION("it ends early") { fs::resize_file(at.path, size - 1); }
  SECTION("it is empty") { fs::resize_file(at.path, 0); }
  SECTION("it is full of the same record") {
    std::string bytes(NameTable::record_bytes, '\0');
    std::ifstream(at.path, std::ios::binary).seekg(static_cast<std::streamoff>(record)).read(bytes.data(), 64);
    std::ofstream all(at.path, std::ios::binary | std::ios::trunc);
    for (std::uint64_t i = 0; i < NameTable::records; ++i) all << bytes;
    all.close();
    for (std::uint64_t inode = 2; inode < 50; ++inode) CHECK_FALSE(table.find(of_file(inode)));
    table.add(of_file(2), name_of(2));
    CHECK(table.find(of_file(2)) == name_of(2));
    return;
  }
  CHECK_FALSE(table.find(of_file(1)));
  table.add(of_file(1), name_of(1));
  CHECK(table.find(of_file(1)) == name_of(1));
}

TEST_CASE("a table keeps to its size, and what it drops is not found") {
  const TablePath at;
  const NameTable table(at.path);
  for (std::uint64_t i = 0; i < 3000; ++i) table.add(of_file(7, i << 20), name_of(i));
  unsigned found = 0;
  for (std::uint64_t i = 0; i < 3000; ++i)
    if (const auto name = table.find(of_file(7, i << 20))) {
      CHECK(*name == name_of(i));
      ++found;
    }
  CHECK(found >= 2990);
  CHECK(fs::file_size(at.path) <= NameTable::records * NameTable::record_bytes);
}

TEST_CASE("tables of several threads, as of several programs, hold names that are right") {
  const TablePath at;
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number)
    threads.emplace_back([&] {
      const NameTable table(at.path);
      for (std::uint64_t i = 0; i < 500; ++i) {
        table.add(of_file(i % 100), name_of(i % 100));
        if (const auto name = table.find(of_file(i % 50)); name && *name != name_of(i % 50)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a table that others may write, or that is none, is not used") {
  const TablePath at;
  const NameTable table(at.path);
  table.add(of_file(1), name_of(1));
  REQUIRE(table.find(of_file(1)));
  SECTION("others may write it") { ::chmod(at.path.c_str(), 0622); }
  SECTION("it has another name too") {
    fs::create_hard_link(at.path, at.path + "-other");
    CHECK_FALSE(table.find(of_file(1)));
    fs::remove(at.path + "-other");
    return;
  }
  SECTION("a link lies there") {
    fs::rename(at.path, at.path + "-other");
    fs::create_symlink(at.path + "-other", at.path);
    CHECK_FALSE(table.find(of_file(1)));
    fs::remove(at.path + "-other");
    return;
  }
  SECTION("a pipe lies there") {
    fs::remove(at.path);
    REQUIRE(::mkfifo(at.path.c_str(), 0600) == 0);
  }
  SECTION("a folder lies there") {
    fs::remove(at.path);
    fs::create_directory(at.path);
  }
  table.add(of_file(1), name_of(1));
  CHECK_FALSE(table.find(of_file(1)));
}

TEST_CASE("a table that is not on a tmpfs, which may outlast the kernel, is not used") {
  const test::TemporaryFolder folder;
  struct Type {
    OwnFile file;
    OwnFile::Facts facts;
  } type{.file = OwnFile(folder.path, O_RDONLY | O_DIRECTORY), .facts = {}};
  REQUIRE(type.file.facts(type.facts));
  if (type.facts.file_system == 0x01021994) return;  // there is no other place
  const NameTable table(folder.path / "names");
  table.add(of_file(1), name_of(1));
  CHECK_FALSE(table.find(of_file(1)));
}

TEST_CASE("lines of the address space are read as they are written") {
  const auto mapping = FileMapping::parse("7f00-7f80 r--p 00012000 fe:10 1234   /a folder/of weights");
  REQUIRE(mapping);
  CHECK((mapping->begin == 0x7f00 && mapping->end == 0x7f80 && mapping->offset == 0x12000 && mapping->inode == 1234));
  CHECK(mapping->path == "/a folder/of weights");
  CHECK(FileMapping::parse("7f00-7f80 rw-p 00000000 00:00 0 ")->path.empty());
  CHECK(FileMapping::parse("7f00-7f80 rw-p 00000000 00:00 0   [anon:/x]")->path.empty());
  for (const char* const line : {"", "7f00", "7f00-", "7f00-7f80", "7f00-7f80 rw-p", "7f00-7f80 rw-p 0 fe:", "x"})
    CHECK_FALSE(FileMapping::parse(line));
}

TEST_CASE("the kernel's answer about a mapping is what its text says") {
  const test::TemporaryFolder folder;
  const Mapped file(folder.path);
  const Bytes heap(3 * page);
  for (const std::byte* const memory : {file.memory + half + 7, const_cast<std::byte*>(heap.data()) + page}) {
    const auto address = reinterpret_cast<std::uint64_t>(memory);
    const OwnFile maps("/proc/self/maps", O_RDONLY);
    const auto asked = FileMapping::at(address), read = FileMapping::in_text(maps, address);
    REQUIRE((asked && read));
    CHECK((asked->begin == read->begin && asked->end == read->end && asked->path == read->path));
    CHECK((asked->device == read->device && asked->inode == read->inode && asked->offset == read->offset));
  }
  CHECK_FALSE(FileMapping::at(8));
  CHECK_FALSE(FileMapping::in_text(OwnFile("/proc/self/maps", O_RDONLY), 8));
}

TEST_CASE("memory lies in one mapping, or in no place of a file") {
  const test::TemporaryFolder folder;
  const Mapped file(folder.path);
  const FilePlace place = file.place(file.part(page + 5, half));
  CHECK(place.offset == page + 5);
  CHECK(place.bytes == half);
  CHECK(place.path == fs::canonical(file.path));
  const auto mapping = FileMapping::at(reinterpret_cast<std::uint64_t>(file.memory));
  CHECK_FALSE(mapping->place_of(file.part(1, 2 * half)));
  CHECK_FALSE(mapping->place_of({file.memory - 1, 2}));
  // A mapping that has been divided is two.
  REQUIRE(::mprotect(file.memory + half, half, PROT_READ) == 0);
  CHECK_FALSE(FileMapping::at(reinterpret_cast<std::uint64_t>(file.memory))->place_of(file.part(page, half)));
  CHECK(file.place(file.second()).offset == half);
  const Bytes other(page);
  const auto none = FileMapping::at(reinterpret_cast<std::uint64_t>(other.data()));
  CHECK_FALSE((none && none->place_of(other)));
}

TEST_CASE("a page that the program wrote in a private mapping, or that is not there, is no file's") {
  const test::TemporaryFolder folder;
  const Mapped file(folder.path);
  CHECK(has_pages_of_files(file.first()));
  CHECK(has_pages_of_files(file.part(1, 1)));
  CHECK_FALSE(has_pages_of_files({}));
  const Bytes own = pattern(3 * page);
  CHECK_FALSE(has_pages_of_files(own));
  // Written with what was there, too.
  const auto at = GENERATE(std::size_t{0}, half / 2, half - 1);
  *static_cast<volatile std::byte*>(file.memory + at) = file.contents[at];
  CHECK_FALSE(has_pages_of_files(file.first()));
  CHECK(has_pages_of_files(file.second()));
  REQUIRE(::mprotect(file.memory, half, PROT_READ) == 0);
  CHECK_FALSE(has_pages_of_files(file.first()));
  REQUIRE(::madvise(file.memory, half, MADV_DONTNEED) == 0);
  CHECK_FALSE(has_pages_of_files(file.first()));
  file.read();
  CHECK(has_pages_of_files(file.first()));
}

TEST_CASE("a file has a state while nobody can write it, and another one once somebody did") {
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;  // the file system is none of those
  const auto file = FileAtRest::open(mapped.place(mapped.first()));
  const auto before = file->state();
  REQUIRE(before);
  CHECK(before->size == 2 * half);
  CHECK(file->state() == before);
  const int writer = ::open(mapped.path.c_str(), O_RDWR);
  CHECK_FALSE(file->state());
  void* const shared = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
  ::close(writer);
  CHECK_FALSE(file->state());  // a mapping writes as well
  const struct stat status = [&] {
    struct stat now {};
    ::stat(mapped.path.c_str(), &now);
    return now;
  }();
  std::this_thread::sleep_for(20ms);  // more than a step of the clock by which files are marked
  std::memset(shared, 'x', page);
  ::munmap(shared, page);
  const auto after = file->state();
  REQUIRE(after);
  CHECK(after != before);
  // Times that are set back show, too.
  const timespec times[] = {status.st_atim, status.st_mtim};
  std::this_thread::sleep_for(20ms);
  REQUIRE(::utimensat(AT_FDCWD, mapped.path.c_str(), times, 0) == 0);
  CHECK(file->state()->modified_ns == before->modified_ns);
  CHECK(file->state() != before);
}

TEST_CASE("what lies at the path by now is another file, or none that may be opened") {
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  const FilePlace place = mapped.place(mapped.first());
  fs::rename(mapped.path, folder.path / "elsewhere");
  CHECK_FALSE(FileAtRest::open(place));
  SECTION("an equal file") { fs::copy_file(folder.path / "elsewhere", mapped.path); }
  SECTION("a link to the file itself") { fs::create_symlink(folder.path / "elsewhere", mapped.path); }
  SECTION("a pipe") { REQUIRE(::mkfifo(mapped.path.c_str(), 0600) == 0); }
  CHECK_FALSE(FileAtRest::open(place));
}

TEST_CASE("a file on a tmpfs, where mapped memory is written without a note, is never known") {
  const TablePath at;
  std::ofstream(at.path) << std::string(page, 'x');
  struct stat status {};
  ::stat(at.path.c_str(), &status);
  CHECK_FALSE(FileAtRest::open({at.path, status.st_dev, status.st_ino, 0, page}));
}

TEST_CASE("a state shows no changes while one could have its times") {
  const FileState state{.size = 1, .modified_ns = 100 * s, .changed_ns = 90 * s + 1};
  CHECK_FALSE(shows_changes(state, 0));
  CHECK_FALSE(shows_changes(state, 90 * s));
  CHECK_FALSE(shows_changes(state, 101 * s));
  CHECK(shows_changes(state, 103 * s));
  CHECK_FALSE(shows_changes({.modified_ns = 1 * s, .changed_ns = 100 * s + 1}, 101 * s));
}

TEST_CASE("a state shows no changes with times that no clock has given, however large") {
  const std::uint64_t now = 1000 * s, most = ~std::uint64_t{0};
  CHECK(shows_changes({.modified_ns = 1 * s, .changed_ns = 1 * s + 1}, now));
  // As tools that write file systems have it. Of these one file may lie where another one was.
  CHECK_FALSE(shows_changes({.modified_ns = 1 * s, .changed_ns = 1 * s}, now));
  CHECK_FALSE(shows_changes({.modified_ns = 1 * s + 1, .changed_ns = 0}, now));
  for (const std::uint64_t late : {most, most - 1, most - s, most - 2 * s, most - 3 * s, most / 2, 1000 * s + 1}) {
    CHECK_FALSE(shows_changes({.modified_ns = late, .changed_ns = 1 * s + 1}, now));
    CHECK_FALSE(shows_changes({.modified_ns = 1 * s, .changed_ns = late}, now));
  }
}

TEST_CASE("times that nanoseconds since 1970 cannot be are none") {
  CHECK(unix_ns(0, 0) == 0);
  CHECK(unix_ns(1'700'000'000, 999'999'999) == 1'700'000'000'999'999'999);
  CHECK(unix_ns(18'446'744'072, 999'999'999) == 18'446'744'072'999'999'999u);
  CHECK_FALSE(unix_ns(18'446'744'074, 0));
  CHECK_FALSE(unix_ns(1, 1'000'000'000));
  CHECK_FALSE(unix_ns(-1, 0));
  constexpr auto least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  CHECK_FALSE(unix_ns(least, 0));
  CHECK_FALSE(unix_ns(most, 0));
}

TEST_CASE("a file that is older than 1970 has no state") {
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;
  REQUIRE(FileAtRest::open(mapped.place(mapped.first()))->state());
  const timespec times[] = {{-5, 0}, {-5, 0}};
  REQUIRE(::utimensat(AT_FDCWD, mapped.path.c_str(), times, 0) == 0);
  const auto file = FileAtRest::open(mapped.place(mapped.first()));
  CHECK_FALSE((file && file->state()));
}

TEST_CASE("a state is of this run of the kernel and of one mount") {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  const auto boot = boot_id();
  REQUIRE(boot);
  CHECK(std::string(boot->begin(), boot->end()) == id);
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;
  const FilePlace place = mapped.place(mapped.first());
  const auto here = FileAtRest::open(place)->state();
  REQUIRE(here);
  CHECK(here->boot == boot);
  CHECK(here->mount != 0);
  if (!in_child([&] {
        if (::unshare(CLONE_NEWNS) != 0) return false;  // all mounts are copies, with other numbers
        const auto there = FileAtRest::open(place)->state();
        return there && there != here && there->inode == here->inode && there->changed_ns == here->changed_ns;
      }))
    CHECK(::geteuid() != 0);
}

TEST_CASE("a file is read as far as it is in memory, and no disk is waited for") {
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;
  const auto file = FileAtRest::open(mapped.place(mapped.first()));
  Bytes bytes(half);
  REQUIRE(file->read(half, bytes));
  CHECK(std::memcmp(bytes.data(), mapped.contents.data() + half, half) == 0);
  CHECK_FALSE(file->read(half + 1, bytes));  // it ends before
  // A read that would wait has the kernel fetch the bytes, and finds them if the disk is that fast.
  bool missed = false;
  for (int attempt = 0; attempt < 50 && !missed; ++attempt) {
    const int descriptor = ::open(mapped.path.c_str(), O_RDONLY);
    ::fsync(descriptor);
    REQUIRE(::madvise(mapped.memory, 2 * half, MADV_DONTNEED) == 0);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
    std::vector<unsigned char> there(2 * half / page);
    REQUIRE(::mincore(mapped.memory, 2 * half, there.data()) == 0);
    if (std::any_of(there.begin(), there.end(), [](unsigned char one) { return (one & 1) != 0; })) return;
    missed = !file->read(0, bytes);
    if (!missed) CHECK(std::memcmp(bytes.data(), mapped.contents.data(), half) == 0);
  }
  CHECK(missed);
  mapped.read();
  CHECK(file->read(0, bytes));
}

TEST_CASE("a path is not walked where the mapping's file is on no disk of this machine") {
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  FilePlace place = mapped.place(mapped.first());
  fs::create_directory_symlink(folder.path, folder.path / "link");
  place.path = folder.path / "link" / "weights";
  const auto walked = [&] {  // the kernel notes that a link is followed
    const timespec old[] = {{1000, 0}, {1000, 0}};
    ::utimensat(AT_FDCWD, (folder.path / "link").c_str(), old, AT_SYMLINK_NOFOLLOW);
    FileAtRest::open(place);
    struct stat status {};
    ::lstat((folder.path / "link").c_str(), &status);
    return status.st_atim.tv_sec != 1000;
  };
  if (!walked()) return;  // it does not note it here, or the folder is on no disk
  place.device = ::gnu_dev_makedev(0, 50);
  CHECK_FALSE(walked());
}

TEST_CASE("a file system in the place of another one, with equal numbers and times, has none of its names") {
  const test::TemporaryFolder folder;
  const TablePath at;
  fs::create_directory(folder.path / "mount");
  const auto run = [&](const std::string& script) {
    return std::system(("{ cd " + folder.path.string() + " && " + script + "; } > /dev/null 2>&1").c_str()) == 0;
  };
  // As tools do that make file systems which are the same each time. The time of change is of the inode's own.
  const std::string nanoseconds = GENERATE("0", "8");
  for (const std::string name : {"early", "late"}) {
    fs::create_directory(folder.path / name);
    std::ofstream(folder.path / name / "weights") << std::string(half, name[0]);
    const std::string id = "11111111-1111-1111-1111-111111111111";
    if (!run("touch -d @1600000000 " + name + "/weights " + name + " && mkfs.ext4 -I 256 -U " + id +
             " -E hash_seed=" + id + " -d " + name + " " + name + ".image 8M" +
             " && debugfs -w -R 'set_inode_field weights ctime 20200913122640' " + name + ".image" +
             " && debugfs -w -R 'set_inode_field weights ctime_extra " + std::to_string(std::stoul(nanoseconds) * 4) +
             "' " + name + ".image"))
      return;  // there are no such tools
  }
  enum Ended { well, wrong_name, none_learnt, not_possible };
  const int ended = child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0) return not_possible;
    FileNames names(NameTable(at.path), 10s, 10s);
    struct stat first {};
    for (const std::string name : {"early", "late"}) {
      if (!run("cp " + name + ".image image && mount -o loop,ro,noload image mount")) return not_possible;
      const int file = ::open((folder.path / "mount" / "weights").c_str(), O_RDONLY);
      struct stat status {};
      void* const memory = ::mmap(nullptr, half, PROT_READ, MAP_PRIVATE, file, 0);
      if (memory == MAP_FAILED || ::fstat(file, &status) != 0) return not_possible;
      ::close(file);
      const std::span bytes(static_cast<const std::byte*>(memory), half);
      const ContentName right = name_content(bytes);  // which reads all of it
      const auto found = names.find(bytes).name;
      if (found) return wrong_name;
      if (name == "late")
        return status.st_dev == first.st_dev && status.st_ino == first.st_ino && right != ContentName{} &&
                       status.st_ctim.tv_nsec == first.st_ctim.tv_nsec
                   ? well
                   : not_possible;
      names.learn(bytes);
      names.finish();
      const bool learnt = names.find(bytes).name == right;
      if (learnt != (status.st_ctim.tv_nsec != 0)) return none_learnt;
      first = status;
      ::munmap(memory, half);
      if (!run("umount mount")) return not_possible;
    }
    return wrong_name;
  });
  // Before Linux 6.8 a mount may have the number of the one before.
  if (ended == wrong_name) CHECK((nanoseconds == "8" && !mounts_have_numbers_of_their_own()));
  else CHECK((ended == well || ended == not_possible));
  if (::geteuid() == 0 && ended == not_possible) WARN("it could not be tried");
}

TEST_CASE("a path that hangs holds up one chunk for a moment, and no end") {
  const test::TemporaryFolder folder;
  const TablePath at;
  fs::create_directory(folder.path / "on_the_way");
  const Mapped mapped(folder.path / "on_the_way");
  if (!mapped.can_be_known()) return;
  enum Ended { well, wrong, not_possible };
  const auto took = [](auto&& does) {
    const auto begin = std::chrono::steady_clock::now();
    does();
    return std::chrono::steady_clock::now() - begin;
  };
  const int ended = child([&] {
    mapped.read();
    const int fuse = ::open("/dev/fuse", O_RDWR);
    const std::string options = "rootmode=40000,user_id=0,group_id=0,fd=" + std::to_string(fuse);
    if (fuse < 0 || ::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("nobody", folder.path.c_str(), "fuse", 0, options.c_str()) != 0)
      return not_possible;
    auto names = std::make_unique<FileNames>(NameTable(at.path));
    const auto first = took([&] { names->find(mapped.first()); });
    if (first < FileNames::patience || first > 5s) return wrong;
    const auto next = took([&] {
      for (int i = 0; i < 100; ++i) {
        if (names->find(mapped.second()).place) ::_exit(wrong);
        names->learn(mapped.first());
      }
    });
    if (next > 500ms) return wrong;
    return took([&] { FileNames::end(std::move(names)); }) < 10s ? well : wrong;
  });
  CHECK(ended != wrong);
  CHECK((ended == well || ended == not_possible));
}

TEST_CASE("where finding a mapping takes too long, none is looked for during a second") {
  const test::TemporaryFolder folder;
  const TablePath at;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;
  FileNames names(NameTable(at.path), 10s, 0ns);
  CHECK(names.find(mapped.first()).place);
  CHECK_FALSE(names.find(mapped.second()).place);
  std::this_thread::sleep_for(1100ms);
  CHECK(names.find(mapped.second()).place);
}

TEST_CASE("an answer that comes too late is of no use, and does no harm") {
  const test::TemporaryFolder folder;
  const TablePath at;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;
  FileNames names(NameTable(at.path), 0ns);
  for (int i = 0; i < 3; ++i) {  // most often there is none yet when it is given up
    const auto found = names.find(mapped.first());
    if (found.place) CHECK(found.place->offset == 0);
  }
  names.finish();
  // Some come just when they are given up.
  for (auto patience = 0us; patience < 1000us; patience += 20us) {
    FileNames some(NameTable(at.path), patience);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        const auto found = some.find(mapped.second());
        if (found.place && found.place->offset != half) std::abort();
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_CASE("a file of which the kernel gives no lease is another user's, and is left alone for a while") {
  const test::TemporaryFolder folder;
  const TablePath at;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known() || ::geteuid() != 0) return;
  const FilePlace place = mapped.place(mapped.first());
  CHECK_FALSE(FileAtRest::open(place)->has_no_state());
  const int writer = ::open(mapped.path.c_str(), O_RDWR);
  CHECK_FALSE(FileAtRest::open(place)->state());
  CHECK_FALSE(FileAtRest::open(place)->has_no_state());  // somebody writes it just now
  ::close(writer);
  fs::permissions(folder.path, fs::perms::all);
  CHECK(in_child([&] {
    if (::setresuid(65534, 65534, 0) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0) return false;
    const auto file = FileAtRest::open(place);
    if (!file || file->state() || !file->has_no_state()) return false;
    mapped.read();
    FileNames names(NameTable(at.path), 10s, 10s);
    const bool first = names.find(mapped.first()).place.has_value();
    // From here on it would get one, and does not try for a while.
    if (::setresuid(0, 0, 0) != 0 || !file->state()) return false;
    const bool second = names.find(mapped.second()).place.has_value();
    std::this_thread::sleep_for(2100ms);
    return !first && !second && names.find(mapped.second()).place;
  }));
}

TEST_CASE("where no table can be no thread begins") {
  const test::TemporaryFolder folder;
  const TablePath at;
  const Mapped mapped(folder.path);
  const auto threads = [] {
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  };
  const auto before = threads();
  for (const std::string& path :
       {std::string(), std::string("/proc/names"), (folder.path / "none" / "names").string()}) {
    FileNames names{NameTable(path)};
    CHECK_FALSE(NameTable(path).may_be_used());
    CHECK_FALSE(names.find(mapped.first()).place);
    names.learn(mapped.first());
    CHECK(threads() == before);
  }
  CHECK(NameTable(at.path).may_be_used());
  CHECK(NameTable(at.path).can_be_opened());
  fs::create_directory(at.path);
  CHECK_FALSE(NameTable(at.path).can_be_opened());
  FileNames names{NameTable(at.path)};
  CHECK_FALSE(names.find(mapped.first()).place);
}

TEST_CASE("a thread gets no descriptors of its own where a message queue would hear of it") {
  const auto able = [] {
    bool result = false;
    quiet_thread("takes", [&] { result = take_own_descriptors(); }).join();
    return result;
  };
  if (!able()) return;  // the kernel cannot
  const std::string name = "fargpu-test-" + std::to_string(::getpid());
  const int queue = static_cast<int>(::syscall(SYS_mq_open, name.c_str(), O_RDWR | O_CREAT, 0600, nullptr));
  if (queue < 0) return;  // it has none
  ::syscall(SYS_mq_unlink, name.c_str());
  // At a number that the kernel copies, whatever the tests before this one have left open.
  const int input = ::dup(STDIN_FILENO);
  REQUIRE(::dup2(queue, STDIN_FILENO) == STDIN_FILENO);
  ::close(queue);
  CHECK_FALSE(able());
  REQUIRE(::dup2(input, STDIN_FILENO) == STDIN_FILENO);
  ::close(input);
  CHECK(able());
}

TEST_CASE("a program that opens a file for writing while it is looked at hears nothing of it, and gets it") {
  const test::TemporaryFolder folder;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) return;
  std::atomic<bool> over{false};
  std::atomic<unsigned> rest{0}, writing{0};
  // A signal of a lease that is broken would end this process.
  std::thread looks = quiet_thread("looks", [&] {
    const auto file = FileAtRest::open(mapped.place(mapped.first()));
    while (!over) ++(file->state() ? rest : writing);
  });
  const auto until = std::chrono::steady_clock::now() + 1s;
  unsigned opened = 0;
  while (std::chrono::steady_clock::now() < until) {
    const int writer = ::open(mapped.path.c_str(), O_WRONLY);
    if (writer >= 0) ++opened;
    else FAIL_CHECK("refused");
    ::close(writer);
  }
  over = true;
  looks.join();
  CHECK(opened > 0);
  CHECK(rest > 0);
  CHECK(writing > 0);
}

TEST_CASE("names that one program has learnt another one finds, as long as the file is what it was") {
  const test::TemporaryFolder folder;
  const TablePath at;
  const Mapped mapped(folder.path);
  if (!mapped.can_be_known()) {
    FileNames names(NameTable(at.path), 10s, 10s);
    CHECK_FALSE(names.find(mapped.first()).place);
    return;
  }
  const auto copy = [&](std::span<const std::byte> bytes) {
    FileNames::Memory memory(new std::byte[bytes.size()]);
    std::memcpy(memory.get(), bytes.data(), bytes.size());
    return memory;
  };
  {
    FileNames early(NameTable(at.path), 10s, 10s);
    const auto found = early.find(mapped.first());
    REQUIRE(found.place);
    CHECK_FALSE(found.name);
    early.learn(*found.place, name_content(mapped.first()), copy(mapped.first()));  // it is too new
    early.learn(mapped.first());
    early.finish();
    CHECK_FALSE(early.find(mapped.first()).name);
  }
  std::this_thread::sleep_for(2100ms);
  {
    FileNames names(NameTable(at.path), 10s, 10s);
    const auto found = names.find(mapped.first());
    REQUIRE(found.place);
    // What the program has is not what counts.
    names.learn(*found.place, name_content(mapped.second()), copy(mapped.second()));
    names.finish();
    CHECK_FALSE(names.find(mapped.first()).name);
    names.learn(*found.place, name_content(mapped.first()), copy(mapped.first()));
    names.learn(mapped.second());
    names.finish();
  }
  FileNames names(NameTable(at.path), 10s, 10s);
  CHECK(names.find(mapped.first()).name == name_content(mapped.first()));
  CHECK(names.find(mapped.second()).name == name_content(mapped.second()));
  CHECK_FALSE(names.find(mapped.part(page, half)).name);
  SECTION("the program writes in its mapping") {
    mapped.memory[5] = std::byte{1};
    CHECK_FALSE(names.find(mapped.first()).place);
    CHECK(names.find(mapped.second()).name);
    names.learn(mapped.first());  // of the file, all the same
    names.finish();
    REQUIRE(::madvise(mapped.memory, half, MADV_DONTNEED) == 0);
    mapped.read();
    CHECK(names.find(mapped.first()).name == name_content(mapped.first()));
  }
  SECTION("the file is written") {
    flip(mapped.path, 5);
    CHECK_FALSE(names.find(mapped.first()).name);
    CHECK_FALSE(names.find(mapped.second()).name);
  }
  SECTION("the file is open for writing") {
    const int writer = ::open(mapped.path.c_str(), O_WRONLY);
    CHECK_FALSE(names.find(mapped.first()).name);
    names.learn(mapped.first());
    names.finish();
    ::close(writer);
    CHECK(names.find(mapped.first()).name);
  }
  SECTION("the file becomes shorter, and longer again") {
    fs::resize_file(mapped.path, half);
    fs::resize_file(mapped.path, 2 * half);
    mapped.read();
    CHECK_FALSE(names.find(mapped.first()).name);
    CHECK_FALSE(names.find(mapped.second()).name);
  }
}

TEST_CASE("a lock that the program has on the file, and descriptors that it closes, are its own affair") {
  const test::TemporaryFolder folder;
  const TablePath at;
  const Mapped mapped(folder.path);
  const int file = ::open(mapped.path.c_str(), O_RDONLY);
  struct flock lock {};
  lock.l_type = F_RDLCK;
  REQUIRE(::fcntl(file, F_SETLK, &lock) == 0);
  FileNames names(NameTable(at.path), 10s, 10s);
  for (int i = 0; i < 3; ++i) names.find(mapped.first());
  const auto locked = [&] {  // as another process sees it
    const pid_t child = ::fork();
    if (child == 0) {
      struct flock other {};
      other.l_type = F_WRLCK;
      ::_exit(::fcntl(file, F_GETLK, &other) == 0 && other.l_type != F_UNLCK ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    return status == 0;
  };
  CHECK(locked());
  ::close(file);
}
