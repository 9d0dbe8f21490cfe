// RDMA: where it is allowed, which devices it goes by, how two ends come to it, and what strangers and a peer that
// breaks the protocol can do. By UCX's TCP, where the plugin is built; what every channel does is in channel_test.cpp.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <string_view>
#include <thread>

#include "frames.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "protocol/rdma/devices.h"
#include "protocol/rdma/networks.h"
#include "rdma_ends.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

sockaddr_storage address_of(const std::string& text) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) address.ss_family = AF_INET;
  else if (::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) address.ss_family = AF_INET6;
  return address;
}

bool contains(const std::string& networks, const std::string& address) {
  rdma::Networks parsed;
  std::string error;
  REQUIRE(rdma::Networks::parse(networks, parsed, error));
  return parsed.contain(address_of(address));
}

/// What the kernel shows of cards.
struct Sys {
  Sys() {
    static int number = 0;
    folder = fs::temp_directory_path() / ("fargpu-sys-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
  }
  ~Sys() { fs::remove_all(folder); }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text << "\n";
  }
  void port(const std::string& name, const std::string& state) { write("class/infiniband/" + name + "/state", state); }
  fs::path folder;
};

}  // namespace

TEST_CASE("RDMA is allowed on the networks that are named") {
  CHECK(contains("10.1.0.0/16", "10.1.200.3"));
  CHECK_FALSE(contains("10.1.0.0/16", "10.2.0.1"));
  CHECK(contains("10.1.0.0/16,192.168.7.9", "192.168.7.9"));
  CHECK_FALSE(contains("10.1.0.0/16,192.168.7.9", "192.168.7.8"));
  CHECK(contains("10.1.2.128/25", "10.1.2.129"));
  CHECK_FALSE(contains("10.1.2.128/25", "10.1.2.127"));
  CHECK(contains("fd00:1::/32", "fd00:1::9"));
  CHECK_FALSE(contains("fd00:1::/32", "fd00:2::9"));
  CHECK(contains("10.1.0.0/16", "::ffff:10.1.0.1"));
  CHECK_FALSE(contains("::/1", "10.1.0.1") != contains("::/1", "::ffff:10.1.0.1"));
  CHECK(contains(rdma::Networks::usual, "127.0.0.1"));
  CHECK(contains(rdma::Networks::usual, "::1"));
  CHECK_FALSE(contains(rdma::Networks::usual, "10.0.0.1"));
  CHECK_FALSE(contains("none", "127.0.0.1"));
  CHECK(contains("all", "8.8.8.8"));
  CHECK_FALSE(contains("all", "a Unix socket"));
  rdma::Networks networks;
  std::string error;
  for (const char* const wrong : {"", "10.1", "10.1.0.0/33", "fd00::/129", "10.1.0.0/", "10.1.0.0/x", "a,10.1.0.0/16",
                                  "10.1.0.0/16,", "10.1.0.0/-1", "host"}) {
    INFO(wrong);
    CHECK_FALSE(rdma::Networks::parse(wrong, networks, error));
    CHECK_FALSE(error.empty());
  }
}

