// The table of contexts, and that of reserved addresses.

#include "client/objects/contexts.h"

#include <catch2/catch.hpp>

#include "client/memory/reservations.h"
#include "lone_session.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

struct Table {
  LoneSession lone;
  HandleMap<Stream> streams{HandleKind::stream};
  Contexts contexts{2, lone.session(), lone.session().calls, streams};
};

}  // namespace

TEST_CASE("each device has a primary context, which knows its session and the way to its worker") {
  Table t;
  for (const int device : {0, 1}) {
    Context& primary = t.contexts.primary(device);
    CHECK(primary.device == device);
    CHECK(primary.session == &t.lone.session());
    CHECK(&Calls::of(&primary) == &t.lone.session().calls);
    CHECK(t.contexts.find(primary.cuda()) == &primary);
    CHECK(&t.contexts.home(primary) == &primary);
  }
  CHECK(t.contexts.devices_in_use().empty());
}

TEST_CASE("a created context is found while it is open") {
  Table t;
  Context* const context = t.contexts.make(1, 0);
  REQUIRE(context);
  CHECK(t.contexts.find(context->cuda()) == nullptr);
  t.contexts.opened(*context);
  CHECK(t.contexts.find(context->cuda()) == context);
  CHECK(t.contexts.devices_in_use() == std::set<int>{1});
  const CUcontext handle = context->cuda();
  context->active = false;
  t.contexts.closed(*context);
  CHECK(t.contexts.find(handle) == nullptr);
  CHECK(t.contexts.was(handle));
}

TEST_CASE("a green context's home is the primary one of its device") {
  Table t;
  Context* const green = t.contexts.make(1, 0);
  green->green = true;
  t.contexts.opened(*green);
  CHECK(&t.contexts.home(*green) == &t.contexts.primary(1));
  CHECK(t.contexts.greens(t.contexts.primary(1)) == std::vector<Context*>{green});
  CHECK(t.contexts.greens(t.contexts.primary(0)).empty());
}

TEST_CASE("a failure is that of all open contexts of the device, and the first one stays") {
  Table t;
  Context& here = t.contexts.primary(0);
  Context* const beside = t.contexts.make(0, 0);
  Context& other = t.contexts.primary(1);
  for (Context* const context : {&here, beside, &other}) t.contexts.opened(*context);
  t.contexts.fail_with(beside->id(), CUDA_ERROR_ILLEGAL_ADDRESS);
  t.contexts.fail(0, CUDA_ERROR_LAUNCH_FAILED);
  CHECK(here.failure == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(beside->failure == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(other.failure == CUDA_SUCCESS);
}

TEST_CASE("contexts are idle when no open one has work that is not known to be done") {
  Table t;
  Context& context = t.contexts.primary(0);
  t.contexts.opened(context);
  CHECK(t.contexts.idle());
  context.legacy.submitted = context.submitted = 7;
  CHECK_FALSE(t.contexts.idle());
  raise(context.completed, 7);
  CHECK(t.contexts.idle());
}

TEST_CASE("a context is idle when each of its streams is, also those that are gone") {
  Table t;
  Context& context = t.contexts.primary(0);
  t.contexts.opened(context);
  std::uint64_t call = 0;
  const auto stream = [&] {
    const auto [handle, made] = t.streams.create();
    made->handle = handle;
    made->context = &context;
    made->flags = CU_STREAM_NON_BLOCKING;
    t.streams.publish(handle);
    return made;
  };
  const auto submit = [&](Stream& to) { to.submitted = context.submitted = ++call; };
  Stream* const first = stream();
  Stream* const second = stream();
  submit(*first);
  submit(*second);
  first->complete(++call, 0);
  CHECK_FALSE(t.contexts.idle());
  submit(context.legacy);
  second->complete(++call, 0);
  CHECK_FALSE(t.contexts.idle());
  context.legacy.complete(++call, 0);
  CHECK(t.contexts.idle());
  CHECK(context.idle());  // is known from now on
  submit(*first);
  first->pass(++call, 0);  // a copy whose bytes were taken may still use memory
  CHECK(first->idle());
  CHECK_FALSE(t.contexts.idle());
  first->complete(++call, 0);
  CHECK(t.contexts.idle());
  submit(*first);
  raise(context.orphaned, first->submitted);
  t.streams.erase(first->handle);
  CHECK_FALSE(t.contexts.idle());
  raise(context.completed, ++call);
  CHECK(t.contexts.idle());
}

TEST_CASE("a reservation holds what lies within it, and is removed as it was made") {
  Reservations reservations;
  reservations.add(0x1000, 0x1000);
  reservations.add(0x2000, 0x1000);
  CHECK(reservations.holds(0x1000, 0x1000));
  CHECK(reservations.holds(0x1800, 0x10));
  CHECK_FALSE(reservations.holds(0x1800, 0x1000));  // two of them
  CHECK_FALSE(reservations.holds(0xfff, 1));
  CHECK_FALSE(reservations.holds(0x3000, 1));
  CHECK_FALSE(reservations.remove(0x1000, 0x2000));
  CHECK(reservations.remove(0x1000, 0x1000));
  CHECK_FALSE(reservations.holds(0x1000, 1));
  CHECK(reservations.holds(0x2000, 1));
}
