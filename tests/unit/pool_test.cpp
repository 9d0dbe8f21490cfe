// FARGPU_POOL: what it may say, and what is said when it may not.

#include <catch2/catch.hpp>

#include "client/base/config.h"
#include "client/connect/control_connection.h"

using namespace fargpu::client;

namespace {

// "host:port" of each, or the complaint.
std::string read(const std::string& text) {
  std::string error, all;
  const auto hosts = parse_pool(text, error);
  if (!error.empty()) {
    CHECK(hosts.empty());
    return error;
  }
  for (const PoolHost& host : hosts) all += (all.empty() ? "" : " ") + address_text(host);
  return all;
}

std::string complaint(const std::string& text, const std::string& why) {
  return "FARGPU_POOL is '" + text + "': " + why + "; write host[:port][,host[:port]...], or unix:/path";
}

}  // namespace

TEST_CASE("hosts with and without ports are understood") {
  CHECK(read("gpuhost") == "gpuhost:8470");
  CHECK(read("gpuhost:9000") == "gpuhost:9000");
  CHECK(read("127.0.0.1:1") == "127.0.0.1:1");
  CHECK(read("a,b:2,c") == "a:8470 b:2 c:8470");
  CHECK(read("tcp://gpuhost:9000,tcp://other") == "gpuhost:9000 other:8470");
  CHECK(read("gpu-host.example.org:65535") == "gpu-host.example.org:65535");
}

TEST_CASE("addresses of IPv6 stand in brackets") {
  CHECK(read("[::1]") == "[::1]:8470");
  CHECK(read("[fe80::1%eth0]:9000,b") == "[fe80::1%eth0]:9000 b:8470");
  CHECK(read("[::1") == complaint("[::1", "'[::1' lacks the closing bracket"));
  CHECK(read("[::1]9000") == complaint("[::1]9000", "'[::1]9000' has text after the bracket"));
  CHECK(read("::1") == complaint("::1", "'::1' has several colons; write an IPv6 address in brackets"));
  CHECK(read("a,fe80::1:8470") ==
        complaint("a,fe80::1:8470", "'fe80::1:8470' has several colons; write an IPv6 address in brackets"));
  CHECK(read("[]:9000") == complaint("[]:9000", "a host name is missing"));
}

TEST_CASE("hosts are separated by commas alone") {
  CHECK(read("a:1 b:2") == complaint("a:1 b:2", "there is a space in 'a:1 b:2'; hosts are separated by commas alone"));
  CHECK(read("a, b") == complaint("a, b", "there is a space in ' b'; hosts are separated by commas alone"));
}

TEST_CASE("a missing host is said to be missing") {
  for (const std::string text : {"", ",", "a,", ",a", "a,,b", ":9000", "tcp://", "tcp://:1"})
    CHECK(read(text) == complaint(text, "a host name is missing"));
}

TEST_CASE("what is no port is named") {
  CHECK(read("a:0") == complaint("a:0", "'0' is no port"));
  CHECK(read("a:65536") == complaint("a:65536", "'65536' is no port"));
  CHECK(read("a:http") == complaint("a:http", "'http' is no port"));
  CHECK(read("b,a:12x") == complaint("b,a:12x", "'12x' is no port"));
  CHECK(read("a:-1") == complaint("a:-1", "'-1' is no port"));
  CHECK(read("a:") == complaint("a:", "'' is no port"));
  CHECK(read("[::1]:") == complaint("[::1]:", "'' is no port"));
}

TEST_CASE("sockets of this machine are understood by their whole path") {
  CHECK(read("unix:/run/fargpud.sock") == "unix:/run/fargpud.sock");
  CHECK(read("unix:@name,a") == "unix:@name a:8470");
  for (const std::string& text :
       {std::string("unix:"), std::string("unix:here"), std::string("unix:/"), "unix:/" + std::string(107, 'x')})
    CHECK(read(text) == complaint(text, "'" + text + "' names no Unix socket by its whole path"));
}

TEST_CASE("transports that there are not yet are named") {
  CHECK(read("carrier-pigeon://a") ==
        complaint("carrier-pigeon://a", "'carrier-pigeon' is no transport that this version knows"));
  CHECK(read("a,etcd://b:1") == complaint("a,etcd://b:1", "'etcd' is no transport that this version knows"));
}

TEST_CASE("an empty pool is told apart from the one that is to be empty") {
  Config config;
  CHECK_THROWS_WITH(require_pool(config),
                    "FARGPU_POOL is not set; name the GPU host, for example FARGPU_POOL=gpuhost:8470");
  config.pool = "none";
  CHECK_THROWS_WITH(require_pool(config), "FARGPU_POOL=none: this program is to use no GPU");
  config.hosts = parse_pool("a:0", config.pool_error);
  CHECK_THROWS_WITH(require_pool(config), Catch::Contains("'0' is no port"));
  config.pool_error.clear();
  config.hosts = parse_pool("a", config.pool_error);
  CHECK_NOTHROW(require_pool(config));
  try {
    require_pool(Config{});
  } catch (const DialError& error) {
    CHECK(error.result == CUDA_ERROR_NO_DEVICE);
  }
}
