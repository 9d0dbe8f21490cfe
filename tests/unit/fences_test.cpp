// Learning that the GPU is past a point.

#include "client/stream/fences.h"

#include <catch2/catch.hpp>

#include "client/objects/thread.h"
#include "lone_session.h"
#include "operations.capnp.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

struct Fixture : LoneSession {
  Thread& thread = Thread::current();
  Fences& fences() { return session().fences; }

  // The fence that the client asked the worker for, and the stream it named.
  std::pair<std::uint64_t, std::uint64_t> asked() {
    const Sent sent = next_call();
    CHECK(sent.header.opcode == static_cast<std::uint16_t>(Opcode::fence));
    CHECK((sent.header.detail & call_wants_reply) == 0);
    MessageReader reader(sent.message);
    const auto fence = reader.root<wire::Fence>();
    return {fence.getFence(), fence.getStream()};
  }
};

}  // namespace

TEST_CASE("an action runs when the worker says that its fence was passed, and once") {
  Fixture f;
  unsigned runs = 0;
  f.fences().after_all(f.thread, [&] { ++runs; });
  const auto [fence, stream] = f.asked();
  CHECK(stream == 0);
  CHECK(runs == 0);
  f.fences().passed(fence + 1);  // not ours
  CHECK(runs == 0);
  f.fences().passed(fence);
  CHECK(runs == 1);
  f.fences().passed(fence);
  CHECK(runs == 1);
}

TEST_CASE("a fence on a stream names it, and its context") {
  Fixture f;
  Context context;
  context.handle = Handle(HandleKind::context, 3, 1);
  Stream stream;
  stream.handle = Handle(HandleKind::stream, 9, 2);
  stream.context = &context;
  unsigned runs = 0;
  f.fences().after(f.thread, stream, [&] { ++runs; });
  const auto sent = f.next_call();
  CHECK(sent.header.subject == context.id());
  MessageReader reader(sent.message);
  CHECK(reader.root<wire::Fence>().getStream() == stream.handle.value());
  f.fences().passed(reader.root<wire::Fence>().getFence());
  CHECK(runs == 1);
}

TEST_CASE("requests over everything share a fence while nothing new is submitted") {
  Fixture f;
  unsigned first = 0, second = 0, third = 0, fourth = 0;
  f.fences().after_all(f.thread, [&] { ++first; });
  f.fences().after_all(f.thread, [&] { ++second; });
  f.session().calls.note_submission(f.session().calls.submitted() + 1);
  f.fences().after_all(f.thread, [&] { ++third; });
  const auto shared = f.asked().first, later = f.asked().first;
  CHECK(shared != later);
  f.fences().passed(shared);
  CHECK(first == 1);
  CHECK(second == 1);
  CHECK(third == 0);
  f.fences().passed(later);
  CHECK(third == 1);
  // A fence that was passed is not shared any more, although nothing was submitted since.
  f.fences().after_all(f.thread, [&] { ++fourth; });
  const auto last = f.asked().first;
  CHECK(last != later);
  f.fences().passed(last);
  CHECK(fourth == 1);
}

TEST_CASE("a fence on a stream is never shared") {
  Fixture f;
  Context context;
  Stream stream;
  stream.context = &context;
  unsigned runs = 0;
  f.fences().after(f.thread, stream, [&] { ++runs; });
  f.fences().after(f.thread, stream, [&] { ++runs; });
  const auto [first, where] = f.asked();
  const auto second = f.asked().first;
  CHECK(where == 1);  // the legacy stream
  CHECK(first != second);
  f.fences().passed(second);
  CHECK(runs == 1);
  f.fences().passed(first);
  CHECK(runs == 2);
}

TEST_CASE("an action may ask for another fence") {
  Fixture f;
  unsigned runs = 0;
  f.fences().after_all(f.thread, [&] { f.fences().after_all(f.thread, [&] { ++runs; }); });
  f.fences().passed(f.asked().first);
  CHECK(runs == 0);
  f.fences().passed(f.asked().first);
  CHECK(runs == 1);
}

TEST_CASE("the worker's word comes over the connection") {
  Fixture f;
  std::atomic<bool> ran{false};
  f.fences().after_all(f.thread, [&] { ran = true; });
  const std::uint64_t fence = f.asked().first;
  f.push([&](wire::Control::Builder control) { control.initPassed().setFence(fence); });
  f.session().calls.receiver.wait_until([&] { return ran.load(); });
  CHECK(ran);
}
