#include "name_table.h"

#include <fcntl.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "client/base/environment.h"
#include "own_file.h"

namespace fargpu::client {
namespace {

constexpr long tmpfs = 0x01021994;

struct Record {
  ContentName name{};
  ContentName check{};
};
static_assert(sizeof(Record) == NameTable::record_bytes);

/// What a record is of, and its name: what is hashed.
struct Checked {
  std::array<char, 16> kind{'f', 'a', 'r', 'g', 'p', 'u', ' ', 'n', 'a', 'm', 'e', 's', ' ', '2'};
  std::array<std::uint64_t, 8> of{};
  std::array<char, 40> boot{};
  ContentName name{};

  ContentName hash() const { return name_content(std::as_bytes(std::span(this, 1))); }
};
static_assert(sizeof(Checked) == 16 + 64 + 40 + 32);

Checked checked(const NameTable::Of& of, const ContentName& name = {}) {
  Checked result;
  result.of = {of.state.device,     of.state.inode, of.state.size, of.state.modified_ns,
               of.state.changed_ns, of.state.mount, of.offset,     of.bytes};
  std::copy(of.state.boot.begin(), of.state.boot.end(), result.boot.begin());
  result.name = name;
  return result;
}

/// The place of the first of the records that may be of this, and which of them goes where all are taken.
struct Slots {
  explicit Slots(const NameTable::Of& of) {
    const ContentName hash = checked(of).hash();
    std::uint64_t word = 0;
    std::memcpy(&word, hash.data(), sizeof(word));
    first = word % (NameTable::records / NameTable::ways) * NameTable::ways * sizeof(Record);
    leaves = std::to_integer<std::size_t>(hash[sizeof(word)]) % NameTable::ways;
  }
  std::uint64_t first = 0;
  std::size_t leaves = 0;
};

using Records = std::array<Record, NameTable::ways>;

/// Whether what lies at the path is the user's own table. In a folder where all may write it can be another's.
bool is_own(const OwnFile& file) {
  OwnFile::Facts facts;
  return file && file.facts(facts) && facts.regular && facts.owner == ::geteuid() && facts.links == 1 &&
         (facts.mode & 077) == 0 && facts.file_system == tmpfs;
}

// What lies behind the table's end is no record.
Records read(const OwnFile& file, std::uint64_t at) {
  Records records{};
  for (std::size_t i = 0; i < records.size(); ++i)
    if (!file.read_at(at + i * sizeof(Record), std::as_writable_bytes(std::span(&records[i], 1)))) records[i] = {};
  return records;
}

}  // namespace

NameTable NameTable::of_user() {
  return NameTable(environment_withheld() ? "" : "/dev/shm/fargpu-names-" + std::to_string(::geteuid()));
}

bool NameTable::may_be_used() const {
  const auto folder = path_.substr(0, path_.rfind('/'));
  struct statfs system {};
  return !path_.empty() && ::syscall(SYS_statfs, folder.c_str(), &system) == 0 && system.f_type == tmpfs &&
         ::syscall(SYS_faccessat, AT_FDCWD, folder.c_str(), W_OK | X_OK) == 0;
}

bool NameTable::can_be_opened() const {
  const OwnFile file(path_, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  return file ? is_own(file) : file.error() == ENOENT;
}

std::optional<ContentName> NameTable::find(const Of& of) const {
  const OwnFile file(path_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (!is_own(file)) return std::nullopt;
  for (const Record& record : read(file, Slots(of).first))
    if (record.check == checked(of, record.name).hash()) return record.name;
  return std::nullopt;
}

void NameTable::add(const Of& of, const ContentName& name) const {
  if (path_.empty()) return;
  const OwnFile file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  if (!is_own(file)) return;
  const Slots slots(of);
  const Records there = read(file, slots.first);
  std::size_t at = slots.leaves;
  for (std::size_t i = 0; i < there.size(); ++i)
    if (there[i].check == ContentName{}) at = i;
  const Record record{name, checked(of, name).hash()};
  (void)file.write_at(slots.first + at * sizeof(Record), std::as_bytes(std::span(&record, 1)));
}

}  // namespace fargpu::client
