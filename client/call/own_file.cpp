#include "own_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace fargpu::client {
namespace {

#ifdef SYS_close_range
constexpr long close_range = SYS_close_range;
#else
constexpr long close_range = 436;  // on all architectures
#endif
constexpr unsigned close_range_unshare = 2;

constexpr int descriptors_copied = 64;

// What headers before Linux 6.8 do not have.
constexpr unsigned statx_mount = 0x1000, statx_mount_unique = 0x4000;
constexpr std::size_t statx_mount_at = 144;
static_assert(offsetof(struct statx, stx_dev_minor) + sizeof(std::uint32_t) == statx_mount_at);
constexpr int read_nowait = 8;

std::uint64_t mount_of(const struct statx& status) {
  std::uint64_t mount = 0;
  if ((status.stx_mask & (statx_mount | statx_mount_unique)) != 0)
    std::memcpy(&mount, reinterpret_cast<const std::byte*>(&status) + statx_mount_at, sizeof(mount));
  return mount;
}

bool is_message_queue(int descriptor) {
  std::array<long, 64> attributes;
  return ::syscall(SYS_mq_getsetattr, descriptor, nullptr, attributes.data()) == 0;
}

}  // namespace

std::uint64_t clock_ns(clockid_t clock) {
  struct timespec time {};
  if (::syscall(SYS_clock_gettime, clock, &time) != 0) return 0;
  return unix_ns(time.tv_sec, static_cast<std::uint32_t>(time.tv_nsec)).value_or(0);
}

std::optional<std::uint64_t> unix_ns(std::int64_t seconds, std::uint32_t nanoseconds) {
  constexpr std::uint64_t second = 1'000'000'000;
  if (seconds < 0 || nanoseconds >= second) return std::nullopt;
  if (static_cast<std::uint64_t>(seconds) >= ~std::uint64_t{0} / second) return std::nullopt;
  return static_cast<std::uint64_t>(seconds) * second + nanoseconds;
}

bool take_own_descriptors() {
  for (int descriptor = 0; descriptor < descriptors_copied; ++descriptor)
    if (is_message_queue(descriptor)) return false;
  return ::syscall(close_range, 0u, ~0u, close_range_unshare) == 0;
}

OwnFile::OwnFile(const std::string& path, int flags, unsigned mode)
    : descriptor_(static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), flags | O_CLOEXEC, mode))),
      error_(descriptor_ < 0 ? errno : 0) {}

OwnFile::~OwnFile() {
  if (descriptor_ >= 0) ::syscall(SYS_close, descriptor_);
}

std::string OwnFile::path_of_descriptor() const { return "/proc/thread-self/fd/" + std::to_string(descriptor_); }

bool OwnFile::facts(Facts& facts) const {
  struct statx status {};
  struct statfs system {};
  constexpr unsigned wanted = STATX_BASIC_STATS, mount = statx_mount | statx_mount_unique;
  if (::syscall(SYS_statx, descriptor_, "", AT_EMPTY_PATH, wanted | mount, &status) != 0 ||
      (status.stx_mask & wanted) != wanted || ::syscall(SYS_fstatfs, descriptor_, &system) != 0)
    return false;
  const auto modified = unix_ns(status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec);
  const auto changed = unix_ns(status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec);
  if (!modified || !changed) return false;
  facts = {.regular = S_ISREG(status.stx_mode),
           .device = ::gnu_dev_makedev(status.stx_dev_major, status.stx_dev_minor),
           .inode = status.stx_ino,
           .size = status.stx_size,
           .mount = mount_of(status),
           .modified_ns = *modified,
           .changed_ns = *changed,
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

bool OwnFile::read_at_once(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const struct iovec part { into.data(), into.size() };
    const long got = ::syscall(SYS_preadv2, descriptor_, &part, 1ul, offset, 0ul, read_nowait);
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
int OwnFile::lease() const {
  const f_owner_ex owner{F_OWNER_TID, static_cast<pid_t>(::syscall(SYS_gettid))};
  if (::fcntl(descriptor_, F_SETOWN_EX, &owner) != 0 || ::fcntl(descriptor_, F_SETSIG, SIGURG) != 0) return errno;
  if (::fcntl(descriptor_, F_SETLEASE, F_RDLCK) != 0) return errno;
  return ::fcntl(descriptor_, F_SETLEASE, F_UNLCK) == 0 ? 0 : errno;
}

}  // namespace fargpu::client
