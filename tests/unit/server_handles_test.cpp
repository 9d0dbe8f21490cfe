// The worker's table of handles.

#include <malloc.h>

#include <catch2/catch.hpp>
#include <set>

#include "server/worker/objects/handles.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

Handle client_handle(HandleKind kind, std::uint32_t index, std::uint32_t generation = 1) {
  return Handle(kind, index, generation);
}

}  // namespace

TEST_CASE("a handle that the client gave stands for what it was adopted for") {
  Handles handles;
  const Handle stream = client_handle(HandleKind::stream, 5);
  CHECK(handles.find(HandleKind::stream, stream) == nullptr);
  REQUIRE(handles.adoptable(HandleKind::stream, stream));
  handles.adopt(stream, 0xABC0, 42);
  const Handles::Entry* const entry = handles.find(HandleKind::stream, stream);
  REQUIRE(entry);
  CHECK(entry->value == 0xABC0);
  CHECK(entry->context == 42);
  CHECK_FALSE(handles.adoptable(HandleKind::stream, stream));
}

TEST_CASE("an index may be given again before the end of its object is carried out") {
  Handles handles;
  const Handle first = client_handle(HandleKind::event, 5, 1), second = client_handle(HandleKind::event, 5, 2);
  handles.adopt(first, 0xABC0, 42);
  REQUIRE(handles.adoptable(HandleKind::event, second));
  handles.adopt(second, 0xDEF0, 43);
  REQUIRE(handles.find(HandleKind::event, first));
  CHECK(handles.find(HandleKind::event, first)->value == 0xABC0);
  CHECK(handles.find(HandleKind::event, second)->value == 0xDEF0);
  CHECK_FALSE(handles.adoptable(HandleKind::event, first));
  CHECK_FALSE(handles.adoptable(HandleKind::event, second));
  CHECK(handles.known(HandleKind::event, 0xABC0) == first);
  std::set<std::uint64_t> seen;
  handles.for_each(HandleKind::event, [&](Handle, Handles::Entry& entry) { seen.insert(entry.value); });
  CHECK(seen == std::set<std::uint64_t>{0xABC0, 0xDEF0});

  handles.forget(HandleKind::event, first);
  CHECK(handles.find(HandleKind::event, first) == nullptr);
  CHECK(handles.find(HandleKind::event, second));
  CHECK(handles.known(HandleKind::event, 0xABC0) == Handle());
  handles.forget(HandleKind::event, second);
  CHECK(handles.find(HandleKind::event, second) == nullptr);
  CHECK(handles.adoptable(HandleKind::event, client_handle(HandleKind::event, 5, 3)));

  // There is an end to it.
  std::uint32_t index = 1;
  for (; index < 200'000; ++index) {
    handles.adopt(client_handle(HandleKind::event, index, 1), 0x1000 + index, 1);
    const Handle next = client_handle(HandleKind::event, index, 2);
    if (!handles.adoptable(HandleKind::event, next)) break;
    handles.adopt(next, 0x1000000 + index, 1);
  }
  CHECK(index > 60'000);
  CHECK(index < 70'000);
}

TEST_CASE("only the client's half can be adopted, and only handles of the kind") {
  Handles handles;
  CHECK_FALSE(handles.adoptable(HandleKind::stream, Handle()));
  CHECK_FALSE(handles.adoptable(HandleKind::stream, Handle(1)));
  CHECK_FALSE(handles.adoptable(HandleKind::stream, client_handle(HandleKind::stream, 0)));
  CHECK_FALSE(handles.adoptable(HandleKind::stream, client_handle(HandleKind::event, 5)));
  CHECK_FALSE(handles.adoptable(HandleKind::stream, client_handle(HandleKind::stream, Handle::worker_index_first)));
  CHECK_FALSE(handles.adoptable(HandleKind::stream, client_handle(HandleKind::stream, Handle::index_max)));
  CHECK(handles.adoptable(HandleKind::stream, client_handle(HandleKind::stream, Handle::worker_index_first - 1)));
}

TEST_CASE("nothing that a client sends leads outside of the tables") {
  Handles handles;
  const Handle stream = client_handle(HandleKind::stream, 5);
  handles.adopt(stream, 0xABC0, 1);
  const Handle graph = handles.reveal(HandleKind::graph, 0xDEF0, 0);
  for (const Handle hostile :
       {Handle(), Handle(1), Handle(~std::uint64_t{0}), Handle(stream.value() + 1),
        client_handle(HandleKind::stream, 4), client_handle(HandleKind::stream, 6),
        client_handle(HandleKind::stream, 5, 2), Handle(HandleKind::stream, Handle::index_max, 1),
        client_handle(HandleKind::event, 5), Handle(HandleKind::stream, 5 + Handle::worker_index_first, 1)})
    CHECK(handles.find(HandleKind::stream, hostile) == nullptr);
  CHECK(handles.find(HandleKind::graph, client_handle(HandleKind::graph, graph.index() - Handle::worker_index_first,
                                                      graph.generation())) == nullptr);
  handles.forget(HandleKind::stream, client_handle(HandleKind::stream, 5, 2));
  CHECK(handles.find(HandleKind::stream, stream));
  // The kind may be the handle's own, which is anything that its bits can hold.
  for (unsigned kind = 0; kind < 64; ++kind) {
    const Handle made_up(static_cast<HandleKind>(kind), 4, 1);
    CHECK(handles.find(made_up.kind(), made_up) == nullptr);
    CHECK(handles.root_of(made_up) == made_up);
  }
}

TEST_CASE("a driver object is revealed under one handle") {
  Handles handles;
  const Handle module = handles.reveal(HandleKind::module, 0x1110, 3);
  CHECK(module.well_formed(HandleKind::module));
  CHECK(module.index() >= Handle::worker_index_first);
  CHECK(handles.reveal(HandleKind::module, 0x1110, 3) == module);
  CHECK(handles.find(HandleKind::module, module)->value == 0x1110);
  CHECK(handles.find(HandleKind::module, module)->context == 3);
  CHECK(handles.reveal(HandleKind::module, 0x2220, 3) != module);
  // An address as an object of another kind is another object.
  const Handle library = handles.reveal(HandleKind::library, 0x1110, 0);
  CHECK(library.kind() == HandleKind::library);
  CHECK(handles.reveal(HandleKind::module, 0, 3) == Handle());
}

TEST_CASE("an object that the client named is revealed under its name") {
  Handles handles;
  const Handle event = client_handle(HandleKind::event, 7);
  handles.adopt(event, 0x3330, 1);
  CHECK(handles.reveal(HandleKind::event, 0x3330, 1) == event);
  handles.forget(HandleKind::event, event);
  const Handle another = handles.reveal(HandleKind::event, 0x3330, 1);
  CHECK(another != event);
  CHECK(another.index() >= Handle::worker_index_first);
}

TEST_CASE("a forgotten handle stands for nothing, and may be given again by the client") {
  Handles handles;
  const Handle stream = client_handle(HandleKind::stream, 5);
  handles.adopt(stream, 0xABC0, 1);
  handles.forget(HandleKind::stream, stream);
  CHECK(handles.find(HandleKind::stream, stream) == nullptr);
  handles.forget(HandleKind::stream, stream);
  const Handle next = client_handle(HandleKind::stream, 5, 2);
  REQUIRE(handles.adoptable(HandleKind::stream, next));
  handles.adopt(next, 0xABC0, 2);
  CHECK(handles.find(HandleKind::stream, stream) == nullptr);
  CHECK(handles.find(HandleKind::stream, next)->context == 2);
  CHECK(handles.reveal(HandleKind::stream, 0xABC0, 2) == next);
}

TEST_CASE("the worker's indices are used again late, and under another generation") {
  Handles handles;
  std::set<std::uint64_t> values;
  std::set<std::uint32_t> indices;
  for (std::uint64_t i = 1; i <= 2000; ++i) {
    const Handle handle = handles.reveal(HandleKind::graph, i * 16, 0);
    REQUIRE(handle);
    CHECK(values.insert(handle.value()).second);
    indices.insert(handle.index());
    handles.forget(HandleKind::graph, handle);
    CHECK(handles.find(HandleKind::graph, handle) == nullptr);
  }
  CHECK(indices.size() > 200);
  CHECK(indices.size() < 300);
}

TEST_CASE("what was found in an object goes with it") {
  Handles handles;
  const Handle module = handles.reveal(HandleKind::module, 0x1000, 1),
               other = handles.reveal(HandleKind::module, 0x2000, 1);
  const Handle first = handles.reveal(HandleKind::function, 0x1010, 1, module),
               second = handles.reveal(HandleKind::function, 0x1020, 1, module);
  const Handle elsewhere = handles.reveal(HandleKind::function, 0x2010, 1, other),
               alone = handles.reveal(HandleKind::function, 0x3010, 1);
  CHECK(handles.find(HandleKind::function, first)->owner == module.value());
  CHECK(handles.find(HandleKind::function, alone)->owner == 0);
  handles.forget(HandleKind::module, module);
  CHECK(handles.find(HandleKind::function, first) == nullptr);
  CHECK(handles.find(HandleKind::function, second) == nullptr);
  CHECK(handles.find(HandleKind::function, elsewhere));
  CHECK(handles.find(HandleKind::function, alone));
  // The driver may put another function where that one was.
  CHECK(handles.reveal(HandleKind::function, 0x1010, 1, other) != first);
}

TEST_CASE("an object that takes the place of one that is being destroyed has a handle of its own") {
  Handles handles;
  const Handle module = handles.reveal(HandleKind::module, 0x100, 1);
  const Handle function = handles.reveal(HandleKind::function, 0x200, 1, module);
  std::vector<Handle> hidden;
  handles.hide(module, [&](Handle handle) { hidden.push_back(handle); });
  CHECK(hidden == std::vector{module, function});
  // The driver has used both places again before the destruction is settled.
  const Handle next = handles.reveal(HandleKind::module, 0x100, 1);
  const Handle found = handles.reveal(HandleKind::function, 0x200, 1, next);
  CHECK(next != module);
  CHECK(found != function);
  handles.forget(HandleKind::module, module);
  CHECK_FALSE(handles.find(HandleKind::module, module));
  CHECK_FALSE(handles.find(HandleKind::function, function));
  CHECK(handles.find(HandleKind::module, next));
  CHECK(handles.find(HandleKind::function, found));
  CHECK(handles.reveal(HandleKind::module, 0x100, 1) == next);
  CHECK(handles.reveal(HandleKind::function, 0x200, 1, next) == found);
}

TEST_CASE("what was found through a part belongs to the whole") {
  Handles handles;
  const Handle library = handles.reveal(HandleKind::library, 0x1000, 0);
  const Handle kernel = handles.reveal(HandleKind::kernel, 0x1010, 0, library);
  const Handle function = handles.reveal(HandleKind::function, 0x1020, 1, kernel);
  CHECK(handles.find(HandleKind::function, function)->owner == library.value());
  handles.forget(HandleKind::kernel, kernel);
  CHECK(handles.find(HandleKind::function, function));
  handles.forget(HandleKind::library, library);
  CHECK(handles.find(HandleKind::function, function) == nullptr);
}

TEST_CASE("a source that is none leaves an object without an owner") {
  Handles handles;
  const Handle stale = handles.reveal(HandleKind::module, 0x1000, 1);
  handles.forget(HandleKind::module, stale);
  const Handle function = handles.reveal(HandleKind::function, 0x1010, 1, stale);
  CHECK(handles.find(HandleKind::function, function)->owner == 0);
}

TEST_CASE("every live handle of a kind is visited") {
  Handles handles;
  std::set<std::uint64_t> expected;
  for (std::uint32_t i = 1; i < 50; ++i) {
    const Handle given = client_handle(HandleKind::event, i, i);
    handles.adopt(given, i * 16, 1);
    const Handle revealed = handles.reveal(HandleKind::event, i * 16 + 0x10000, 1);
    handles.adopt(client_handle(HandleKind::stream, i), i * 16, 1);
    if (i % 4 == 0) {
      handles.forget(HandleKind::event, given);
      handles.forget(HandleKind::event, revealed);
    } else {
      expected.insert(given.value());
      expected.insert(revealed.value());
    }
  }
  handles.for_each(HandleKind::event, [&](Handle handle, Handles::Entry& entry) {
    CHECK(expected.erase(handle.value()) == 1);
    CHECK(handles.find(HandleKind::event, handle) == &entry);
  });
  CHECK(expected.empty());
}

TEST_CASE("objects that kernels see go by the driver's values, and only the session's are known") {
  Handles handles;
  const Handle texture = handles.reveal(HandleKind::texobject, 7, 3);
  CHECK(texture.value() == 7);
  REQUIRE(handles.find_visible(HandleKind::texobject, texture, 3));
  CHECK(handles.find_visible(HandleKind::texobject, texture, 3)->context == 3);
  CHECK(handles.find_visible(HandleKind::surfobject, texture, 3) == nullptr);
  CHECK(handles.find_visible(HandleKind::texobject, Handle(8), 3) == nullptr);
  unsigned seen = 0;
  handles.for_each(HandleKind::texobject, [&](Handle handle, const Handles::Entry& entry) {
    CHECK(handle == texture);
    CHECK(entry.value == 7);
    ++seen;
  });
  CHECK(seen == 1);
  handles.forget_visible(HandleKind::texobject, texture, 3);
  CHECK(handles.find_visible(HandleKind::texobject, texture, 3) == nullptr);
}

TEST_CASE("an object without a handle is not told") {
  Handles handles;
  const Handle array = handles.reveal(HandleKind::array, 0x1110, 3);
  CHECK(handles.known(HandleKind::array, 0x1110) == array);
  CHECK_FALSE(handles.known(HandleKind::array, 0x2220));
  CHECK_FALSE(handles.known(HandleKind::mipmap, 0x1110));
  CHECK_FALSE(handles.known(HandleKind::array, 0));
  handles.forget(HandleKind::array, array);
  CHECK_FALSE(handles.known(HandleKind::array, 0x1110));
}

TEST_CASE("parts that come and go leave nothing behind") {
  Handles handles;
  const Handle graph = handles.reveal(HandleKind::graph, 0x1000, 0);
  const auto come_and_go = [&](std::uint64_t value) {
    const Handle part = handles.reveal(HandleKind::node, value, 0, graph);
    handles.forget(HandleKind::node, part);
  };
  for (std::uint64_t i = 1; i <= 1000; ++i) come_and_go(0x2000 + 16 * i);
  const auto before = ::mallinfo2();
  for (std::uint64_t i = 1; i <= 500'000; ++i) come_and_go(0x2000 + 16 * i);
  const auto after = ::mallinfo2();
  CHECK(after.uordblks + after.hblkhd <= before.uordblks + before.hblkhd + 65536);

  const Handle function = handles.reveal(HandleKind::function, 0x5000, 1);
  const auto layout = std::make_shared<FunctionLayout>();
  handles.find(HandleKind::function, function)->layout = layout;
  handles.forget(HandleKind::function, function);
  CHECK(layout.use_count() == 1);
}

TEST_CASE("contexts have equal values for what kernels see") {
  Handles handles;
  const Handle texture(7);
  CHECK(handles.reveal(HandleKind::texobject, 7, 3) == texture);
  CHECK(handles.reveal(HandleKind::texobject, 7, 4) == texture);
  REQUIRE(handles.find_visible(HandleKind::texobject, texture, 3));
  CHECK(handles.find_visible(HandleKind::texobject, texture, 3)->context == 3);
  CHECK(handles.find_visible(HandleKind::texobject, texture, 4)->context == 4);
  CHECK(handles.find_visible(HandleKind::texobject, texture, 5) == nullptr);
  handles.forget_visible(HandleKind::texobject, texture, 4);
  CHECK(handles.find_visible(HandleKind::texobject, texture, 4) == nullptr);
  CHECK(handles.find_visible(HandleKind::texobject, texture, 3));
  CHECK(handles.in_any_context(HandleKind::texobject, texture));
  CHECK_FALSE(handles.in_any_context(HandleKind::texobject, Handle(8)));
}

TEST_CASE("there is an end of the handles of a kind") {
  Handles handles;
  Handle last;
  const std::uint64_t count = Handle::index_max - Handle::worker_index_first + 1;
  for (std::uint64_t i = 1; i <= count; ++i) {
    if (!handles.has_room(HandleKind::node)) FAIL("there is none for object " << i);
    last = handles.reveal(HandleKind::node, i * 16, 0);
  }
  REQUIRE(last);
  CHECK_FALSE(handles.has_room(HandleKind::node));
  CHECK_THROWS_AS(handles.require_room(HandleKind::node), Handles::Exhausted);
  CHECK_THROWS_AS(handles.reveal(HandleKind::node, (count + 1) * 16, 0), Handles::Exhausted);
  int destroyed = 0;
  const auto destroy = [&] { ++destroyed; };
  CHECK_THROWS_AS(handles.reveal_made(HandleKind::node, (count + 1) * 16, 0, destroy), Handles::Exhausted);
  CHECK(destroyed == 1);
  CHECK(handles.reveal_made(HandleKind::graph, 32, 0, destroy));
  CHECK(destroyed == 1);
  CHECK_FALSE(handles.known(HandleKind::node, (count + 1) * 16));
  CHECK(handles.reveal(HandleKind::node, count * 16, 0) == last);  // which has one
  CHECK(handles.reveal(HandleKind::graph, 16, 0));
  for (std::uint64_t i = 1; i <= 257; ++i) handles.forget(HandleKind::node, handles.known(HandleKind::node, i * 16));
  CHECK(handles.reveal(HandleKind::node, (count + 1) * 16, 0));
}