TEST_CASE("a connection goes by the active ports of its own interface, and by no others") {
  Sys sys;
  sys.port("mlx5_0/ports/1", "4: ACTIVE");
  sys.write("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "ens1");
  sys.write("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "ens1.100");
  sys.port("mlx5_1/ports/1", "1: DOWN");
  sys.write("class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "ens2");
  sys.port("mlx5_2/ports/1", "4: ACTIVE");  // InfiniBand, whose ports have no addresses of interfaces
  sys.port("mlx5_2/ports/2", "4: ACTIVE");
  sys.write("class/net/ib1/device/infiniband/mlx5_2/x", "");
  sys.write("class/net/ib1/dev_port", "1");
  using Ports = std::vector<std::string>;
  CHECK(rdma::rdma_ports_of("ens1", sys.folder) == Ports{"mlx5_0:1"});
  CHECK(rdma::rdma_ports_of("ens1.100", sys.folder) == Ports{"mlx5_0:1"});
  CHECK(rdma::rdma_ports_of("ens2", sys.folder).empty());
  CHECK(rdma::rdma_ports_of("ib1", sys.folder) == Ports{"mlx5_2:2"});
  CHECK(rdma::rdma_ports_of("eth0", sys.folder).empty());
  CHECK(rdma::rdma_ports_of("ens1", sys.folder / "nowhere").empty());
  const rdma::ToOpen open = rdma::to_open("ens1", rdma::Transports::cards, sys.folder);
  CHECK(open.devices == "mlx5_0:1");
  CHECK_THROWS_WITH(rdma::to_open("eth0", rdma::Transports::cards, sys.folder),
                    Catch::Contains("eth0 has no RDMA card with an active port"));
  CHECK_THROWS_AS(rdma::to_open("", rdma::Transports::tcp, sys.folder), rdma::RdmaError);
  CHECK(rdma::to_open("lo", rdma::Transports::tcp).devices == "lo");
}

TEST_CASE("the interface of an address of this machine") {
  const auto all = rdma::interface_addresses();
  CHECK(rdma::interface_of(all, address_of("127.0.0.1")) == "lo");
  CHECK(rdma::interface_of(all, address_of("203.0.113.77")).empty());
}

TEST_CASE("where an end has no devices, both know why, and the connection goes on") {
  auto [left, right] = socket_ends();
  auto [one, other] = hand_both_over(*left, *right, nullptr, nullptr, "there is no card here", "nor there");
  CHECK_FALSE(one.end);
  CHECK_FALSE(other.end);
  CHECK(one.text == "the other end says: nor there");
  CHECK(other.text == "the other end says: there is no card here");
  send(*left, pattern(10));
  REQUIRE(right->wait({.readable = true}, Channel::forever).readable);
  Bytes buffer(10);
  CHECK(right->receive_some(buffer) == 10);
  CHECK(buffer == pattern(10));
}

#ifdef FARGPU_UCX

namespace {

/// The head of a message, as channels have it.
struct Head {
  std::array<std::byte, rdma::secret_bytes> secret{};
  std::uint64_t written = 0, read = 0;
};

/// A line that is not a channel's: it sends to an end what it likes.
class Stranger {
 public:
  explicit Stranger(const rdma::EndFacts& victim) : rdma_(devices_->functions()) {
    std::array<char, rdma::why_bytes> why{};
    const rdma::Events events{this, [](void*, const void*, std::size_t, const void*, std::size_t) {}, [](void*) {},
                              [](void*, const char*) {}};
    line_ = rdma_.open_line(devices_->context(), 4096, nullptr, &events, why.data());
    const rdma::End end{victim.address.data(), victim.address.size(), victim.key.data(), victim.key.size(),
                        victim.ring};
    if (!line_ || !rdma_.connect(line_, &end, why.data())) throw rdma::RdmaError(why.data());
    std::copy(victim.secret.begin(), victim.secret.end(), secret_.begin());
  }
  ~Stranger() { rdma_.close_line(line_); }

  Head head(std::uint64_t written, std::uint64_t read) const { return {secret_, written, read}; }
  void say(const Head& head, const Bytes& body = {}) {
    bodies_.push_back(body);
    rdma_.send(line_, &head, sizeof(head), bodies_.back().data(), body.size());
  }
  void work() { rdma_.progress(line_); }

 private:
  const std::shared_ptr<rdma::OpenedDevices> devices_ = open_ucx(false);
  const rdma::Interface& rdma_;
  rdma::Line* line_ = nullptr;
  std::array<std::byte, rdma::secret_bytes> secret_{};
  std::deque<Bytes> bodies_;
};

/// Two ends that have met, and what is shown of the right one.
struct Met {
  Met() {
    std::tie(left_socket, right_socket) = socket_ends();
    rdma::ChannelEnd one(open_ucx(false), 64u << 10), other(open_ucx(false), 64u << 10);
    facts = other.facts();
    one.connect(other.facts());
    other.connect(one.facts());
    auto meeting = std::async(std::launch::async, [&] { other.meet(20s); });
    one.meet(20s);
    meeting.get();
    left = std::move(one).open(left_socket);
    right = std::move(other).open(right_socket);
  }

  /// What comes at the right end until there are so many bytes, while the stranger works.
  Bytes receive(std::size_t bytes, Stranger* stranger = nullptr) {
    Bytes all, buffer(64u << 10);
    while (all.size() < bytes) {
      if (stranger) stranger->work();
      append(all, std::span(buffer).first(right->receive_some(buffer)));
      left->wait({.readable = true}, 0ns);
    }
    return all;
  }
  /// Lets the right end hear what the stranger says.
  void listen(Stranger& stranger) {
    Bytes buffer(64u << 10);
    for (const auto end = std::chrono::steady_clock::now() + 300ms; std::chrono::steady_clock::now() < end;) {
      stranger.work();
      if (right->receive_some(buffer) > 0) throw std::runtime_error("something came");
    }
  }

  std::shared_ptr<Channel> left_socket, right_socket;
  rdma::EndFacts facts;
  std::unique_ptr<Channel> left, right;
};

}  // namespace

TEST_CASE("a message without the key is not heard, and disturbs nothing") {
  Met met;
  rdma::EndFacts known = met.facts;
  known.secret[3] ^= std::byte{1};
  Stranger stranger(known);
  stranger.say(stranger.head(5, 0), pattern(5));
  stranger.say(stranger.head(1u << 30, 1u << 30));
  met.listen(stranger);
  send(*met.left, pattern(1000));
  CHECK(met.receive(1000, &stranger) == pattern(1000));
}

TEST_CASE("a message that comes again changes nothing") {
  Met met;
  send(*met.left, pattern(1000));
  CHECK(met.receive(1000) == pattern(1000));
  Stranger stranger(met.facts);
  stranger.say(stranger.head(1000, 0), pattern(1000, 9));
  stranger.say(stranger.head(10, 0), pattern(10, 9));
  stranger.say(stranger.head(0, 0));
  met.listen(stranger);
  send(*met.left, pattern(100, 2));
  CHECK(met.receive(100, &stranger) == pattern(100, 2));
}

TEST_CASE("a peer that says what cannot be loses the connection, with a reason") {
  Met met;
  Stranger peer(met.facts);
  std::string wanted;
  SECTION("more was written than there is room for") {
    peer.say(peer.head((64u << 10) + 1, 0));
    wanted = "written more than there is room for";
  }
  SECTION("more was read than was sent") {
    peer.say(peer.head(0, 1));
    wanted = "read what was not written";
  }
  SECTION("bytes are left out") {
    peer.say(peer.head(100, 0), pattern(50));
    wanted = "leaves bytes out";
  }
  CHECK_THROWS_WITH(met.listen(peer), Catch::Contains(wanted));
  CHECK_THROWS_AS(send(*met.right, pattern(10)), ChannelClosed);
}

TEST_CASE("a peer that says again and again that more is to come keeps nobody") {
  Met met;
  const auto say = [&](std::uint64_t word) {
    const Channel::Bytes bytes = std::as_bytes(std::span(&word, 1));
    REQUIRE(met.left_socket->send_some(std::span(&bytes, 1)) == sizeof(word));
  };
  for (int i = 0; i < 30; ++i) say(1);
  const auto begin = std::chrono::steady_clock::now();
  met.right->wait({.readable = true}, 1ms);
  CHECK(std::chrono::steady_clock::now() - begin < 1500ms);  // each waits for a tenth of a second
  say((64u << 10) + 1);
  Bytes buffer(10);
  const auto hear = [&] {
    for (int i = 0; i < 100; ++i) {
      met.right->wait({.readable = true}, 1ms);
      met.right->receive_some(buffer);
    }
  };
  CHECK_THROWS_WITH(hear(), Catch::Contains("sent more than there is room for"));
}

TEST_CASE("a thread that sleeps is left alone while another one looks, and takes what comes when that one has gone") {
  auto [left, right] = rdma_channel();
  std::atomic<bool> looking{true};
  auto slept = std::async(std::launch::async, [&far = *right, &looking] {
    const auto end = std::chrono::steady_clock::now() + 60s;
    Waker waker;
    Bytes buffer(1000);
    while (std::chrono::steady_clock::now() < end)
      if (far.wait({.readable = true}, 60s, &waker).readable && !looking)
        if (const std::size_t got = far.receive_some(buffer)) return got;
    return std::size_t{0};
  });
  constexpr unsigned messages = 4000;
  const unsigned before = arms;
  Bytes buffer(1000);
  for (unsigned i = 0; i < messages; ++i) {
    send(*left, pattern(64));
    for (std::size_t got = 0; got < 64;) got += right->receive_some(buffer);
  }
  CHECK(arms - before < messages / 2);
  looking = false;
  send(*left, pattern(77));
  for (const auto end = std::chrono::steady_clock::now() + 30s;
       slept.wait_for(1ms) != std::future_status::ready && std::chrono::steady_clock::now() < end;)
    left->wait({.readable = true}, 0ns);  // as whatever sends does
  REQUIRE(slept.wait_for(0s) == std::future_status::ready);
  CHECK(slept.get() == 77);
}

TEST_CASE("where UCX aborts, the line is lost and not the process") {
  struct Side {
    rdma::Line* line = nullptr;
    std::string failure;
    ssize_t (*write)(int descriptor, const void* bytes, std::size_t size) = nullptr;
    void (*abort)() = nullptr;
    bool heard = false;
  };
  const auto devices = open_ucx(false);
  const rdma::Interface& rdma = devices->functions();
  Dl_info plugin{};
  REQUIRE(::dladdr(reinterpret_cast<const void*>(rdma.open), &plugin) != 0);
  void* const library = ::dlopen(plugin.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library);
  // What UCX's libraries have for these.
  const auto abort = reinterpret_cast<decltype(Side::abort)>(::dlsym(library, "abort"));
  const auto write = reinterpret_cast<decltype(Side::write)>(::dlsym(library, "write"));
  REQUIRE(abort != &std::abort);
  REQUIRE(write != &::write);

  std::array<char, rdma::why_bytes> why{};
  Side one, other;
  for (Side* const side : {&one, &other}) {
    const rdma::Events events{side,
                              [](void* owner, const void*, std::size_t, const void*, std::size_t) {
                                auto& side = *static_cast<Side*>(owner);
                                side.heard = true;
                                constexpr std::string_view reason = "[host:1:0:1] tcp_ep.c:1  it was unexpected\n";
                                if (side.write) side.write(STDERR_FILENO, reason.data(), reason.size());
                                if (side.abort) side.abort();
                              },
                              [](void*) {},
                              [](void* owner, const char* text) { static_cast<Side*>(owner)->failure = text; }};
    side->line = rdma.open_line(devices->context(), 4096, nullptr, &events, why.data());
    REQUIRE(side->line);
  }
  rdma::End end{};
  for (auto [from, to] : {std::pair{&one, &other}, std::pair{&other, &one}}) {
    rdma.end(to->line, &end);
    REQUIRE(rdma.connect(from->line, &end, why.data()));
  }
  other.abort = abort;
  other.write = write;
  REQUIRE(rdma.send(one.line, "head", 4, "body", 4));
  for (const auto end_of_time = std::chrono::steady_clock::now() + 20s;
       other.failure.empty() && std::chrono::steady_clock::now() < end_of_time;) {
    rdma.progress(one.line);
    rdma.progress(other.line);
  }
  CHECK(other.heard);
  CHECK_THAT(other.failure, Catch::Contains("UCX has given up") && Catch::EndsWith("it was unexpected"));
  CHECK_FALSE(rdma.send(other.line, "head", 4, "body", 4));
  CHECK_FALSE(rdma.put(other.line, 0, "body", 4, nullptr));
  CHECK_FALSE(rdma.flush(other.line));
  rdma.progress(other.line);
  CHECK(rdma.arm(other.line));
  rdma.close_line(other.line);
  rdma.close_line(one.line);

  auto [left, right] = rdma_channel();  // others go on
  auto received = std::async(std::launch::async, [&far = *right] {
    Bytes all, buffer(1u << 20);
    while (all.size() < 100'000) {
      append(all, std::span(buffer).first(far.receive_some(buffer)));
      far.wait({.readable = true}, 10ms);
    }
    return all;
  });
  send(*left, pattern(100'000));
  left->let_out();
  CHECK(received.get() == pattern(100'000));
}

TEST_CASE("facts that no end has are refused before UCX sees them") {
  rdma::ChannelEnd end(open_ucx(false), 64u << 10), other(open_ucx(false), 64u << 10);
  rdma::EndFacts facts = other.facts();
  SECTION("a ring that is no power of two") { facts.ring_bytes -= 8; }
  SECTION("a huge ring") { facts.ring_bytes = std::uint64_t{1} << 62; }
  SECTION("a larger ring than any end has") { facts.ring_bytes = 2 * limits::rdma_ring_bytes; }
  SECTION("no address") { facts.address.clear(); }
  SECTION("a long address") { facts.address.resize(5000); }
  SECTION("no key") { facts.key.clear(); }
  SECTION("a short secret") { facts.secret.resize(15); }
  CHECK_THROWS_AS(end.connect(facts), ProtocolError);
}

TEST_CASE("ends that do not meet give up, and both know it") {
  auto [left, right] = socket_ends();
  auto fake = std::async(std::launch::async, [&far = *right] {
    // An end that is told of, and that is not there.
    std::optional<rdma::ChannelEnd> gone(std::in_place, open_ucx(false), 64u << 10);
    const rdma::EndFacts facts = gone->facts();
    gone.reset();
    receive_control(far, 20s);
    const auto data = [](const std::vector<std::byte>& bytes) {
      return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size());
    };
    send_control(far, 1, [&](wire::Control::Builder control) {
      auto end = control.initRdma();
      end.setAddress(data(facts.address));
      end.setKey(data(facts.key));
      end.setRing(facts.ring);
      end.setRingBytes(facts.ring_bytes);
      end.setSecret(data(facts.secret));
    });
    const auto message = receive_control(far, 30s);
    MessageReader reader(message);
    const std::string why = reader.root<wire::Control>().getRdmaMet().cStr();
    send_control(far, 1, [&](wire::Control::Builder control) { control.setRdmaMet("nor here"); });
    return why;
  });
  const auto handed = rdma::hand_over(*left, open_ucx(false), {});
  CHECK_FALSE(handed.end);
  CHECK_FALSE(handed.text.empty());
  CHECK(fake.get() == handed.text);
}

TEST_CASE("much goes both ways at once, and arrives whole") {
  auto [left, right] = rdma_channel();
  const Bytes forth = pattern(24u << 20, 1), back = pattern(24u << 20, 2);
  std::atomic<int> unfinished{2};  // an end works while a thread of it waits: until the other one has all
  const auto receive = [&unfinished](Channel& channel, std::size_t bytes) {
    Bytes all(bytes);
    for (std::size_t got = 0; got < bytes;) {
      const std::size_t part = channel.receive_some(std::span(all).subspan(got));
      got += part;
      if (part == 0) channel.wait({.readable = true}, Channel::forever);
    }
    for (--unfinished; unfinished > 0;) channel.wait({.readable = true}, 1ms);
    return all;
  };
  auto near = std::async(std::launch::async, receive, std::ref(*left), back.size());
  auto far = std::async(std::launch::async, receive, std::ref(*right), forth.size());
  auto sending = std::async(std::launch::async, [&] { send(*right, back); });
  // Small and large pieces among each other, so that messages and puts take turns.
  for (std::size_t at = 0, step = 1; at < forth.size(); step = step * 7 % 300'007 + 1) {
    const std::size_t part = std::min(step, forth.size() - at);
    const Channel::Bytes piece = std::span(forth).subspan(at, part);
    send_all(*left, std::span(&piece, 1));
    at += part;
  }
  sending.get();
  CHECK(far.get() == forth);
  CHECK(near.get() == back);
}

TEST_CASE("a closed end has nothing of UCX any more, though it is kept") {
  const auto descriptors = [] {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  { auto warm = rdma_channel(); }  // what UCX opens once
  const std::size_t before = descriptors();
  auto [left, right] = rdma_channel();
  const std::size_t open = descriptors();
  // The last thread that uses it takes it down.
  auto waiting = std::async(std::launch::async, [&far = *right] { far.wait({.readable = true}, Channel::forever); });
  send(*left, pattern(10));
  waiting.get();
  waiting = std::async(std::launch::async, [&near = *left] { near.wait({.readable = true}, Channel::forever); });
  std::this_thread::sleep_for(10ms);  // it sleeps, or comes too late: both are right
  left->close();
  right->close();
  waiting.get();
  // What is left are the connections beside, and what woke the two threads.
  CHECK(descriptors() <= before + 4);
  CHECK(open > before + 4);
  Bytes buffer(10);
  CHECK_THROWS_AS(left->receive_some(buffer), ChannelClosed);
  CHECK_THROWS_AS(send(*left, pattern(10)), ChannelClosed);
  CHECK(left->wait({.readable = true}, Channel::forever).readable);
}

TEST_CASE("what was sent last arrives although its sender does nothing any more") {
  auto [left, right] = rdma_channel();
  auto received = std::async(std::launch::async, [&far = *right] {
    Bytes all, buffer(1u << 20);
    while (all.size() < 1'000'010) {
      append(all, std::span(buffer).first(far.receive_some(buffer)));
      far.wait({.readable = true}, 1s);
    }
    return all;
  });
  Bytes sent = pattern(1'000'000, 3);
  send(*left, sent);
  append(sent, pattern(10, 4));
  send(*left, pattern(10, 4));
  left->let_out();
  CHECK(received.get() == sent);
}

#endif
