#include "file_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <vector>

namespace fargpu::client {
namespace {

constexpr long ext_file_system = 0xEF53, xfs_file_system = 0x58465342;
constexpr std::uint64_t second_ns = 1'000'000'000;
constexpr std::uint64_t times_grow_within_ns = 2 * second_ns;

constexpr std::uint64_t page_present = 1ull << 63, page_swapped = 1ull << 62, page_of_file = 1ull << 61;
constexpr std::size_t pages_at_a_time = 512;
constexpr std::size_t line_bytes_max = 1 << 14;

/// Takes words off the front of a line.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  bool number(std::uint64_t& value, int base, char behind) {
    const auto got = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value, base);
    if (got.ec != std::errc{} || got.ptr == rest_.data() + rest_.size()) return false;
    if (*got.ptr != behind) return false;
    rest_.remove_prefix(static_cast<std::size_t>(got.ptr - rest_.data()) + 1);
    return true;
  }
  bool skip_word() {
    const auto end = rest_.find(' ');
    if (end == std::string_view::npos) return false;
    rest_.remove_prefix(end + 1);
    return true;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

/// The kernel's procmap_query, which headers before Linux 6.11 do not have.
struct MappingQuery {
  std::uint64_t size = sizeof(MappingQuery);
  std::uint64_t flags = 0;
  std::uint64_t address = 0;
  std::uint64_t begin = 0, end = 0, modes = 0, page = 0, offset = 0, inode = 0;
  std::uint32_t major = 0, minor = 0;
  std::uint32_t path_bytes = 0, build_bytes = 0;
  std::uint64_t path = 0, build = 0;
};
static_assert(sizeof(MappingQuery) == 104);

std::uint64_t address_of(const std::byte* memory) { return reinterpret_cast<std::uint64_t>(memory); }

}  // namespace

// BEGIN-END MODE OFFSET MAJOR:MINOR INODE PATH, with numbers in base 16 but for the inode.
std::optional<FileMapping> FileMapping::parse(const std::string& line) {
  FileMapping mapping;
  std::uint64_t major = 0, minor = 0;
  Words words(line);
  if (!words.number(mapping.begin, 16, '-') || !words.number(mapping.end, 16, ' ') || !words.skip_word() ||
      !words.number(mapping.offset, 16, ' ') || !words.number(major, 16, ':') || !words.number(minor, 16, ' ') ||
      !words.number(mapping.inode, 10, ' '))
    return std::nullopt;
  mapping.device = ::gnu_dev_makedev(static_cast<unsigned>(major), static_cast<unsigned>(minor));
  if (const auto path = words.rest().find('/'); path != std::string_view::npos && mapping.inode != 0)
    mapping.path = words.rest().substr(path);
  return mapping;
}

std::optional<FileMapping> FileMapping::at(std::uint64_t address) {
  const OwnFile maps("/proc/self/maps", O_RDONLY);
  if (!maps) return std::nullopt;
  std::array<char, 1 << 12> path{};
  MappingQuery query{.address = address, .path_bytes = path.size(), .path = reinterpret_cast<std::uint64_t>(&path)};
  const int error = maps.control(_IOWR('f', 17, MappingQuery), &query);
  if (error == ENOTTY) return in_text(maps, address);
  if (error != 0) return std::nullopt;
  path.back() = '\0';
  return FileMapping{query.begin,
                     query.end,
                     query.inode != 0 && path[0] == '/' ? path.data() : "",
                     ::gnu_dev_makedev(query.major, query.minor),
                     query.inode,
                     query.offset};
}

std::optional<FileMapping> FileMapping::in_text(const OwnFile& maps, std::uint64_t address) {
  std::array<std::byte, 1 << 15> buffer;
  std::string line;
  while (true) {
    const long got = maps.read(buffer);
    if (got <= 0) return std::nullopt;
    for (long i = 0; i < got; ++i) {
      const char next = static_cast<char>(buffer[static_cast<std::size_t>(i)]);
      if (next != '\n') {
        if (line.size() < line_bytes_max) line += next;
        continue;
      }
      const auto mapping = line.size() < line_bytes_max ? parse(line) : std::nullopt;
      line.clear();
      if (mapping && address < mapping->end) return address >= mapping->begin ? mapping : std::nullopt;
    }
  }
}

std::optional<FilePlace> FileMapping::place_of(std::span<const std::byte> memory) const {
  const std::uint64_t from = address_of(memory.data());
  if (path.empty() || from < begin || from >= end || memory.size() > end - from) return std::nullopt;
  return FilePlace{path, device, inode, offset + (from - begin), memory.size()};
}

bool has_pages_of_files(std::span<const std::byte> memory) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const OwnFile pages("/proc/self/pagemap", O_RDONLY);
  if (!pages || memory.empty()) return false;
  const std::uint64_t end = (address_of(memory.data()) + memory.size() - 1) / page + 1;
  std::array<std::uint64_t, pages_at_a_time> facts;
  for (std::uint64_t next = address_of(memory.data()) / page; next < end;) {
    const auto some = std::span(facts).first(std::min<std::uint64_t>(end - next, pages_at_a_time));
    if (!pages.read_at(next * sizeof(some[0]), std::as_writable_bytes(some))) return false;
    constexpr std::uint64_t looked_at = page_present | page_swapped | page_of_file;
    if (std::any_of(some.begin(), some.end(),
                    [](std::uint64_t fact) { return (fact & looked_at) != (page_present | page_of_file); }))
      return false;
    next += some.size();
  }
  return true;
}

std::optional<BootId> boot_id() {
  const OwnFile file("/proc/sys/kernel/random/boot_id", O_RDONLY);
  BootId id{};
  if (!file || !file.read_at(0, std::as_writable_bytes(std::span(id)))) return std::nullopt;
  return id;
}

FileAtRest::FileAtRest(const std::string& path) : file_(path, O_RDONLY | O_NONBLOCK | O_NOCTTY) {}

// The path is looked at before it is opened: what lies there by now may be anything, and opening it may do anything.
// Looking alone may wait for ever where it leads to another machine or to a program, as with NFS and FUSE. The devices
// of these have no number of a driver.
std::unique_ptr<FileAtRest> FileAtRest::open(const FilePlace& place) {
  if (::gnu_dev_major(place.device) == 0) return nullptr;
  const OwnFile found(place.path, O_PATH | O_NOFOLLOW);
  OwnFile::Facts facts;
  if (!found || !found.facts(facts) || !facts.regular || facts.device != place.device || facts.inode != place.inode)
    return nullptr;
  if (facts.file_system != ext_file_system && facts.file_system != xfs_file_system) return nullptr;
  std::unique_ptr<FileAtRest> file(new FileAtRest(found.path_of_descriptor()));
  return file->file_ ? std::move(file) : nullptr;
}

std::optional<FileState> FileAtRest::state() const {
  OwnFile::Facts facts;
  const auto boot = boot_id();
  if (!boot || file_.lease() != 0 || !file_.facts(facts) || facts.mount == 0) return std::nullopt;
  return FileState{facts.device, facts.inode, facts.size, facts.modified_ns, facts.changed_ns, facts.mount, *boot};
}

// Tools that write whole file systems, and those whose inodes have no room for more, give times of whole seconds. Of
// these two files may have the same one. The kernel itself gives one in many millions.
bool shows_changes(const FileState& state, std::uint64_t now_ns) {
  if (state.changed_ns % second_ns == 0 || now_ns < times_grow_within_ns) return false;
  return std::max(state.modified_ns, state.changed_ns) <= now_ns - times_grow_within_ns;
}

}  // namespace fargpu::client
