// Work held back behind something that only the client can do.

#include "server/worker/order/stream_order.h"

#include <catch2/catch.hpp>
#include <string>

using namespace fargpu::server;

namespace {

/// A context with its legacy stream, two blocking streams and one that is not.
struct Fixture {
  Fixture() {
    context.legacy = std::make_unique<StreamState>();
    for (StreamState* stream : {context.legacy.get(), &a, &b, &free}) {
      stream->context = &context;
      context.streams.push_back(stream);
    }
    free.blocking = false;
  }
  StreamState& legacy() { return *context.legacy; }

  // Work on a stream as the session gives it: at once if it may go, else in line.
  void work(StreamState& stream, const std::string& name, std::uint64_t awaited = 0, std::uint64_t recorded = 0) {
    const auto before = order.before(stream, awaited);
    const auto job = [this, name] { log += name + " "; };
    if (before.empty()) job();
    else order.enqueue(before, &stream, recorded ? std::vector{recorded} : std::vector<std::uint64_t>{}, job);
  }

  ContextState context;
  StreamState a, b, free;
  StreamOrder order;
  std::string log;
};

}  // namespace

TEST_CASE("while nothing is held everything goes at once") {
  Fixture f;
  CHECK_FALSE(f.order.any());
  f.work(f.a, "a");
  f.work(f.legacy(), "legacy");
  f.order.after_all([&] { f.log += "all "; });
  f.order.after(f.order.before(f.a, 0), [&] { f.log += "stream "; });
  f.order.after_record(
      77, [&] { f.log += "record "; }, false);
  CHECK(f.log == "a legacy all stream record ");
  CHECK_FALSE(f.order.any());
}

TEST_CASE("work behind a hold waits for its release, in its order") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  CHECK(f.order.any());
  f.work(f.a, "1");
  f.work(f.a, "2");
  f.work(f.a, "3");
  CHECK(f.log.empty());
  f.order.release(hold);
  CHECK(f.log == "1 2 3 ");
  CHECK_FALSE(f.order.any());
  f.work(f.a, "4");
  CHECK(f.log == "1 2 3 4 ");
}

TEST_CASE("other streams are not held, but for the legacy stream's rule") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  f.work(f.b, "b");
  f.work(f.free, "free");
  CHECK(f.log == "b free ");
  f.work(f.legacy(), "legacy");  // waits for all blocking streams
  f.work(f.b, "b2");             // waits for the legacy stream
  f.work(f.free, "free2");       // does not
  CHECK(f.log == "b free free2 ");
  f.order.release(hold);
  CHECK(f.log == "b free free2 legacy b2 ");
}

TEST_CASE("a held legacy stream holds the blocking ones") {
  Fixture f;
  const auto hold = f.order.hold(f.legacy());
  f.work(f.a, "a");
  f.work(f.free, "free");
  CHECK(f.log == "free ");
  f.order.release(hold);
  CHECK(f.log == "free a ");
}

TEST_CASE("a stream that does not block is held by its own work only") {
  Fixture f;
  const auto hold = f.order.hold(f.free);
  f.work(f.legacy(), "legacy");
  f.work(f.a, "a");
  f.work(f.free, "free");
  CHECK(f.log == "legacy a ");
  f.order.release(hold);
  CHECK(f.log == "legacy a free ");
}

TEST_CASE("a stream apart does not wait for what all of its context waits for") {
  Fixture f;
  f.free.apart = true;
  const auto hold = f.order.hold(f.a);
  f.order.hold_context(f.context, hold, [&] { f.log += "wait "; });
  f.work(f.b, "b");
  f.work(f.free, "free");
  CHECK(f.log == "free ");
  const auto own = f.order.hold(f.free);
  f.work(f.free, "behind");
  f.order.release(hold);
  CHECK(f.log == "free wait b ");
  f.order.release(own);
  CHECK(f.log == "free wait b behind ");
}

