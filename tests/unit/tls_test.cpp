// Channels that speak TLS: that they are channels, and which clients get through a handshake.

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <thread>

#include "protocol/channel_tls.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "protocol/site/pki.h"
#include "tests/temporary_folder.h"

using namespace fargpu;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr auto patience = 5000ms;

std::pair<int, int> sockets() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {ends[0], ends[1]};
}

TlsKey key_of(const std::string& identity, unsigned char fill = 7) {
  return {identity, std::vector<std::byte>(32, std::byte{fill})};
}

TlsContext server_with(const TlsKey& key) {
  TlsService service;
  service.find_key = [key](const std::string& identity) {
    return identity == key.identity ? std::optional(key.key) : std::nullopt;
  };
  return make_server_context(std::move(service));
}

/// How both ends of one handshake fare.
struct Met {
  std::unique_ptr<Channel> client, server;
  std::string client_error, server_error;
};

Met meet(const TlsContext& client, const TlsContext& server, const std::string& server_name = "",
         std::chrono::milliseconds timeout = patience) {
  const auto [near, far] = sockets();
  Met met;
  std::thread other([&, descriptor = far] {
    try {
      met.server = accept_tls(descriptor, "the client", server, timeout);
    } catch (const std::exception& error) {
      met.server_error = error.what();
    }
  });
  try {
    met.client = connect_tls(near, "the server", client, server_name, timeout);
    // Of a certificate that it does not like the server tells later.
    std::byte byte;
    met.client->wait({.readable = true}, 20ms);
    met.client->receive_some({&byte, 1});
  } catch (const std::exception& error) {
    met.client_error = error.what();
  }
  other.join();
  return met;
}

Met meet_by_key(const TlsKey& client, const TlsKey& server) {
  return meet(make_client_context({.key = client}), server_with(server));
}

std::vector<std::byte> receive(Channel& channel, std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  std::size_t got = 0;
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (got < bytes && std::chrono::steady_clock::now() < deadline) {
    got += channel.receive_some(std::span(all).subspan(got));
    if (got < bytes) channel.wait({.readable = true}, 100ms);
  }
  all.resize(got);
  return all;
}

std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> all(bytes);
  for (std::byte& byte : all) byte = static_cast<std::byte>(random());
  return all;
}

void send(Channel& channel, std::span<const std::byte> bytes) {
  const std::array<Channel::Bytes, 1> pieces{bytes};
  send_all(channel, pieces);
}

/// A site's certificates in a folder that goes with it.
struct Site {
  Site() {
    site::make_authority(folder, std::chrono::days(2));
    site::issue_server(folder, "gpuhost", {"gpuhost.example", "10.1.2.3"}, std::chrono::days(1));
    site::issue_client(folder, "lab", std::chrono::days(1));
  }
  std::string file(const std::string& name) const { return folder / name; }
  TlsContext server(const std::string& client_ca = "") const {
    return make_server_context(
        {.certificate_file = file("gpuhost.crt"), .key_file = file("gpuhost.key"), .client_ca_file = client_ca});
  }
  test::TemporaryFolder own;
  const fs::path& folder = own.path;
};

}  // namespace

TEST_CASE("tls: with one key on both ends, bytes come as they were sent") {
  Met met = meet_by_key(key_of("session"), key_of("session"));
  REQUIRE(met.client);
  REQUIRE(met.server);
  const auto there = noise(5'000'000, 1), back = noise(3'000'001, 2);
  auto sent_there = std::async(std::launch::async, [&] { send(*met.client, there); });
  auto sent_back = std::async(std::launch::async, [&] { send(*met.server, back); });
  auto got_back = std::async(std::launch::async, [&] { return receive(*met.client, back.size()); });
  CHECK((receive(*met.server, there.size()) == there));
  CHECK((got_back.get() == back));
}

