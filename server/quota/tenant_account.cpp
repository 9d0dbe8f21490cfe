#include "tenant_account.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the counters are shared by processes");

constexpr std::uint64_t lease_number_max = std::uint64_t{1} << 48;

// Numbers that a hostile process may have written: their sum is never small because of that.
std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? ~std::uint64_t{0} : a + b;
}

std::uint64_t all_of(const AccountSlot& slot, std::size_t device) {
  return add(add(slot.charged[device], slot.taken[device]), slot.inherited[device]);
}

[[noreturn]] void fail(const char* what) { throw SystemError(std::string(what) + ": " + std::strerror(errno)); }

}  // namespace

std::size_t TenantAccount::bytes_of(std::size_t slots) { return sizeof(Header) + slots * sizeof(AccountSlot); }

void* TenantAccount::map(int descriptor, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

TenantAccount::TenantAccount(std::size_t slots)
    : descriptor_(::memfd_create("fargpu-account", MFD_CLOEXEC | MFD_ALLOW_SEALING)), slots_(slots), memory_(nullptr) {
  if (descriptor_ < 0) fail("memfd_create");
  // A process that has the account may write to it, but not take it away from under the others.
  const bool made = ::ftruncate(descriptor_, static_cast<off_t>(bytes_of(slots))) == 0 &&
                    ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
                    (memory_ = map(descriptor_, bytes_of(slots)));
  if (!made) {
    ::close(descriptor_);
    fail("shared memory for a tenant's account");
  }
  header().unreserved_max = header().host_max = header().bandwidth = no_limit;
}

TenantAccount TenantAccount::open(int descriptor) {
  struct stat status {};
  void* memory = nullptr;
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor, &status) != 0 ||
      static_cast<std::size_t>(status.st_size) < bytes_of(1) ||
      !(memory = map(descriptor, static_cast<std::size_t>(status.st_size)))) {
    ::close(descriptor);
    throw SystemError("what was given is no tenant's account");
  }
  return {descriptor, (static_cast<std::size_t>(status.st_size) - sizeof(Header)) / sizeof(AccountSlot), memory};
}

TenantAccount::TenantAccount(TenantAccount&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      slots_(other.slots_),
      memory_(std::exchange(other.memory_, nullptr)),
      taken_over_(std::move(other.taken_over_)) {}

TenantAccount::~TenantAccount() {
  if (memory_) ::munmap(memory_, bytes_of(slots_));
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::size_t TenantAccount::used() { return std::min<std::uint64_t>(header().used, slots_); }

std::size_t TenantAccount::begin(std::uint64_t lease, bool unreserved) {
  for (std::size_t number = 0; number < slots_; ++number) {
    AccountSlot& free = slot(number);
    if (free.lease != 0) continue;
    end(number);
    free.pace = pace_of(lease);
    free.unreserved = unreserved;
    free.lease = lease;
    header().used = std::max<std::uint64_t>(header().used, number + 1);
    return number;
  }
  return slots_;
}

// That of the lease's other sessions, or one that no session goes by.
std::size_t TenantAccount::pace_of(std::uint64_t lease) {
  std::vector<bool> taken(slots_);
  for (std::size_t number = 0; number < used(); ++number) {
    const AccountSlot& one = slot(number);
    if (one.lease == 0) continue;
    const std::uint64_t pace = std::min<std::uint64_t>(one.pace, slots_ - 1);
    if (one.lease == lease) return pace;
    taken[pace] = true;
  }
  const auto free = static_cast<std::size_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
  const std::size_t pace = std::min(free, slots_ - 1);
  slot(pace).paid = 0;
  return pace;
}

std::atomic<std::int64_t>& TenantAccount::paid(std::size_t number) {
  return slot(std::min<std::uint64_t>(slot(number).pace, slots_ - 1)).paid;
}

std::uint64_t TenantAccount::moved(std::uint64_t lease) {
  std::uint64_t sum = 0;
  for (std::size_t number = 0; number < used(); ++number)
    if (slot(number).lease == lease) sum = add(sum, slot(number).moved);
  return sum;
}

void TenantAccount::end(std::size_t number) {
  AccountSlot& gone = slot(number);
  gone.lease = 0;
  for (auto& bytes : gone.charged) bytes = 0;
  for (auto& bytes : gone.held) bytes = 0;
  for (auto& bytes : gone.away) bytes = 0;
  for (auto& bytes : gone.taken) bytes = 0;
  for (auto& bytes : gone.inherited) bytes = 0;
  gone.host = 0;
  gone.moved = 0;
  gone.alive = 0;
}

void TenantAccount::take_over(std::size_t number, std::uint64_t lease, bool unreserved) {
  AccountSlot& goes_on = slot(number);
  goes_on.lease = lease;
  goes_on.unreserved = unreserved;
  for (auto& bytes : goes_on.inherited) bytes = 0;
  header().used = std::max<std::uint64_t>(header().used, number + 1);
  taken_over_.resize(std::max(taken_over_.size(), number + 1));
  taken_over_[number] = true;
}

std::uint64_t TenantAccount::all_taken_over(bool all) {
  std::uint64_t highest = 0;
  for (std::size_t number = 0; number < slots_; ++number) {
    if (all && !taken_over_.empty() && !taken_over(number)) end(number);
    // A worker may have written any number.
    highest = std::max<std::uint64_t>(highest, std::min<std::uint64_t>(slot(number).lease, lease_number_max));
  }
  taken_over_.clear();
  return highest;
}

bool TenantAccount::same_memory(const TenantAccount& other) const {
  struct stat own {
  }, theirs{};
  return ::fstat(descriptor_, &own) == 0 && ::fstat(other.descriptor_, &theirs) == 0 && own.st_dev == theirs.st_dev &&
         own.st_ino == theirs.st_ino;
}

std::uint64_t TenantAccount::held(std::uint64_t lease, int device) {
  const auto d = static_cast<std::size_t>(device);
  std::uint64_t sum = 0;
  for (std::size_t number = 0; number < used(); ++number) {
    AccountSlot& one = slot(number);
    if (one.lease == lease) sum = add(sum, all_of(one, d));
  }
  return sum;
}

std::uint64_t TenantAccount::held_of_host(std::uint64_t lease) {
  std::uint64_t sum = 0;
  for (std::size_t number = 0; number < used(); ++number)
    if (slot(number).lease == lease) sum = add(sum, slot(number).host);
  return sum;
}

std::uint64_t TenantAccount::held_unreserved() {
  std::uint64_t sum = 0;
  for (std::size_t number = 0; number < used(); ++number) {
    AccountSlot& one = slot(number);
    if (one.lease == 0 || one.unreserved == 0) continue;
    for (std::size_t d = 0; d < limits::devices_max; ++d) sum = add(sum, all_of(one, d));
  }
  return sum;
}

}  // namespace fargpu::server