TEST_CASE("a wait for an event waits for its held record") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  f.work(f.a, "record", 0, 9);
  CHECK(f.order.record_held(9));
  CHECK_FALSE(f.order.record_held(8));
  f.work(f.free, "wait-other", 8);
  f.work(f.free, "wait", 9);
  f.work(f.free, "behind");
  CHECK(f.log == "wait-other ");
  f.order.after_record(
      9, [&] { f.log += "told "; }, false);
  f.order.release(hold);
  CHECK(f.log == "wait-other record wait behind told ");
  CHECK_FALSE(f.order.record_held(9));
  CHECK_FALSE(f.order.any());
}

TEST_CASE("the newest record of an event is the one waited for") {
  Fixture f;
  const auto first = f.order.hold(f.a), second = f.order.hold(f.free);
  f.work(f.a, "record-a", 0, 9);
  f.work(f.free, "record-free", 0, 9);
  f.work(f.b, "wait", 9);
  f.order.release(first);
  CHECK(f.log == "record-a ");
  CHECK(f.order.record_held(9));
  f.order.release(second);
  CHECK(f.log == "record-a record-free wait ");
}

TEST_CASE("work may wait for several things") {
  Fixture f;
  const auto first = f.order.hold(f.a), second = f.order.hold(f.b);
  f.work(f.legacy(), "legacy");
  f.order.release(second);
  CHECK(f.log.empty());
  f.order.release(first);
  CHECK(f.log == "legacy ");
}

TEST_CASE("what comes after everything held waits for all of it, and for nothing later") {
  Fixture f;
  const auto first = f.order.hold(f.a), second = f.order.hold(f.free);
  f.order.after_all([&] { f.log += "all "; });
  f.order.after(f.order.before(f.a, 0), [&] { f.log += "stream "; });
  const auto later = f.order.hold(f.b);
  f.order.release(first);
  CHECK(f.log == "stream ");
  f.order.release(second);
  CHECK(f.log == "stream all ");
  f.order.release(later);
  CHECK_FALSE(f.order.any());
}

TEST_CASE("work that runs may hold its own stream: what follows waits on") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  std::uint64_t inner = 0;
  f.order.enqueue(f.order.before(f.a, 0), &f.a, {}, [&] {
    f.log += "function ";
    inner = f.order.hold(f.a);
  });
  f.work(f.a, "behind");
  f.order.release(hold);
  CHECK(f.log == "function ");
  CHECK(f.order.any());
  f.work(f.a, "last");
  f.order.release(inner);
  CHECK(f.log == "function behind last ");
  CHECK_FALSE(f.order.any());
}

TEST_CASE("work that holds and releases while it runs is done when it returns") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  f.order.enqueue(f.order.before(f.a, 0), &f.a, {}, [&] {
    f.order.release(f.order.hold(f.a));
    f.log += "function ";
  });
  f.work(f.a, "behind");
  f.order.release(hold);
  CHECK(f.log == "function behind ");
  CHECK_FALSE(f.order.any());
}

TEST_CASE("work that runs may hold another stream") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  std::uint64_t other = 0;
  f.order.enqueue(f.order.before(f.a, 0), &f.a, {}, [&] { other = f.order.hold(f.free); });
  f.work(f.a, "a");
  f.order.release(hold);
  CHECK(f.log == "a ");
  f.work(f.free, "free");
  CHECK(f.log == "a ");
  f.order.release(other);
  CHECK(f.log == "a free ");
}

TEST_CASE("work that runs asks what is before it, not for itself") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  f.order.enqueue(f.order.before(f.a, 0), &f.a, {}, [&] {
    CHECK(f.order.before(f.a, 0).empty());
    f.order.after_all([&] { f.log += "at-once "; });
    f.log += "ran ";
  });
  f.order.release(hold);
  CHECK(f.log == "at-once ran ");
}

TEST_CASE("long chains run in a loop, not one within another") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  unsigned runs = 0;
  for (unsigned i = 0; i < 100000; ++i) f.order.enqueue(f.order.before(f.a, 0), &f.a, {}, [&] { ++runs; });
  f.order.release(hold);
  CHECK(runs == 100000);
  CHECK_FALSE(f.order.any());
}

