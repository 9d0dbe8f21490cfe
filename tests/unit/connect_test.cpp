// Connections to a host whose name has several addresses.

#include <asio.hpp>
#include <catch2/catch.hpp>

#include "client/connect/control_connection.h"

using namespace fargpu;
using namespace fargpu::client;

TEST_CASE("a connection tells which address of the name answered, and goes to that one if it is given") {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  PoolHost host;
  host.transport = PoolHost::Transport::tcp;
  host.host = "localhost";
  host.port = acceptor.local_endpoint().port();
  const Line line = connect_to(host);
  CHECK(line.address == "127.0.0.1");
  CHECK(line.local);

  host.host = "no-such-host.invalid";
  host.address = line.address;
  CHECK(connect_to(host).address == "127.0.0.1");
  host.address = "127.0.0.2";  // where nobody listens
  CHECK_THROWS_AS(connect_to(host), DialError);
}
