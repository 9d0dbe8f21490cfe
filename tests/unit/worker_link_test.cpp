// What a broker and a worker tell each other.

#include "server/worker_link.h"

#include <catch2/catch.hpp>
#include <exception>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace fargpu;
using namespace fargpu::server;

namespace {

struct Link {
  Link() { std::tie(ours, theirs) = make_link(); }
  ~Link() {
    ::close(ours);
    ::close(theirs);
  }
  int ours = -1, theirs = -1;
};

bool say(int link, const std::string& text, int descriptor = -1) {
  return send_link(
      link, [&](wire::WorkerMessage::Builder message) { message.setEnded(text); }, descriptor);
}

std::string text_of(const LinkPacket& packet) {
  MessageReader reader(packet.message);
  return reader.root<wire::WorkerMessage>().getEnded().cStr();
}

}  // namespace

TEST_CASE("a broker that may open no more files says what to raise") {
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::exception_ptr thrown;  // looked at once there may be files again: sanitizers open some for that
  try {
    make_link();
  } catch (...) {
    thrown = std::current_exception();
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE(thrown);
  CHECK_THROWS_WITH(std::rethrow_exception(thrown),
                    Catch::Contains("all the 0 files") && Catch::Contains("LimitNOFILE"));
}

TEST_CASE("one message, one packet, in order, with its descriptor") {
  Link link;
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  REQUIRE(say(link.ours, "first", pipe[1]));
  REQUIRE(say(link.ours, std::string(100'000, 'x')));
  const auto first = receive_link(link.theirs);
  REQUIRE(first);
  CHECK(text_of(*first) == "first");
  REQUIRE(first->descriptor >= 0);
  CHECK((::fcntl(first->descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::write(first->descriptor, "!", 1) == 1);
  char byte = 0;
  CHECK(::read(pipe[0], &byte, 1) == 1);
  CHECK(byte == '!');
  const auto second = receive_link(link.theirs);
  REQUIRE(second);
  CHECK(text_of(*second) == std::string(100'000, 'x'));
  CHECK(second->descriptor == -1);
  for (const int descriptor : {pipe[0], pipe[1], first->descriptor}) ::close(descriptor);
}

TEST_CASE("an end that does not read holds the other up no more than one that is gone") {
  Link link;
  int sent = 0;
  while (say(link.ours, std::string(10'000, 'x')) && sent < 100'000) ++sent;
  REQUIRE(sent > 0);
  CHECK(sent < 100'000);
  REQUIRE(receive_link(link.theirs));
  CHECK(say(link.ours, "there is room again"));

  Link broken;
  ::close(std::exchange(broken.theirs, -1));
  CHECK_FALSE(say(broken.ours, "nobody"));
  const auto end = receive_link(broken.ours);
  REQUIRE(end);
  CHECK(end->message.empty());
}

TEST_CASE("nothing is there until something comes") {
  Link link;
  ::fcntl(link.ours, F_SETFL, ::fcntl(link.ours, F_GETFL) | O_NONBLOCK);
  CHECK_FALSE(receive_link(link.ours));
  REQUIRE(say(link.theirs, "now"));
  CHECK(receive_link(link.ours));
}