TEST_CASE("a stream that is gone is not looked at any more") {
  Fixture f;
  auto gone = std::make_unique<StreamState>();
  gone->context = &f.context;
  const auto hold = f.order.hold(*gone);
  f.order.enqueue({hold}, gone.get(), {}, [&] { f.log += "ran "; });
  f.order.forget(*gone);
  gone.reset();
  f.order.release(hold);
  CHECK(f.log == "ran ");
  CHECK_FALSE(f.order.any());
}

TEST_CASE("an unknown or repeated release does nothing") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  f.order.release(hold + 10);
  CHECK(f.order.any());
  f.order.release(hold);
  f.order.release(hold);
  CHECK_FALSE(f.order.any());
}

TEST_CASE("what changes an executable graph comes behind its launches that are held back, and behind those only") {
  Fixture f;
  CHECK(f.order.launch_of(7) == 0);
  const std::uint64_t hold = f.order.hold(f.a);
  const auto launch = [&](std::uint64_t exec, const char* name) {
    f.order.enqueue(
        f.order.before(f.a, 0), &f.a, {}, [&f, name] { f.log += name; }, exec);
  };
  launch(7, "first ");
  const std::uint64_t first = f.order.launch_of(7);
  CHECK(first != 0);
  CHECK(f.order.launch_of(8) == 0);
  f.order.enqueue({first}, nullptr, {}, [&] {
    f.log += "change ";
    CHECK(f.order.launch_of(7) == 0);  // the next one comes behind
  });
  launch(7, "second ");
  CHECK(f.order.launch_of(7) > first);
  f.order.release(hold);
  CHECK(f.log == "first change second ");
  CHECK(f.order.launch_of(7) == 0);
}

TEST_CASE("an event is recorded again behind those who wait for its record before") {
  Fixture f;
  constexpr std::uint64_t event = 5;
  const std::uint64_t first = f.order.hold(f.a), second = f.order.hold(f.b);
  const auto wait = [&](StreamState& stream, const char* name) {
    f.order.awaits(f.order.enqueue(f.order.before(stream, event), &stream, {}, [&f, name] { f.log += name; }), event);
  };
  CHECK(f.order.before_records({event}).empty());
  wait(f.a, "wait ");
  wait(f.b, "another ");
  CHECK(f.order.before_records({event}).size() == 2);
  CHECK(f.order.before_records({event + 1}).empty());
  CHECK(f.order.before_records({event, event + 1, event}).size() == 2);
  f.order.enqueue(f.order.before_records({event}), &f.free, {event}, [&] { f.log += "record "; });
  CHECK(f.order.before_records({event}).size() == 3);
  wait(f.free, "again ");
  f.order.release(second);
  CHECK(f.log == "another ");
  f.order.release(first);
  CHECK(f.log == "another wait record again ");
  CHECK(f.order.before_records({event}).empty());
  CHECK_FALSE(f.order.any());
  f.order.awaits(first, event);  // gone
  f.order.records(first, event);
  CHECK(f.order.before_records({event}).empty());
}

TEST_CASE("a record takes the place of an earlier one that nobody waits for") {
  Fixture f;
  constexpr std::uint64_t event = 5;
  const std::uint64_t hold = f.order.hold(f.a);
  const auto record = [&](StreamState& stream, const char* name, bool alone = true) {
    const std::uint64_t item = f.order.enqueue(f.order.before(stream, 0), &stream, {event},
                                               [&f, name] { f.log += f.order.superseded() ? "nothing " : name; });
    if (alone) f.order.only_records(item);
  };
  record(f.a, "first ");
  CHECK(f.order.before_records({event}).empty());
  CHECK_FALSE(f.order.record_held(event));
  record(f.a, "second ");
  CHECK(f.order.before_records({event}).empty());
  record(f.a, "third ", /*alone=*/false);
  CHECK(f.order.before_records({event}).size() == 1);
  record(f.a, "fourth ");
  f.order.after_record(
      event, [&] { f.log += "followed "; }, /*awaits=*/false);
  CHECK_FALSE(f.order.take_superseded(event));
  CHECK(f.order.before_records({event}).empty());
  CHECK(f.order.take_superseded(event));
  CHECK_FALSE(f.order.take_superseded(event));
  record(f.a, "fifth ");
  f.order.after_record(
      event, [&] { f.log += "awaited "; }, /*awaits=*/true);
  CHECK(f.order.before_records({event}).size() == 2);
  CHECK(f.order.record_held(event));
  f.order.release(hold);
  CHECK(f.log == "nothing nothing third nothing followed fifth awaited ");
  CHECK_FALSE(f.order.any());
  // The later record is done first: what follows the superseded one has heard of neither.
  const std::uint64_t other = f.order.hold(f.a), later = f.order.hold(f.b);
  record(f.a, "sixth ");
  f.order.after_record(
      event, [&] { f.log += "followed "; }, /*awaits=*/false);
  CHECK(f.order.before_records({event}).empty());
  record(f.b, "seventh ");
  f.order.release(later);
  CHECK(f.order.take_superseded(event));
  f.order.release(other);
  CHECK_FALSE(f.order.any());
}

