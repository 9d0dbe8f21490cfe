#include "file_names.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <new>
#include <utility>

#include "own_file.h"
#include "protocol/limits.h"
#include "protocol/quiet_thread.h"

namespace fargpu::client {
namespace {

using namespace std::chrono_literals;

constexpr int learning_niceness = 10;
constexpr auto no_file_for = 1s;
/// Half of what hashing a chunk takes.
constexpr auto finding_most = 300us;
constexpr std::size_t lessons_max = NameTable::records;
/// So many of them have memory of their own. The name of the others is hashed once more.
constexpr std::size_t copies_max = 16;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

}  // namespace

FileNames::~FileNames() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  asked_.notify_all();
  taught_.notify_all();
  for (std::thread* const thread : {&finding_, &learning_})
    if (thread->joinable()) thread->join();
}

// Under the mutex.
bool FileNames::start() {
  if (ended_ || unusable_) return false;
  if (finding_.joinable()) return true;
  try {
    finding_ = quiet_thread("fargpu-files", [this] { serve(questions_, asked_); });
    learning_ = quiet_thread("fargpu-learns", [this] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), learning_niceness);  // of this thread alone
      serve(lessons_, taught_);
    });
  } catch (const std::exception&) {
    unusable_ = true;
  }
  return !unusable_;
}

// What is left at the end is not done, and those that wait for it hear so.
void FileNames::serve(Work& work, std::condition_variable& changed) {
  const bool able = take_own_descriptors();
  std::unique_lock lock(mutex_);
  if (!able) unusable_ = true;
  while (true) {
    changed.wait(lock, [&] { return ended_ || unusable_ || !work.empty(); });
    if (ended_ || unusable_) break;
    const auto next = std::move(work.front());
    work.pop_front();
    ++underway_;
    lock.unlock();
    next();
    lock.lock();
    --underway_;
    done_.notify_all();
  }
  const Work left = std::exchange(work, {});
  lock.unlock();
  asked_.notify_all();
  taught_.notify_all();
  done_.notify_all();
}

FileNames::Found FileNames::find(std::span<const std::byte> memory) {
  const auto promise = std::make_shared<std::promise<Found>>();
  auto answer = promise->get_future();
  {
    const std::lock_guard lock(mutex_);
    if (!start()) return {};
    questions_.push_back([this, memory, promise] {
      Found found;
      try {
        found = find_now(memory);
      } catch (const std::exception&) {  // for want of memory
      }
      promise->set_value(std::move(found));
    });
  }
  asked_.notify_one();
  // A question that is dropped breaks its promise.
  try {
    return answer.get();
  } catch (const std::future_error&) {
    return {};
  }
}

// The pages are looked at on both sides of the mapping: if they are a file's both times, and the program puts another
// mapping there meanwhile, they were this mapping's at one of them at least. The file is looked at afterwards: what it
// had when it was last seen at rest, it had then.
FileNames::Found FileNames::find_now(std::span<const std::byte> memory) {
  Found found;
  if (!has_pages_of_files(memory)) return found;
  auto place = place_of(memory);
  if (!place || !has_pages_of_files(memory)) return found;
  const auto file = FileAtRest::open(*place);
  const auto state = file ? file->state() : std::nullopt;
  if (!state || place->offset + place->bytes > state->size) return found;
  found.name = table_.find({*state, place->offset, place->bytes});
  found.place = std::move(place);
  return found;
}

// Finding the mapping may take long in a program that has many. That is in vain where the file is none to know, and no
// better than hashing where it takes too long.
std::optional<FilePlace> FileNames::place_of(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uint64_t>(memory.data());
  const auto now = std::chrono::steady_clock::now();
  if (now < no_file_until_ && address >= no_file_.begin && address < no_file_.end) return std::nullopt;
  const auto mapping = FileMapping::at(address);
  if (std::chrono::steady_clock::now() - now > finding_most) {
    no_file_ = {.begin = 0, .end = ~std::uint64_t{0}};
    no_file_until_ = now + no_file_for;
  }
  auto place = mapping ? mapping->place_of(memory) : std::nullopt;
  if (mapping && (!place || !FileAtRest::open(*place))) {
    no_file_ = *mapping;
    no_file_until_ = now + no_file_for;
    return std::nullopt;
  }
  return place;
}

// Nothing that the program asks for fails for this.
void FileNames::learn(const FilePlace& place, const ContentName& name, Memory bytes) try {
  const std::lock_guard lock(mutex_);
  if (!start() || lessons_.size() >= lessons_max) return;
  if (lessons_.size() < copies_max) add_lesson({place, name, std::move(bytes)});
  else add_lesson({place, std::nullopt, nullptr});
} catch (const std::bad_alloc&) {}

void FileNames::learn(std::span<const std::byte> memory) try {
  {
    const std::lock_guard lock(mutex_);
    if (!start() || lessons_.size() + questions_.size() >= lessons_max) return;
    questions_.push_back([this, memory] {
      try {
        auto place = place_of(memory);
        const std::lock_guard adding(mutex_);
        if (place) add_lesson({std::move(*place), std::nullopt, nullptr});
      } catch (const std::exception&) {  // for want of memory
      }
    });
  }
  asked_.notify_one();
} catch (const std::bad_alloc&) {}

// Under the mutex.
void FileNames::add_lesson(Lesson lesson) {
  lessons_.push_back([this, lesson = std::move(lesson)] {
    try {
      const auto room = std::make_unique_for_overwrite<std::byte[]>(lesson.place.bytes);
      learn_now(lesson, {room.get(), lesson.place.bytes});
    } catch (const std::exception&) {  // it is not learnt
    }
  });
  taught_.notify_one();
}

// What is learnt is of the file, and of nothing that the program does with its memory: the bytes are read from it while
// it is at rest.
void FileNames::learn_now(const Lesson& lesson, std::span<std::byte> room) const {
  const FilePlace& place = lesson.place;
  const auto file = FileAtRest::open(place);
  const std::uint64_t now = now_ns();
  const auto before = file ? file->state() : std::nullopt;
  if (!before || is_too_new(*before, now)) return;
  const NameTable::Of of{*before, place.offset, place.bytes};
  if (table_.find(of) || !file->read(place.offset, room)) return;
  if (lesson.name && std::memcmp(room.data(), lesson.bytes.get(), room.size()) != 0) return;
  const ContentName name = lesson.name ? *lesson.name : hash_image(room);
  if (file->state() == before) table_.add(of, name);
}

void FileNames::finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return unusable_ || ended_ || (questions_.empty() && lessons_.empty() && underway_ == 0); });
}

}  // namespace fargpu::client
