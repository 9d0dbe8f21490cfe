// The hosts that a broker connects to for its workers.

#include "server/broker/dials.h"

#include <catch2/catch.hpp>
#include <unistd.h>

#include <optional>
#include <string>

namespace fargpu::test {
namespace {

using server::Dials;
using server::Settings;

/// Takes connections at a port of its own.
struct Listener {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor{io, {asio::ip::make_address("127.0.0.1"), 0}};
  std::uint16_t port() const { return acceptor.local_endpoint().port(); }
};

/// Why there is no connection; empty if there is one.
std::string dial(Dials& dials, asio::io_context& io, const std::string& host, std::uint16_t port) {
  std::optional<std::string> answer;
  dials.dial(host, port, "tenant", [&](int descriptor, const std::string& failure) {
    REQUIRE_FALSE(answer);
    CHECK((descriptor >= 0) == failure.empty());
    if (descriptor >= 0) ::close(descriptor);
    answer = failure;
  });
  io.restart();
  io.run();
  REQUIRE(answer);
  return *answer;
}

Settings with(const std::string& listen, const std::string& peers) {
  Settings settings;
  settings.listen = listen;
  settings.peers = peers;
  return settings;
}

TEST_CASE("a broker connects where its settings say so, and on the loopback if it listens nowhere else") {
  struct Case {
    const char *listen, *peers;
    bool allowed;
  };
  for (const Case& one : {Case{"127.0.0.1:8470", "none", true}, Case{"[::1]:8470,unix:/run/fargpu", "none", true},
                          Case{"localhost:8470", "none", true}, Case{"0.0.0.0:8470", "none", false},
                          Case{"127.0.0.1:8470,10.0.0.1:8470", "none", false}, Case{"gpuhost:8470", "none", false},
                          Case{"0.0.0.0:8470", "10.0.0.0/8", false}, Case{"0.0.0.0:8470", "127.0.0.0/8", true},
                          Case{"0.0.0.0:8470", "10.0.0.0/8,127.0.0.1", true}, Case{"0.0.0.0:8470", "all", true}}) {
    CAPTURE(one.listen, one.peers);
    Listener there;
    asio::io_context io;
    Dials dials(io, with(one.listen, one.peers));
    const std::string why = dial(dials, io, "127.0.0.1", there.port());
    if (one.allowed) CHECK(why.empty());
    else CHECK_THAT(why, Catch::Contains("may not connect to 127.0.0.1:") && Catch::Contains("its setting `peers`"));
    CHECK(dials.refused() == (one.allowed ? 0u : 1u));
    there.acceptor.non_blocking(true);
    asio::error_code none;
    asio::ip::tcp::socket socket(there.io);
    there.acceptor.accept(socket, none);
    CHECK(!none == one.allowed);  // nothing was tried where it is not allowed
  }
}

TEST_CASE("a client learns no more of a host than that there is no connection") {
  asio::io_context io;
  Dials dials(io, with("127.0.0.1:8470", "none"));
  std::uint16_t port = 0;
  { port = Listener().port(); }  // nobody listens there any more
  CHECK(dial(dials, io, "127.0.0.1", port) ==
        "fargpud of this host cannot connect to 127.0.0.1:" + std::to_string(port));
  CHECK(dial(dials, io, "no such host\n", 1) == dial(dials, io, "no such host\n", 1));
  CHECK_THAT(dial(dials, io, "no such host\n", 1), Catch::Contains("cannot connect to") && !Catch::Contains("\n"));
  Dials closed(io, with("0.0.0.0:8470", "none"));
  CHECK_THAT(dial(closed, io, "no.such.host", 1), Catch::Contains("may not connect to"));  // and looks nothing up
  CHECK(dial(dials, io, "", 1) == "the other host has no name by which to connect");
  CHECK(dial(dials, io, std::string(256, 'a'), 1) == "the other host has no name by which to connect");
}

}  // namespace
}  // namespace fargpu::test
