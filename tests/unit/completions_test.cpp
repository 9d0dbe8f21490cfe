// What a worker makes of events: in which order it calls back, and that what kernels print comes before a wait ends.

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "server/worker/order/completions.h"

using namespace fargpu;
using namespace fargpu::server;
using Kind = Completions::Kind;

namespace {

std::set<CUevent> fired;
int created, queries;

/// A driver with events only, which happen when the test says so.
DriverTable events_only() {
  fired.clear();
  created = queries = 0;
  DriverTable driver;
  driver.cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(++created));
    return CUDA_SUCCESS;
  };
  driver.cuEventQuery = [](CUevent event) {
    ++queries;
    return fired.contains(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  driver.cuStreamSynchronize = [](CUstream) { return CUDA_ERROR_LAUNCH_FAILED; };
  return driver;
}

struct Bench {
  Bench() {
    stream.context = &context;
    context.streams.push_back(&stream);
  }
  void after(Kind kind, std::string what) {
    completions.after(stream, kind, [this, what = std::move(what)](CUresult result) {
      told.push_back(result == CUDA_SUCCESS ? what : what + " failed");
    });
  }
  DriverTable driver = events_only();
  ContextState context;
  StreamState stream;
  CUevent last = nullptr;
  std::shared_ptr<std::atomic<CUresult>> later;  // for what is recorded next
  std::vector<std::string> told;
  int room = 1000;  // for so many more
  Completions completions{driver,
                          [this](CUevent event, CUresult result) {
                            told.push_back("passed " + std::to_string(reinterpret_cast<std::uintptr_t>(event)) +
                                           (result == CUDA_SUCCESS ? "" : " with " + std::to_string(result)));
                          },
                          [this](StreamState&, CUevent event) {
                            fired.erase(event);
                            last = event;
                            return Completions::Recorded{CUDA_SUCCESS, later};
                          },
                          [this] { return room-- > 0; }};
};

}  // namespace

TEST_CASE("what kernels printed is asked for before a signal, though another's event has passed before") {
  Bench b;
  b.stream.submitted = 1;
  b.after(Kind::release, "release");
  fired.insert(b.last);
  CHECK(b.completions.poll());
  CHECK(b.told == std::vector<std::string>{"release"});
  CHECK_FALSE(b.stream.dirty());
  // The stream is known to be idle: waits end at once, but not before what was printed.
  b.completions.soon(Kind::signal, CUDA_SUCCESS, [&](CUresult) { b.told.emplace_back("signal"); });
  CHECK(b.completions.poll());
  CHECK(b.told == std::vector<std::string>{"release", "passed 1", "signal"});
}

TEST_CASE("an event whose passing nobody has heard of is not used again") {
  Bench b;
  b.after(Kind::release, "first");
  fired.insert(b.last);
  b.completions.poll();
  const CUevent kept = b.last;
  b.after(Kind::release, "second");
  CHECK(b.last != kept);
  fired.insert(b.last);
  b.completions.poll();
  b.after(Kind::signal, "third");  // of the two only the later one is still wanted
  CHECK(b.last == kept);
  fired.insert(b.last);
  b.completions.poll();
  CHECK(b.told == std::vector<std::string>{"first", "second", "passed 1", "third"});
  CHECK(created == 2);
}

TEST_CASE("a failure is heard of with the event, though others of the context have passed since") {
  Bench b;
  b.after(Kind::release, "first");
  b.driver.cuEventQuery = [](CUevent) { return CUDA_ERROR_LAUNCH_FAILED; };
  b.completions.poll();
  b.driver.cuEventQuery = [](CUevent) { return CUDA_SUCCESS; };
  b.after(Kind::signal, "second");
  b.completions.poll();
  CHECK(b.told == std::vector<std::string>{"first failed", "passed 2 with 719", "second"});
  b.after(Kind::signal, "third");
  b.completions.poll();
  CHECK(b.told.at(3).starts_with("passed"));
  CHECK(b.told.at(3).find("with") == std::string::npos);
}

TEST_CASE("deliveries come before signals, each stream in its order") {
  Bench b;
  StreamState other;
  other.context = &b.context;
  b.after(Kind::signal, "signal");
  fired.insert(b.last);
  b.completions.after(other, Kind::delivery, [&](CUresult) { b.told.emplace_back("delivery"); });
  fired.insert(b.last);
  b.completions.poll();
  CHECK(b.told.back() == "signal");
  CHECK(std::count(b.told.begin(), b.told.end(), "delivery") == 1);
}

