// What strangers pass to the broker holds up nobody.

#include "server/broker/passed_descriptors.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "protocol/descriptor_passing.h"
#include "server/exchange.h"

using namespace fargpu;
using namespace fargpu::server;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::pair<Descriptor, Descriptor> socket_pair(int type = SOCK_STREAM) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Both ends of a connection of which the first takes a minute to close: nobody reads what it has to send.
std::pair<Descriptor, Descriptor> lingering() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  REQUIRE(::bind(listener.number(), name, size) == 0);
  REQUIRE(::listen(listener.number(), 1) == 0);
  REQUIRE(::getsockname(listener.number(), name, &size) == 0);
  Descriptor near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(near.number(), name, size) == 0);
  Descriptor far(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
  const linger minute{1, 60};
  REQUIRE(::setsockopt(near.number(), SOL_SOCKET, SO_LINGER, &minute, sizeof(minute)) == 0);
  const std::vector<std::byte> much(1u << 20);
  while (::send(near.number(), much.data(), much.size(), MSG_DONTWAIT) > 0) {}
  return {std::move(near), std::move(far)};
}

/// Sends these bytes, with as many descriptors.
template <std::size_t count>
void pass(const Descriptor& socket, const std::string& bytes, const std::array<int, count>& passed, int flags = 0) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(passed))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(passed));
  std::memcpy(CMSG_DATA(header), passed.data(), sizeof(passed));
  REQUIRE(::sendmsg(socket.number(), &message, flags) == static_cast<ssize_t>(bytes.size()));
}

bool ends_soon(const Descriptor& end) {
  pollfd polled{end.number(), POLLIN, 0};
  char byte;
  return ::poll(&polled, 1, 10'000) == 1 && ::read(end.number(), &byte, 1) == 0;
}

}  // namespace

TEST_CASE("passed descriptors: bytes that they come with are not read, and others are") {
  const auto [ours, theirs] = socket_pair();
  std::array<std::byte, 8> buffer;
  CHECK((receive_without_descriptors(ours.number(), buffer) == -1 && errno == EAGAIN));
  REQUIRE(send_with_descriptor(theirs.number(), bytes_of("ab"), -1) == 2);
  CHECK(receive_without_descriptors(ours.number(), std::span(buffer).first(1)) == 1);
  CHECK(receive_without_descriptors(ours.number(), buffer) == 1);
  REQUIRE(send_with_descriptor(theirs.number(), bytes_of("cd"), theirs.number()) == 2);
  CHECK((receive_without_descriptors(ours.number(), buffer) == -1 && errno == EBADMSG));
  CHECK((receive_without_descriptors(ours.number(), buffer) == -1 && errno == EBADMSG));
}

TEST_CASE("passed descriptors: a look does not pass over what comes out of band") {
  const auto [ours, theirs] = socket_pair();
  keep_in_order(ours.number());
  std::array<std::byte, 8> buffer;
  REQUIRE(::send(theirs.number(), "a", 1, MSG_OOB) == 1);
  CHECK(receive_without_descriptors(ours.number(), buffer) == 1);
  pass(theirs, "b", std::array{theirs.number()}, MSG_OOB);
  REQUIRE(::send(theirs.number(), "cd", 2, 0) == 2);
  CHECK((receive_without_descriptors(ours.number(), buffer) == -1 && errno == EBADMSG));
}

TEST_CASE("passed descriptors: what takes long to close is closed aside, and keeps nothing else waiting") {
  auto [near, far] = lingering();
  auto [ours, theirs] = socket_pair();
  REQUIRE(send_with_descriptor(theirs.number(), bytes_of("a"), near.number()) == 1);
  near = {};  // the last one is on its way
  auto [other, its_end] = socket_pair();
  const auto begin = Clock::now();
  close_aside(ours.release());
  hang_up_aside(other.release());
  CHECK(Clock::now() - begin < 5s);
  CHECK(ends_soon(its_end));
  close_aside(-1);
}

TEST_CASE("passed descriptors: a worker's first one is taken, and others are closed aside") {
  const auto [ours, theirs] = socket_pair(SOCK_SEQPACKET);
  auto [near, far] = lingering();
  auto [other, its_end] = socket_pair();
  pass(theirs, "packet", std::array{other.number(), near.number()});
  near = {};
  other = {};
  const auto begin = Clock::now();
  auto packet = receive_from_worker(ours.number());
  CHECK(Clock::now() - begin < 5s);
  REQUIRE(packet);
  CHECK(packet->message.size() == 6);
  CHECK(packet->had_more);
  CHECK(packet->descriptor >= 0);
  { const Descriptor kept(packet->descriptor, close_aside); }
  CHECK(ends_soon(its_end));
}