TEST_CASE("work that is postponed comes in its place, and what is behind it stays there") {
  Fixture f;
  const std::uint64_t item = f.order.postpone(f.a, 7);
  CHECK(f.order.launch_of(7) == item);
  f.work(f.a, "second");
  f.work(f.b, "elsewhere");
  CHECK(f.log == "elsewhere ");
  f.order.resume(item, [&] { f.log += "first "; });
  CHECK(f.log == "elsewhere first second ");
  CHECK(f.order.launch_of(7) == 0);
  CHECK_FALSE(f.order.any());
}

TEST_CASE("work that was held back may be postponed when it gets there, and again") {
  Fixture f;
  const std::uint64_t held = f.order.hold(f.a);
  std::uint64_t postponed = 0;
  f.order.enqueue(f.order.before(f.a, 0), &f.a, {}, [&] { postponed = f.order.postpone(f.a, 0); });
  f.work(f.a, "last");
  f.order.release(held);
  REQUIRE(postponed != 0);
  CHECK(f.log.empty());
  f.order.resume(postponed, [&] { CHECK(f.order.postpone(f.a, 0) == postponed); });
  CHECK(f.log.empty());
  f.order.resume(postponed, [&] { f.log += "now "; });
  CHECK(f.log == "now last ");
}

TEST_CASE("many waits for all that is held back are no more than as many") {
  Fixture f;
  const auto hold = f.order.hold(f.a);
  for (int i = 0; i < 1000; ++i) {
    if (i % 10 == 0) f.work(f.a, "");
    f.order.after_all([&f, i] { f.log += std::to_string(i) + " "; });
  }
  CHECK(f.order.waits() < 4000);
  f.work(f.b, "last");
  f.order.release(hold);
  CHECK_FALSE(f.order.any());
  CHECK(f.order.waits() == 0);
  CHECK(f.log.ends_with("998 999 "));
}

TEST_CASE("a wait for all that was made by what runs does not stand for that") {
  Fixture f;
  const auto first = f.order.hold(f.a), other = f.order.hold(f.free);
  std::uint64_t held = 0;
  f.order.enqueue({first}, &f.b, {}, [&] {
    held = f.order.hold(f.b);
    f.order.after_all([&] { f.log += "inner "; });
  });
  f.order.release(first);
  f.order.after_all([&] { f.log += "outer "; });
  CHECK(f.log.empty());
  f.order.release(other);
  CHECK(f.log == "inner ");
  f.order.release(held);
  CHECK(f.log == "inner outer ");
}

TEST_CASE("a stream that is held once more forgets nothing of what is held there") {
  Fixture f;
  const auto bytes = f.order.hold(f.a);  // still to come
  f.work(f.a, "1");
  const auto full = f.order.hold(f.a);  // too much work
  f.work(f.a, "2");
  SECTION("released in its order") {
    f.order.release(bytes);
    CHECK(f.log == "1 ");
    f.order.release(full);
  }
  SECTION("or before what came before it") {
    f.order.release(full);
    CHECK(f.log.empty());
    f.order.release(bytes);
  }
  CHECK(f.log == "1 2 ");
  CHECK_FALSE(f.order.any());
  CHECK(f.a.last_item == 0);
}