TEST_CASE("tls: a full socket, and a thread that waits for what does not come") {
  Met met = meet_by_key(key_of("s"), key_of("s"));
  REQUIRE(met.client);
  const auto all = noise(2'000'000, 3);
  std::atomic<bool> over{false};
  // It waits for what never comes, from before anything is sent.
  std::thread waiting([&] {
    while (!over) met.client->wait({.readable = true}, 10s);
  });
  auto got = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(50ms);  // until the socket is full
    return receive(*met.server, all.size());
  });
  send(*met.client, all);
  CHECK((got.get() == all));
  over = true;
  send(*met.server, std::span(all).first(1));
  waiting.join();
}

TEST_CASE("tls: a sender may show less than before, as one does whose rate is bounded") {
  Met met = meet_by_key(key_of("s"), key_of("s"));
  REQUIRE(met.client);
  const auto all = noise(8'000'000, 5);
  auto got = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(50ms);  // until the socket is full
    return receive(*met.server, all.size());
  });
  std::mt19937 random(5);
  unsigned less = 0;
  for (std::size_t sent = 0, shown = 0; sent < all.size();) {
    const std::size_t most = random() % 2 ? 1u << 20 : 1 + random() % 5000;
    const std::size_t now = std::min(most, all.size() - sent);
    if (sent + now < shown) ++less;
    shown = std::max(shown, sent + now);
    const Channel::Bytes piece = std::span(all).subspan(sent, now);
    const std::size_t taken = met.client->send_some(std::span(&piece, 1));
    REQUIRE(taken <= now);
    sent += taken;
    if (taken == 0) met.client->wait({.writable = true}, 10ms);
  }
  CHECK((got.get() == all));
  CHECK(less > 0);
}

