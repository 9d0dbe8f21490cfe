#include "file_names.h"

#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "own_file.h"
#include "protocol/limits.h"
#include "protocol/quiet_thread.h"

namespace fargpu::client {
namespace {

using namespace std::chrono_literals;

constexpr int learning_niceness = 10;
constexpr std::uint64_t second_ns = 1'000'000'000;
constexpr std::uint64_t no_file_for_ns = second_ns, no_lease_for_ns = second_ns, slow_for_ns = second_ns;
constexpr auto end_within = 1s;
constexpr std::size_t lessons_max = NameTable::records;
/// So many of them have memory of their own. The name of the others is hashed once more.
constexpr std::size_t copies_max = 16;

std::uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

}  // namespace

// What is waited for is the kernel's own: with a clock that a tool has set for the program it might never come.
class FileNames::Answer {
 public:
  void give(Found found) {
    found_ = std::move(found);
    if (becomes(given)) ::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  /// Nothing if it does not come in time. Then nobody needs it any more.
  std::optional<Found> wait(std::uint64_t most_ns) {
    const std::uint64_t until = now_ns() + most_ns;
    for (std::uint64_t now = now_ns(); state_ == waiting && now < until; now = now_ns()) {
      const struct timespec rest {
        static_cast<time_t>((until - now) / second_ns), static_cast<long>((until - now) % second_ns)
      };
      ::syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, waiting, &rest, nullptr, 0);
    }
    if (becomes(given_up)) return std::nullopt;
    return std::move(found_);
  }
  bool is_needed() const { return state_ == waiting; }

 private:
  enum State : std::uint32_t { waiting, given, given_up };
  bool becomes(State next) {
    std::uint32_t before = waiting;
    return state_.compare_exchange_strong(before, next);
  }

  std::atomic<std::uint32_t> state_{waiting};
  static_assert(sizeof(state_) == sizeof(std::uint32_t));
  Found found_;
};

FileNames::~FileNames() {
  give_up();
  for (std::thread* const thread : {&finding_, &learning_})
    if (thread->joinable()) thread->join();
}

void FileNames::give_up() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  asked_.notify_all();
  taught_.notify_all();
}

void FileNames::end(std::unique_ptr<FileNames> names) {
  names->give_up();
  std::unique_lock lock(names->mutex_);
  if (names->done_.wait_for(lock, end_within, [&] { return names->running_ == 0; })) return lock.unlock();
  for (std::thread* const thread : {&names->finding_, &names->learning_})
    if (thread->joinable()) thread->detach();
  lock.unlock();
  (void)names.release();
}

// Under the mutex.
bool FileNames::start() {
  if (ended_ || unusable_) return false;
  if (finding_.joinable()) return true;
  unusable_ = !table_.may_be_used();
  if (unusable_) return false;
  try {
    finding_ = quiet_thread("fargpu-files", [this] { serve(questions_, asked_); });
    ++running_;
    learning_ = quiet_thread("fargpu-learns", [this] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), learning_niceness);  // of this thread alone
      serve(lessons_, taught_);
    });
    ++running_;
  } catch (const std::exception&) {
    unusable_ = true;
  }
  return !unusable_;
}

// What is left at the end is not done.
void FileNames::serve(Work& work, std::condition_variable& changed) {
  const bool able = take_own_descriptors() && table_.can_be_opened();
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
  work.clear();
  // The last that is done here, under the mutex: nothing of this is touched afterwards.
  asked_.notify_all();
  taught_.notify_all();
  --running_;
  done_.notify_all();
}

// The answer may take for ever: a path can lead over another machine. A chunk does not wait for that, and those behind
// it do not try for a while.
FileNames::Found FileNames::find(std::span<const std::byte> memory) try {
  const auto answer = std::make_shared<Answer>();
  {
    const std::lock_guard lock(mutex_);
    if (!start() || now_ns() < slow_until_ns_ || questions_.size() >= lessons_max) return {};
    questions_.push_front([this, memory, answer] {  // before questions that nobody waits for
      if (!answer->is_needed()) return;
      Found found;
      try {
        found = find_now(memory);
      } catch (const std::exception&) {  // for want of memory
      }
      answer->give(std::move(found));
    });
  }
  asked_.notify_one();
  if (auto found = answer->wait(patience_ns_)) return std::move(*found);
  const std::lock_guard lock(mutex_);
  slow_until_ns_ = now_ns() + slow_for_ns;
  return {};
} catch (const std::bad_alloc&) {
  return {};
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
  if (file && !state) note_lease(*place, *file);
  if (!state || place->offset + place->bytes > state->size) return found;
  if (shows_changes(*state, clock_ns(CLOCK_REALTIME))) found.name = table_.find({*state, place->offset, place->bytes});
  found.place = std::move(place);
  return found;
}

// Finding the mapping may take long in a program that has many. That is in vain where the file is none to know, and no
// better than hashing where it takes too long.
std::optional<FilePlace> FileNames::place_of(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uint64_t>(memory.data());
  const auto now = now_ns(), used = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  if (now < no_file_until_ns_ && address >= no_file_.begin && address < no_file_.end) return std::nullopt;
  const auto mapping = FileMapping::at(address);
  if (clock_ns(CLOCK_THREAD_CPUTIME_ID) - used > finding_most_ns_) {
    no_file_ = {.begin = 0, .end = ~std::uint64_t{0}};
    no_file_until_ns_ = now + no_file_for_ns;
  }
  auto place = mapping ? mapping->place_of(memory) : std::nullopt;
  if (mapping && (!place || has_no_lease(*place) || !FileAtRest::open(*place))) {
    no_file_ = *mapping;
    no_file_until_ns_ = now + no_file_for_ns;
    return std::nullopt;
  }
  return place;
}

void FileNames::note_lease(const FilePlace& place, const FileAtRest& file) {
  if (!file.has_no_state()) return;
  const std::lock_guard lock(mutex_);
  no_lease_ = {place.device, place.inode, now_ns() + no_lease_for_ns};
}

bool FileNames::has_no_lease(const FilePlace& place) {
  const std::lock_guard lock(mutex_);
  return no_lease_.device == place.device && no_lease_.inode == place.inode && now_ns() < no_lease_.until_ns;
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
    if (!start() || now_ns() < slow_until_ns_ || lessons_.size() + questions_.size() >= lessons_max) return;
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
// it is at rest. What is in memory no more is not read again for this.
void FileNames::learn_now(const Lesson& lesson, std::span<std::byte> room) {
  const FilePlace& place = lesson.place;
  if (has_no_lease(place)) return;
  const auto file = FileAtRest::open(place);
  const std::uint64_t now = clock_ns(CLOCK_REALTIME);
  const auto before = file ? file->state() : std::nullopt;
  if (file && !before) note_lease(place, *file);
  if (!before || !shows_changes(*before, now)) return;
  const NameTable::Of of{*before, place.offset, place.bytes};
  if (table_.find(of) || !file->read(place.offset, room)) return;
  if (lesson.name && std::memcmp(room.data(), lesson.bytes.get(), room.size()) != 0) return;
  const ContentName name = lesson.name ? *lesson.name : name_content(room);
  if (file->state() == before) table_.add(of, name);
}

void FileNames::finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return unusable_ || ended_ || (questions_.empty() && lessons_.empty() && underway_ == 0); });
}

}  // namespace fargpu::client
