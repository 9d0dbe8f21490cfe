#include "memory/physical_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fargpu::softgpu {

bool MemoryAccount::try_charge(uint64_t bytes) {
  uint64_t used = used_bytes_.load();
  do {
    if (bytes > total_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  if (!shared_ || shared_->try_charge(device_, bytes, total_bytes_)) return true;
  used_bytes_ -= bytes;
  return false;
}

void MemoryAccount::release(uint64_t bytes) {
  used_bytes_ -= bytes;
  if (shared_) shared_->release(device_, bytes);
}

uint64_t MemoryAccount::free_bytes() const {
  const uint64_t used = shared_ ? shared_->used(device_) : used_bytes_.load();
  return total_bytes_ > used ? total_bytes_ - used : 0;
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::create(std::shared_ptr<MemoryAccount> account, uint64_t bytes,
                                                       Sharing sharing) {
  if (!account->try_charge(bytes)) return nullptr;
  int file = -1;
  void* mapping = MAP_FAILED;
  if (sharing == Sharing::file) {
    file = memfd_create("softgpu-memory", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0)
      mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  } else {
    mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    if (file >= 0) close(file);
    account->release(bytes);
    return nullptr;
  }
  return std::shared_ptr<PhysicalMemory>(
      new PhysicalMemory(std::move(account), static_cast<std::byte*>(mapping), bytes, file));
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::import(int file) {
  struct stat status = {};
  if (fstat(file, &status) != 0 || status.st_size <= 0) return nullptr;
  int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  auto bytes = static_cast<uint64_t>(status.st_size);
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, own, 0);
  if (mapping == MAP_FAILED) {
    close(own);
    return nullptr;
  }
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(nullptr, static_cast<std::byte*>(mapping), bytes, own));
}

PhysicalMemory::~PhysicalMemory() {
  munmap(host_, bytes_);
  if (file_ >= 0) close(file_);
  if (account_) account_->release(bytes_);
}

}  // namespace fargpu::softgpu
