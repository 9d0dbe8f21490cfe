#include "memory/shared_use.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/log.h"

namespace fargpu::softgpu {
namespace {

struct flock slot_lock(size_t slot) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(slot);
  lock.l_len = 1;
  return lock;
}

bool take(int file, size_t slot) {
  struct flock lock = slot_lock(slot);
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

std::shared_ptr<SharedUse> SharedUse::open(const std::string& path) {
  constexpr size_t bytes = slots * devices_max * sizeof(Counter);
  int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  void* mapping = MAP_FAILED;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0)
    mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapping == MAP_FAILED) {
    log_line("FARGPU_SOFTGPU_SHARED: " + path + ": " + std::strerror(errno));
    if (file >= 0) close(file);
    return nullptr;
  }
  auto* counters = static_cast<Counter*>(mapping);
  for (size_t slot = 0; slot < slots; ++slot) {
    if (!take(file, slot)) continue;
    for (size_t device = 0; device < devices_max; ++device) counters[slot * devices_max + device] = 0;
    return std::shared_ptr<SharedUse>(new SharedUse(file, counters, slot));
  }
  log_line("FARGPU_SOFTGPU_SHARED: " + path + ": all slots are taken");
  munmap(mapping, bytes);
  close(file);
  return nullptr;
}

SharedUse::~SharedUse() {
  for (size_t device = 0; device < devices_max; ++device) own(static_cast<int>(device)) = 0;
  munmap(counters_, slots * devices_max * sizeof(Counter));
  close(file_);
}

uint64_t SharedUse::used(int device) const {
  uint64_t sum = 0;
  for (size_t slot = 0; slot < slots; ++slot) sum += counters_[slot * devices_max + static_cast<size_t>(device)];
  return sum;
}

// A process that has died leaves its slot as it was, without the lock.
void SharedUse::forget_dead() {
  for (size_t slot = 0; slot < slots; ++slot) {
    struct flock lock = slot_lock(slot);
    if (slot == slot_ || fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) continue;
    for (size_t device = 0; device < devices_max; ++device) counters_[slot * devices_max + device] = 0;
  }
}

bool SharedUse::try_charge(int device, uint64_t bytes, uint64_t total_bytes) {
  own(device) += bytes;
  if (used(device) <= total_bytes) return true;
  forget_dead();
  if (used(device) <= total_bytes) return true;
  own(device) -= bytes;
  return false;
}

}  // namespace fargpu::softgpu