TEST_CASE("tls: what was received to its end leaves nothing to wait for") {
  Met met = meet_by_key(key_of("s"), key_of("s"));
  REQUIRE(met.client);
  const auto all = noise(70'000, 4);  // more than a record
  send(*met.server, all);
  CHECK((receive(*met.client, all.size()) == all));
  CHECK_FALSE(met.client->wait({.readable = true}, 20ms).readable);
  send(*met.server, all);
  CHECK((receive(*met.client, 1) == std::vector(all.begin(), all.begin() + 1)));
  CHECK(met.client->wait({.readable = true}, 0ms).readable);  // the rest of a record
}

TEST_CASE("tls: control messages, read one at a time") {
  Met met = meet_by_key(key_of("s"), key_of("s"));
  REQUIRE(met.client);
  for (std::uint32_t i = 1; i <= 2; ++i)
    send_control(*met.client, i, [](wire::Control::Builder control) { control.setStatusRequest(); });
  for (int i = 0; i < 2; ++i) {
    const auto message = receive_control(*met.server, patience);
    MessageReader reader(message);
    CHECK(reader.root<wire::Control>().isStatusRequest());
  }
}

TEST_CASE("tls: memory that is not what it should be is an error, and the connection goes on") {
  Met met = meet_by_key(key_of("s"), key_of("s"));
  REQUIRE(met.client);
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  const std::array<Channel::Bytes, 1> bad{Channel::Bytes(static_cast<std::byte*>(page), 100)};
  CHECK_THROWS_AS(met.client->send_some(bad), SystemError);
  const auto good = noise(100, 4);
  send(*met.client, good);
  met.server->wait({.readable = true}, patience);
  CHECK_THROWS_AS(met.server->receive_some({static_cast<std::byte*>(page), 100}), SystemError);
  CHECK((receive(*met.server, good.size()) == good));
  ::munmap(page, 4096);
}

TEST_CASE("tls: the end of a connection is told, after everything that came before it") {
  Met met = meet_by_key(key_of("s"), key_of("s"));
  REQUIRE(met.client);
  const auto last = noise(1000, 5);
  send(*met.client, last);
  met.client->close();
  CHECK((receive(*met.server, last.size()) == last));
  met.server->wait({.readable = true}, patience);
  std::byte byte;
  CHECK_THROWS_AS(met.server->receive_some({&byte, 1}), ChannelClosed);
}

TEST_CASE("tls: another key, another name: nobody gets in") {
  for (const Met& met : {meet_by_key(key_of("s", 1), key_of("s", 2)), meet_by_key(key_of("other"), key_of("s")),
                         meet_by_key(key_of(std::string(200, 'x')), key_of(std::string(200, 'x')))}) {
    CHECK_FALSE(met.client_error.empty());
    CHECK_FALSE(met.server_error.empty());
  }
}

TEST_CASE("tls: who has no key is not let in by one that works with keys alone") {
  Site site;
  const Met met =
      meet(make_client_context({.ca_file = site.file("ca.crt")}), server_with(key_of("s")), "gpuhost.example");
  CHECK_FALSE(met.client_error.empty());
  CHECK_FALSE(met.server_error.empty());
}

TEST_CASE("tls: a server is believed by the authority and its name") {
  Site site, other;
  const std::string ca = site.file("ca.crt");
  CHECK(meet(make_client_context({.ca_file = ca}), site.server(), "gpuhost.example").client_error.empty());
  CHECK(meet(make_client_context({.ca_file = ca}), site.server(), "10.1.2.3").client_error.empty());
  CHECK(meet(make_client_context({.ca_file = ca}), site.server(), "elsewhere.example")
            .client_error.find("for other names") != std::string::npos);
  CHECK(meet(make_client_context({.ca_file = ca}), site.server(), "10.1.2.4").client_error.find("for other names") !=
        std::string::npos);
  CHECK(meet(make_client_context({.ca_file = other.file("ca.crt")}), site.server(), "gpuhost.example")
            .client_error.find("not trusted") != std::string::npos);
  CHECK(meet(make_client_context({}), site.server(), "gpuhost.example").client_error.find("not trusted") !=
        std::string::npos);
}

TEST_CASE("tls: or by its fingerprint") {
  Site site, other;
  const std::string right = site::fingerprint(site.file("gpuhost.crt")),
                    wrong = site::fingerprint(other.file("gpuhost.crt"));
  CHECK(meet(make_client_context({.fingerprint = right}), site.server()).client_error.empty());
  CHECK(meet(make_client_context({.fingerprint = wrong}), site.server()).client_error.find("not trusted") !=
        std::string::npos);
  CHECK_THROWS_AS(make_client_context({.fingerprint = "12:34"}), TlsError);
}

TEST_CASE("tls: a client's certificate must come from the authority that the server believes") {
  Site site, other;
  const auto client = [&](const Site& from) {
    return make_client_context(
        {.ca_file = site.file("ca.crt"), .certificate_file = from.file("lab.crt"), .key_file = from.file("lab.key")});
  };
  const TlsContext server = site.server(site.file("ca.crt"));
  CHECK(meet(client(site), server, "gpuhost.example").server_error.empty());
  CHECK_FALSE(meet(client(other), server, "gpuhost.example").server_error.empty());
  // A server's certificate is not one of a client.
  const TlsContext thief = make_client_context({.ca_file = site.file("ca.crt"),
                                                .certificate_file = site.file("gpuhost.crt"),
                                                .key_file = site.file("gpuhost.key")});
  CHECK_FALSE(meet(thief, server, "gpuhost.example").server_error.empty());
  // Without one a client may still have a token.
  CHECK(meet(make_client_context({.ca_file = site.file("ca.crt")}), server, "gpuhost.example").server_error.empty());
}

TEST_CASE("tls: files that are not what they should be") {
  Site site;
  CHECK_THROWS_AS(make_client_context({.ca_file = "/nowhere/ca.crt"}), TlsError);
  CHECK_THROWS_AS(make_server_context({.certificate_file = site.file("gpuhost.crt"), .key_file = site.file("lab.key")}),
                  TlsError);
  CHECK_THROWS_AS(
      make_server_context({.certificate_file = site.file("gpuhost.key"), .key_file = site.file("gpuhost.key")}),
      TlsError);
  CHECK_THROWS_AS(site::issue_client(site.folder, "lab", std::chrono::days(1)),
                  site::PkiError);  // never over a key that is there
  CHECK_THROWS_AS(site::issue_client(site.folder, "../lab", std::chrono::days(1)), site::PkiError);
  CHECK_THROWS_AS(site::issue_client(site.folder, "ca", std::chrono::days(1)), site::PkiError);
  CHECK_THROWS_AS(site::issue_server(site.folder, "b", {"a b"}, std::chrono::days(1)), site::PkiError);
  CHECK_THROWS_AS(site::issue_server(site.folder, "b", {}, std::chrono::days(1)), site::PkiError);
  CHECK_THROWS_AS(site::issue_server(site.folder, "b", {"gpuhost:8470"}, std::chrono::days(1)), site::PkiError);
  CHECK(fs::status(site.file("ca.key")).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("tls: whatever comes in place of a handshake, it ends in time and says so") {
  std::mt19937 random(8470);
  const TlsContext server = server_with(key_of("s"));
  std::vector<std::vector<std::byte>> cases{{}, noise(1, 1), noise(5000, 2), std::vector<std::byte>(4096)};
  // What looks like the beginning of one.
  auto likely = noise(512, 3);
  likely[0] = std::byte{0x16};
  likely[1] = std::byte{3};
  likely[2] = std::byte{1};
  likely[3] = std::byte{1};
  likely[4] = std::byte{0xF0};
  cases.push_back(likely);
  for (const auto& bytes : cases) {
    for (const bool leaves : {false, true}) {
      const auto [near, far] = sockets();
      if (!bytes.empty())
        REQUIRE(::send(near, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
      if (leaves) ::close(near);
      const auto begin = std::chrono::steady_clock::now();
      CHECK_THROWS(accept_tls(far, "a stranger", server, 200ms));
      CHECK(std::chrono::steady_clock::now() - begin < 3s);
      if (!leaves) ::close(near);
    }
  }
}

TEST_CASE("tls: a handshake that is cut or changed at any byte fails on both ends") {
  const TlsContext client = make_client_context({.key = key_of("s")}), server = server_with(key_of("s"));
  const auto relay = [&](std::size_t change_at, bool cut) {
    const auto [near, middle_near] = sockets();
    const auto [far, middle_far] = sockets();
    std::atomic<bool> over{false};
    std::thread between([&, from = middle_near, to = middle_far] {
      std::size_t passed = 0;
      bool open = true;
      while (!over && open) {
        for (const auto& [in, out] : {std::pair(from, to), std::pair(to, from)}) {
          std::byte buffer[4096];
          const ssize_t got = ::recv(in, buffer, sizeof(buffer), MSG_DONTWAIT);
          if (got <= 0) continue;
          auto bytes = static_cast<std::size_t>(got);
          if (in == from) {
            if (passed <= change_at && change_at < passed + bytes) {
              if (cut) {
                bytes = change_at - passed;
                open = false;
              } else {
                buffer[change_at - passed] ^= std::byte{0x40};
              }
            }
            passed += bytes;
          }
          if (bytes > 0) [[maybe_unused]]
            const ssize_t sent = ::send(out, buffer, bytes, MSG_NOSIGNAL);
        }
        std::this_thread::yield();
      }
      ::close(from);
      ::close(to);
    });
    bool accepted = true;
    std::thread other([&, descriptor = far] {
      try {
        auto channel = accept_tls(descriptor, "the client", server, 300ms);
        accepted = receive(*channel, 1).size() == 1;
      } catch (const std::exception&) {
        accepted = false;
      }
    });
    try {
      auto channel = connect_tls(near, "the server", client, "", 300ms);
      send(*channel, noise(1, 1));
    } catch (const std::exception&) {}
    over = cut;
    other.join();
    over = true;
    between.join();
    return accepted;
  };
  CHECK(relay(1u << 20, false));  // unchanged it works
  for (std::size_t at = 0; at < 300; at += 23) {
    CHECK_FALSE(relay(at, true));
    INFO(at);
    if (at >= 5) CHECK_FALSE(relay(at, false));  // before: lengths and versions of a record, some of which mean nothing
  }
}

TEST_CASE("tls: digits") {
  CHECK(parse_hex("00ff")->size() == 2);
  CHECK(parse_hex("AB:cd:09") == std::vector<std::byte>{std::byte{0xAB}, std::byte{0xCD}, std::byte{9}});
  for (const char* text : {"", ":", "a", "abc", "zz", "a:b", "ab cd"}) CHECK_FALSE(parse_hex(text));
}