TEST_CASE("a delivery comes before an event of the program, though a signal stands before it in its stream") {
  Bench b;
  b.after(Kind::signal, "another's signal");
  b.after(Kind::delivery, "delivery");
  const CUevent own = reinterpret_cast<CUevent>(std::uintptr_t{100});
  b.completions.after_event(own, 7, b.context, [&](CUresult) { b.told.emplace_back("event"); });
  // All of it happens when the first look at the stream is over.
  b.driver.cuEventQuery = [](CUevent) { return queries++ == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; };
  while (!b.completions.empty()) b.completions.poll();
  std::erase_if(b.told, [](const std::string& line) { return line.starts_with("passed"); });
  CHECK(b.told == std::vector<std::string>{"delivery", "event", "another's signal"});
}

TEST_CASE("a stream that still has something to deliver is not known to be idle") {
  Bench b;
  b.stream.submitted = 1;
  b.after(Kind::release, "release");
  const CUevent of_release = b.last;
  b.after(Kind::delivery, "delivery");
  fired.insert(of_release);
  b.completions.poll();
  CHECK(b.stream.dirty());
  fired.insert(b.last);
  b.completions.poll();
  CHECK_FALSE(b.stream.dirty());
}

TEST_CASE("what is delivered comes in the order in which it was asked for, from whatever stream") {
  Bench b;
  std::vector<StreamState> streams(8);
  std::vector<std::string> wanted;
  for (StreamState& stream : streams) {
    stream.context = &b.context;
    const std::string what = "delivery " + std::to_string(wanted.size());
    b.completions.after(stream, Kind::delivery, [&b, what](CUresult) { b.told.push_back(what); });
    wanted.push_back(what);
  }
  // All of it happens when the first look at a stream is over.
  b.driver.cuEventQuery = [](CUevent) { return queries++ == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; };
  while (!b.completions.empty()) b.completions.poll();
  std::erase_if(b.told, [](const std::string& line) { return line.starts_with("passed"); });
  CHECK(b.told == wanted);
}

TEST_CASE("few streams are looked at in a round, and all of them in turn") {
  Bench b;
  std::vector<StreamState> streams(10);
  for (StreamState& stream : streams) {
    stream.context = &b.context;
    b.completions.after(stream, Kind::release, [&](CUresult) { b.told.emplace_back("done"); });
  }
  queries = 0;
  b.completions.poll(4);
  CHECK(queries == 4);
  for (int event = 1; event <= created; ++event)
    fired.insert(reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(event)));
  for (int round = 0; round < 3; ++round) b.completions.poll(4);
  CHECK(b.told.size() == 10);
  CHECK(b.completions.empty());
}

TEST_CASE("an event that is recorded later is asked about only then") {
  Bench b;
  b.later = std::make_shared<std::atomic<CUresult>>(CUDA_ERROR_NOT_READY);
  b.after(Kind::signal, "signal");
  fired.insert(b.last);  // from an earlier use
  CHECK_FALSE(b.completions.poll());
  CHECK(queries == 0);
  SECTION("recorded") {
    b.later->store(CUDA_SUCCESS);
    CHECK(b.completions.poll());
    CHECK(b.told.back() == "signal");
  }
  SECTION("refused: the stream is waited for, and has the last word") {
    b.later->store(CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(b.completions.poll());
    CHECK(b.told.back() == "signal failed");
  }
}

TEST_CASE("what gives the client more to read waits for room, in its order, and releases do not") {
  Bench b;
  b.after(Kind::delivery, "delivery");
  fired.insert(b.last);
  b.after(Kind::delivery, "another");
  fired.insert(b.last);
  b.after(Kind::signal, "signal");
  fired.insert(b.last);
  b.after(Kind::release, "release");
  fired.insert(b.last);
  b.room = 0;
  CHECK(b.completions.poll());
  CHECK(b.told == std::vector<std::string>{"release"});
  CHECK(b.completions.held_up());
  CHECK_FALSE(b.completions.poll());
  CHECK(b.completions.size() == 3);
  for (b.room = 1; b.completions.held_up(); b.room = 1) CHECK(b.completions.poll());
  std::erase_if(b.told, [](const std::string& what) { return what.starts_with("passed"); });
  CHECK(b.told == std::vector<std::string>{"release", "delivery", "another", "signal"});
  CHECK(b.completions.empty());
}
