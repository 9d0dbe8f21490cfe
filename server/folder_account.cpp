#include "folder_account.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace fargpu::server {
namespace {

using Used = FolderAccount::Used;

// What the file holds. Workers of one host share it, so numbers have the host's byte order.
struct Record {
  std::uint64_t magic = 0;
  Used used;
};
constexpr std::uint64_t magic = 0x3174636361676661;  // "afgacct1"

std::optional<Used> read_record(int file) {
  Record record;
  if (::pread(file, &record, sizeof record, 0) != sizeof record || record.magic != magic) return std::nullopt;
  return record.used;
}

/// The account's file, locked for as long as this lives. Nobody holds it for longer than a full count of the folder
/// takes.
class Locked {
 public:
  explicit Locked(const std::filesystem::path& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    struct stat status {};
    usable_ = file_ >= 0 && ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode) && ::flock(file_, LOCK_EX) == 0;
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() {
    if (file_ >= 0) ::close(file_);
  }

  std::optional<Used> read() const { return usable_ ? read_record(file_) : std::nullopt; }
  void write(Used used) const {
    if (!usable_) return;
    const Record record{magic, used};
    // Half a record is none: the next reader of it counts.
    if (::pwrite(file_, &record, sizeof record, 0) != sizeof record) [[maybe_unused]]
      const int cut = ::ftruncate(file_, 0);
  }

 private:
  const int file_;
  bool usable_ = false;
};

bool within(Used used, Used limit) { return used.bytes <= limit.bytes && used.files <= limit.files; }

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? ~std::uint64_t{0} : result;
}

}  // namespace

// Without the lock, which a worker may keep: whole records are written.
std::optional<Used> FolderAccount::read() const {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct stat status {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const auto used = regular ? read_record(file) : std::nullopt;
  ::close(file);
  return used;
}

bool FolderAccount::charge(Used more, Used limit) const {
  const Locked file(path_);
  auto used = file.read();
  if (!used) return true;
  *used = {sum(used->bytes, more.bytes), sum(used->files, more.files)};
  file.write(*used);
  return !within(*used, limit);
}

void FolderAccount::give_back(Used less) const {
  const Locked file(path_);
  if (const auto used = file.read())
    file.write({used->bytes - std::min(used->bytes, less.bytes), used->files - std::min(used->files, less.files)});
}

void FolderAccount::recount(Used limit, const std::function<Used()>& count) const {
  const Locked file(path_);
  if (const auto used = file.read(); used && within(*used, limit)) return;  // another worker was quicker
  file.write(count());
}

}  // namespace fargpu::server
