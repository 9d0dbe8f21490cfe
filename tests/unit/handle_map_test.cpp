// The client's table of objects by handle.

#include "client/base/handle_map.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

using namespace fargpu;
using namespace fargpu::client;

namespace {

struct Object {
  std::atomic<std::uint64_t> owner{0};  // the handle this object stands for
  unsigned resets = 0;
  void reset() {
    owner = 0;
    ++resets;
  }
};
using Map = HandleMap<Object>;

Handle add(Map& map) {
  const auto [handle, object] = map.create();
  REQUIRE(object);
  object->owner = handle.value();
  map.publish(handle);
  return handle;
}

}  // namespace

TEST_CASE("an object is found once it is published, and not before") {
  Map map(HandleKind::event);
  CHECK(map.size() == 0);
  const auto [handle, object] = map.create();
  CHECK(handle.well_formed(HandleKind::event));
  CHECK(handle.index() != 0);
  CHECK(handle.index() < Handle::worker_index_first);
  CHECK(map.find(handle) == nullptr);
  CHECK(map.size() == 0);
  map.publish(handle);
  CHECK(map.find(handle) == object);
  CHECK(map.size() == 1);
}

TEST_CASE("what is no live handle finds nothing") {
  Map map(HandleKind::event);
  const Handle handle = add(map);
  CHECK(map.find(Handle()) == nullptr);
  CHECK(map.find(Handle(HandleKind::stream, handle.index(), handle.generation())) == nullptr);
  CHECK(map.find(Handle(HandleKind::event, handle.index() + 1, handle.generation())) == nullptr);
  CHECK(map.find(Handle(HandleKind::event, handle.index(), handle.generation() + 1)) == nullptr);
  CHECK(map.find(Handle(HandleKind::event, Handle::index_max, 0)) == nullptr);
  CHECK(map.find(Handle(handle.value() + 1)) == nullptr);
  CHECK_FALSE(map.erase(Handle()));
  CHECK_FALSE(map.erase(Handle(HandleKind::event, handle.index(), handle.generation() + 1)));
  CHECK_FALSE(map.erase(Handle(HandleKind::event, Handle::index_max, 0)));
  CHECK(map.find(handle));
}

TEST_CASE("an erased handle is stale, once") {
  Map map(HandleKind::event);
  const Handle first = add(map), second = add(map);
  CHECK(map.erase(first));
  CHECK_FALSE(map.erase(first));
  CHECK(map.find(first) == nullptr);
  CHECK(map.find(second));
  CHECK(map.size() == 1);
}

TEST_CASE("indices are used again late, with another generation and an object begun anew") {
  Map map(HandleKind::event);
  std::vector<Handle> stale;
  std::set<std::uint64_t> values;
  for (unsigned i = 0; i < 3000; ++i) {
    const Handle handle = add(map);
    CHECK(values.insert(handle.value()).second);  // no value twice
    stale.push_back(handle);
    map.erase(handle);
  }
  for (const Handle handle : stale) REQUIRE(map.find(handle) == nullptr);
  // About a thousand freed indices wait in line before one is used again.
  CHECK(stale[0].index() != stale[1].index());
  CHECK(stale[1024].index() != stale[0].index());
  CHECK(stale.back().generation() == 3);
  CHECK(map.size() == 0);
}

TEST_CASE("the worker's handles are learned once") {
  Map map(HandleKind::function);
  const Handle handle(HandleKind::function, Handle::worker_index_first + 5, 9);
  unsigned fills = 0;
  const auto fill = [&](Object& object) {
    ++fills;
    object.owner = handle.value();
  };
  Object* const object = map.learn(handle, fill);
  REQUIRE(object);
  CHECK(map.learn(handle, fill) == object);
  CHECK(fills == 1);
  CHECK(map.find(handle) == object);
  CHECK(map.size() == 1);
  CHECK(map.learn(Handle(HandleKind::kernel, 1, 1), fill) == nullptr);
  CHECK(map.learn(Handle(), fill) == nullptr);
  CHECK(map.learn(Handle(HandleKind::function, 5, 9), fill) == nullptr);  // that would be the client's to give
  CHECK(map.erase(handle));
  // The client's own handles do not come from that half.
  CHECK(add(map).index() < Handle::worker_index_first);
}

