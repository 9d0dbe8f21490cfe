// A thread for jobs, and where it waits for them.

#include "client/base/job_thread.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

using namespace fargpu::client;
using namespace std::chrono_literals;

namespace {

/// A place to wait at, which the thread leaves when it is told to. Nothing here may go while the thread runs, which is
/// for ever.
struct Place {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned waits = 0, wakes = 0;
  bool here = false, woken = false, worth = true;
  std::function<void()> meets;  // what the thread does there, once

  JobThread::Lookout lookout() {
    return {.wait = [this](const std::function<bool()>& job) { return wait(job); },
            .wake =
                [this] {
                  const std::lock_guard lock(mutex);
                  ++wakes;
                  woken = true;
                  changed.notify_all();
                }};
  }
  bool wait(const std::function<bool()>& job) {
    std::unique_lock lock(mutex);
    ++waits;
    here = true;
    changed.notify_all();
    while (!job() && worth) {
      if (meets) {
        const auto met = std::exchange(meets, {});
        lock.unlock();
        met();
        lock.lock();
        continue;
      }
      changed.wait(lock, [&] { return woken || meets || !worth; });
      woken = false;
    }
    here = false;
    return worth;
  }
  void until(const std::function<bool()>& holds) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, 30s, holds));
  }
  void set(const std::function<void()>& change) {
    const std::lock_guard lock(mutex);
    change();
    changed.notify_all();
  }
};

struct Jobs {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> done;
  std::function<void()> job(int number) {
    return [this, number] {
      const std::lock_guard lock(mutex);
      done.push_back(number);
      changed.notify_all();
    };
  }
  std::vector<int> wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, 30s, [&] { return done.size() >= count; }));
    return done;
  }
};

}  // namespace

TEST_CASE("jobs are done in their order") {
  auto& thread = *new JobThread("test");
  auto& jobs = *new Jobs;
  for (int i = 0; i < 100; ++i) thread.run(jobs.job(i));
  const auto done = jobs.wait_for(100);
  for (int i = 0; i < 100; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("of a job that throws the owner hears, and the next one is done") {
  auto& jobs = *new Jobs;
  auto& why = *new std::string;
  auto& thread = *new JobThread("test", {}, [&](const char* words) { why = words; });
  thread.run([] { throw std::bad_alloc(); });
  thread.run(jobs.job(1));
  jobs.wait_for(1);
  CHECK(why == "std::bad_alloc");
}

TEST_CASE("a thread on its lookout does the job that it meets there, and is woken for others") {
  auto& place = *new Place;
  auto& thread = *new JobThread("test", place.lookout());
  auto& jobs = *new Jobs;
  thread.start();
  place.until([&] { return place.here; });
  place.set([&] { place.meets = [&] { thread.run(jobs.job(1)); }; });
  jobs.wait_for(1);
  CHECK(place.wakes == 0);
  place.until([&] { return place.here && place.waits == 2; });
  thread.run(jobs.job(2));
  CHECK(jobs.wait_for(2) == std::vector<int>{1, 2});
  CHECK(place.wakes == 1);
}

TEST_CASE("a thread with nothing to look out for sleeps until there is a job, or is sent back") {
  auto& place = *new Place;
  auto& thread = *new JobThread("test", place.lookout());
  auto& jobs = *new Jobs;
  place.worth = false;
  thread.start();
  place.until([&] { return place.waits == 1 && !place.here; });
  thread.run(jobs.job(1));
  jobs.wait_for(1);
  place.until([&] { return place.waits == 2 && !place.here; });
  place.set([&] { place.worth = true; });
  // It may be on its way to sleep: it is sent until it goes.
  for (bool there = false; !there;) {
    thread.start();
    std::unique_lock lock(place.mutex);
    there = place.changed.wait_for(lock, 10ms, [&] { return place.here; });
  }
  thread.run(jobs.job(2));
  CHECK(jobs.wait_for(2) == std::vector<int>{1, 2});
}
