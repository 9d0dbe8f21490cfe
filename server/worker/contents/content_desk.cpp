#include "content_desk.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "protocol/device_bytes.h"
#include "protocol/quiet_thread.h"

namespace fargpu::server {
namespace {

constexpr unsigned threads_max = 16;
// A load of weights brings them faster than they are kept while the processors have other work. By a line of 25 Gb/s
// 16 GB are more than 1 GiB ahead at times.
constexpr std::size_t waiting_bytes_max = std::size_t{4} << 30;
constexpr std::size_t spare_bytes = 128u << 20;  // that the session may take besides
constexpr int keeping_niceness = 10;

}  // namespace

ContentDesk::ContentDesk(ContentStore store, HostBudget& budget) : store_(std::move(store)), budget_(budget) {}

// Under the mutex. Others need the processors too.
template <class Work>
void ContentDesk::start(std::vector<std::thread>& threads, Work work) {
  const unsigned wanted = std::clamp(std::thread::hardware_concurrency() / 2, 1u, threads_max);
  while (threads.size() < wanted) threads.push_back(quiet_thread("fargpu-contents", [this, work] { (this->*work)(); }));
}

void ContentDesk::find(const ContentName& name, std::uint64_t bytes, std::function<Bytes()> place,
                       std::function<void(Bytes, bool)> done) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  questions_.push_back([this, name, bytes, place = std::move(place), done = std::move(done)](Room& room) {
    Bytes into;
    bool known = false;
    try {
      if (store_.has(name, bytes)) into = place();
      known = !into.empty() && read(name, into, room);
    } catch (const std::exception&) {  // for want of memory
    }
    if (known) known_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    done(into, known);
  });
  start(answering_, &ContentDesk::answer_questions);
  asked_.notify_one();
}

bool ContentDesk::read(const ContentName& name, Bytes into, Room& room) const {
  if (!DeviceBytes::contains(into.data())) return store_.read(name, into);
  if (room.size() < into.size()) room.resize(into.size());
  const Bytes bytes = std::span(room).first(into.size());
  return store_.read(name, bytes) && DeviceBytes::copy(into.data(), bytes.data(), bytes.size());
}

void ContentDesk::ask(const ContentName& name, std::uint64_t bytes, std::function<void(bool)> answer) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  questions_.push_back([this, name, bytes, answer = std::move(answer)](Room&) {
    bool known = false;
    try {
      known = store_.has(name, bytes);
    } catch (const std::exception&) {  // for want of memory
    }
    answer(known);
  });
  start(answering_, &ContentDesk::answer_questions);
  asked_.notify_one();
}

void ContentDesk::keep(std::span<const std::byte> bytes) {
  std::size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || waiting_bytes_ + bytes.size() > waiting_bytes_max) return;
    waiting = waiting_bytes_ += bytes.size();
  }
  Kept kept{.size = bytes.size()};
  // Nothing that the program asks for is to be refused for this.
  auto charge =
      budget_.has_plenty(4 * waiting + spare_bytes) ? HostCharge::try_take(budget_, bytes.size()) : std::nullopt;
  if (charge) kept.bytes.reset(new (std::nothrow) std::byte[bytes.size()]);
  if (kept.bytes) copy_wherever(kept.bytes.get(), bytes.data(), bytes.size());
  const std::lock_guard lock(mutex_);
  if (!kept.bytes || ended_) {
    waiting_bytes_ -= bytes.size();
    return;
  }
  kept.charge = std::move(*charge);
  to_keep_.push_back(std::move(kept));
  start(keeping_, &ContentDesk::keep_all);
  given_.notify_one();
}

void ContentDesk::answer_questions() {
  Room room;
  std::unique_lock lock(mutex_);
  while (true) {
    asked_.wait(lock, [&] { return ended_ || !questions_.empty(); });
    if (ended_) return;
    const auto question = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    question(room);
    lock.lock();
  }
}

void ContentDesk::keep_all() {
  ::setpriority(PRIO_PROCESS, 0, keeping_niceness);  // of this thread alone
  std::unique_lock lock(mutex_);
  while (true) {
    given_.wait(lock, [&] { return ended_ || !to_keep_.empty(); });
    if (ended_) return;
    const Kept kept = std::move(to_keep_.front());
    to_keep_.pop_front();
    lock.unlock();
    try {
      if (store_.keep({kept.bytes.get(), kept.size})) kept_bytes_.fetch_add(kept.size, std::memory_order_relaxed);
    } catch (const std::exception&) {  // it is not kept
    }
    lock.lock();
    waiting_bytes_ -= kept.size;
    if (waiting_bytes_ == 0) kept_.notify_all();
  }
}

void ContentDesk::finish(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  kept_.wait_for(lock, patience, [&] { return ended_ || waiting_bytes_ == 0; });
}

void ContentDesk::end() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    threads.swap(answering_);
    for (std::thread& thread : keeping_) threads.push_back(std::move(thread));
    keeping_.clear();
  }
  for (std::condition_variable* const changed : {&asked_, &given_, &kept_}) changed->notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fargpu::server