TEST_CASE("an index that the worker gives again while its object is in use gets another object") {
  Map map(HandleKind::function);
  const auto fill = [](Handle handle) { return [handle](Object& object) { object.owner = handle.value(); }; };
  const Handle first(HandleKind::function, Handle::worker_index_first + 5, 1),
      second(HandleKind::function, first.index(), 2);
  Object* const old = map.learn(first, fill(first));
  Object* const replacing = map.learn(second, fill(second));
  REQUIRE(replacing);
  CHECK(replacing != old);
  CHECK(old->owner == first.value());  // as it was, for threads that still read it
  CHECK(map.find(first) == nullptr);
  CHECK(map.find(second) == replacing);
  CHECK(map.size() == 1);
  map.for_each([&](Handle handle, Object& object) {
    CHECK(handle == second);
    CHECK(&object == replacing);
  });
  // A worker that does nothing else is not given all memory.
  std::set<Object*> objects;
  for (unsigned i = 0; i < 10'000; ++i) {
    const Handle next(HandleKind::function, first.index(), 3 + i % 1000);
    if (i % 3 == 0) map.erase(Handle(HandleKind::function, first.index(), 3 + (i - 1) % 1000));
    objects.insert(map.learn(next, fill(next)));
    CHECK(map.find(next)->owner == next.value());
    CHECK((i > 1000 || old->owner == first.value()));  // long after
  }
  CHECK(objects.size() < 4200);
  CHECK(map.size() == 1);
}

TEST_CASE("every live object is visited, with its handle") {
  Map map(HandleKind::stream);
  std::set<std::uint64_t> live;
  for (unsigned i = 0; i < 1000; ++i) {
    const Handle handle = add(map);
    if (i % 3 == 0) map.erase(handle);
    else live.insert(handle.value());
  }
  const Handle learned(HandleKind::stream, Handle::index_max, Handle::generation_max);
  map.learn(learned, [&](Object& object) { object.owner = learned.value(); });
  live.insert(learned.value());
  map.for_each([&](Handle handle, Object& object) {
    CHECK(object.owner == handle.value());
    CHECK(live.erase(handle.value()) == 1);
  });
  CHECK(live.empty());
}

TEST_CASE("when the range is used up there is no handle, until one is given back") {
  Map map(HandleKind::event);
  std::vector<Handle> handles;
  handles.reserve(Handle::worker_index_first);
  while (true) {
    const auto [handle, object] = map.create();
    if (!object) {
      CHECK_FALSE(handle);
      break;
    }
    map.publish(handle);
    handles.push_back(handle);
  }
  CHECK(handles.size() == Handle::worker_index_first - 1);
  CHECK(map.erase(handles[100]));
  const Handle again = add(map);
  CHECK(again.index() == handles[100].index());
  CHECK(again.generation() == handles[100].generation() + 1);
  CHECK(map.find(handles[100]) == nullptr);
  CHECK(map.create().second == nullptr);
}

TEST_CASE("handles that were never published use up no index once they are given back") {
  Map map(HandleKind::event);
  const Handle stays = add(map);
  std::uint32_t missing = 0;
  for (std::uint32_t i = 0; i < 2 * Handle::worker_index_first; ++i) {
    const auto [handle, object] = map.create();
    if (object) map.give_up(handle);
    else ++missing;
  }
  CHECK(missing == 0);
  CHECK(map.size() == 1);
  CHECK(map.find(stays));
  const Handle last = add(map);
  CHECK(last.index() != stays.index());
  CHECK(map.find(last));
}

TEST_CASE("finding needs no lock while others create and erase") {
  Map map(HandleKind::event);
  std::atomic<std::uint64_t> current{0};
  std::atomic<bool> stop{false};
  std::atomic<unsigned> wrong{0}, found{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const Handle handle(current.load());
        Object* const object = map.find(handle);
        if (!object) continue;
        const std::uint64_t owner = object->owner.load();
        // If the handle is still alive now, the object was its own all the time.
        if (map.find(handle) == object && owner != handle.value()) ++wrong;
        ++found;
      }
    });
  }
  std::thread neighbour([&] {
    while (!stop.load()) {
      const auto [handle, object] = map.create();
      map.publish(handle);
      map.erase(handle);
    }
  });
  for (unsigned i = 0; i < 20000 || found.load() == 0; ++i) {
    const Handle handle = add(map);
    current = handle.value();
    if (i % 64 == 0) std::this_thread::yield();
    map.erase(handle);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  neighbour.join();
  CHECK(wrong == 0);
  CHECK(map.size() == 0);
}
