#include "driver/shared_event.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "driver/failure.h"

namespace fargpu::softgpu {
namespace {

constexpr char folder[] = "/dev/shm/";
constexpr char prefix[] = "fargpu-softgpu-event-";
constexpr size_t file_bytes = 4096;
constexpr off_t recording = 0;  // the byte that is locked while a recording gets its number

std::string random_name() {
  unsigned char bytes[16];
  require(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes), CUDA_ERROR_OPERATING_SYSTEM);
  std::string name = prefix;
  for (unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

bool is_name(const std::string& name) {
  const size_t begin = sizeof(prefix) - 1;
  return name.size() == begin + 32 && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789abcdef", begin) == std::string::npos;
}

/// Locks of open file descriptions: they end with the process, whatever ends it.
bool lock(int file, int command, short type, off_t byte) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return fcntl(file, command, &range) == 0;
}

}  // namespace

// The maker of an event holds a lock on its file.
void SharedEvent::sweep() {
  DIR* entries = opendir(folder);
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (!is_name(entry->d_name)) continue;
    std::string path = std::string(folder) + entry->d_name;
    int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    struct stat info;
    // One without bytes is being made.
    if (fstat(file, &info) == 0 && info.st_size > 0 && flock(file, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(file);
  }
  closedir(entries);
}

struct SharedEvent::Page {
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> over;
};

SharedEvent::SharedEvent(std::string name, bool is_own) : name_(std::move(name)), is_own_(is_own) {}

void SharedEvent::map() {
  questions_ = ::open((folder + name_).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  void* memory = questions_ < 0 ? MAP_FAILED : mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  require(memory != MAP_FAILED, CUDA_ERROR_OPERATING_SYSTEM);
  page_ = static_cast<Page*>(memory);
}

std::shared_ptr<SharedEvent> SharedEvent::create() {
  std::shared_ptr<SharedEvent> event(new SharedEvent(random_name(), true));
  event->file_ = ::open((folder + event->name_).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  require(event->file_ >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  require(flock(event->file_, LOCK_EX | LOCK_NB) == 0 && ftruncate(event->file_, file_bytes) == 0,
          CUDA_ERROR_OPERATING_SYSTEM);
  event->map();
  return event;
}

std::shared_ptr<SharedEvent> SharedEvent::open(const CUipcEventHandle& handle) {
  std::string name(handle.reserved, strnlen(handle.reserved, sizeof(handle.reserved)));
  require(is_name(name));
  std::shared_ptr<SharedEvent> event(new SharedEvent(name, false));
  event->file_ = ::open((folder + name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat info;
  require(event->file_ >= 0 && fstat(event->file_, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file_bytes);
  // The process that made the event holds its lock for as long as it lives.
  require(flock(event->file_, LOCK_SH | LOCK_NB) != 0);
  event->map();
  return event;
}

SharedEvent::~SharedEvent() {
  if (is_own_ && file_ >= 0) unlink((folder + name_).c_str());
  if (page_ != nullptr) munmap(page_, file_bytes);
  if (questions_ >= 0) close(questions_);
  if (file_ >= 0) close(file_);
}

CUipcEventHandle SharedEvent::handle() const {
  CUipcEventHandle handle = {};
  static_assert(sizeof(prefix) + 32 <= sizeof(handle.reserved));
  std::memcpy(handle.reserved, name_.data(), name_.size());
  return handle;
}

uint64_t SharedEvent::begin_record() {
  std::lock_guard guard(mutex_);
  require(lock(file_, F_OFD_SETLKW, F_WRLCK, recording), CUDA_ERROR_OPERATING_SYSTEM);
  uint64_t number = page_->recorded.load() + 1;
  // Before others see the number: without this lock they would take the recording for one whose
  // process has ended.
  lock(file_, F_OFD_SETLK, F_WRLCK, static_cast<off_t>(number));
  page_->recorded.store(number);
  lock(file_, F_OFD_SETLK, F_UNLCK, recording);
  return number;
}

void SharedEvent::end_record(uint64_t number) {
  uint64_t over = page_->over.load();
  while (over < number && !page_->over.compare_exchange_weak(over, number)) {}
  lock(file_, F_OFD_SETLK, F_UNLCK, static_cast<off_t>(number));
}

uint64_t SharedEvent::last() const { return page_->recorded.load(); }

bool SharedEvent::is_over(uint64_t number) const { return page_->over.load() >= number; }

bool SharedEvent::is_alive(uint64_t number) const {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(number);
  range.l_len = 1;
  return fcntl(questions_, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

}  // namespace fargpu::softgpu
