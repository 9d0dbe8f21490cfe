#include "own_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

namespace fargpu::client {
namespace {

#ifdef SYS_close_range
constexpr long close_range = SYS_close_range;
#else
constexpr long close_range = 436;  // on all architectures
#endif
constexpr unsigned close_range_unshare = 2;

std::uint64_t nanoseconds(const struct statx_timestamp& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

bool take_own_descriptors() { return ::syscall(close_range, 0u, ~0u, close_range_unshare) == 0; }

OwnFile::OwnFile(const std::string& path, int flags, unsigned mode)
    : descriptor_(static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), flags | O_CLOEXEC, mode))) {}

OwnFile::~OwnFile() {
  if (descriptor_ >= 0) ::syscall(SYS_close, descriptor_);
}

std::string OwnFile::path_of_descriptor() const { return "/proc/thread-self/fd/" + std::to_string(descriptor_); }

bool OwnFile::facts(Facts& facts) const {
  struct statx status {};
  struct statfs system {};
  constexpr unsigned wanted = STATX_BASIC_STATS;
  if (::syscall(SYS_statx, descriptor_, "", AT_EMPTY_PATH, wanted, &status) != 0 ||
      (status.stx_mask & wanted) != wanted || ::syscall(SYS_fstatfs, descriptor_, &system) != 0)
    return false;
  facts = {.regular = S_ISREG(status.stx_mode),
           .device = ::gnu_dev_makedev(status.stx_dev_major, status.stx_dev_minor),
           .inode = status.stx_ino,
           .size = status.stx_size,
           .modified_ns = nanoseconds(status.stx_mtime),
           .changed_ns = nanoseconds(status.stx_ctime),
           .owner = status.stx_uid,
           .mode = status.stx_mode & 07777u,
           .links = status.stx_nlink,
           .file_system = static_cast<long>(system.f_type)};
  return true;
}

long OwnFile::read(std::span<std::byte> into) const {
  return ::syscall(SYS_read, descriptor_, into.data(), into.size());
}

bool OwnFile::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const long got = ::syscall(SYS_pread64, descriptor_, into.data(), into.size(), offset);
    if (got <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool OwnFile::write_at(std::uint64_t offset, std::span<const std::byte> from) const {
  return ::syscall(SYS_pwrite64, descriptor_, from.data(), from.size(), offset) == static_cast<long>(from.size());
}

int OwnFile::control(unsigned long request, void* argument) const {
  return ::syscall(SYS_ioctl, descriptor_, request, argument) < 0 ? errno : 0;
}

// The kernel grants a lease for reading only where nobody can write, and the lease is given back at once. One that
// opens the file for writing just then is held up for that long, and the kernel tells the lease's owner by a signal,
// which would end a program that does not know of it. So the owner is this thread, which blocks signals, and the signal
// is one that is ignored where it is not.
bool OwnFile::nobody_writes() const {
  const f_owner_ex owner{F_OWNER_TID, static_cast<pid_t>(::syscall(SYS_gettid))};
  if (::fcntl(descriptor_, F_SETOWN_EX, &owner) != 0 || ::fcntl(descriptor_, F_SETSIG, SIGURG) != 0) return false;
  if (::fcntl(descriptor_, F_SETLEASE, F_RDLCK) != 0) return false;
  return ::fcntl(descriptor_, F_SETLEASE, F_UNLCK) == 0;
}

}  // namespace fargpu::client
