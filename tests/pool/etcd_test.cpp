// What goes wrong with etcd: members that die or stand still, foreign servers, certificates, rights, room, copies.

#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include <filesystem>
#include <thread>

#include "etcd_server.h"
#include "protocol/site/pki.h"
#include "server/pool/etcd_registry.h"
#include "waits.h"

namespace fargpu::server::pool {
namespace {

using namespace std::chrono_literals;
using test::EtcdServer;
using test::run;
using Kind = RegistryError::Kind;

EtcdOptions options_for(const std::string& endpoints) {
  EtcdOptions options;
  options.endpoints = endpoints;
  options.timeout = 2s;
#ifdef FARGPU_ETCD_PLUGIN
  options.plugin = FARGPU_ETCD_PLUGIN;
#endif
  return options;
}

Outcome put(asio::io_context& io, Registry& registry, const std::string& key, const std::string& value,
            std::int64_t lifetime = 0) {
  Transaction transaction;
  transaction.put(key, value, lifetime);
  return run(io, registry.commit(std::move(transaction)));
}

// Again and again: while a member is missing, some calls may fail.
bool puts(asio::io_context& io, Registry& registry, const std::string& key) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < end) {
    try {
      put(io, registry, key, "x");
      return true;
    } catch (const RegistryError&) {
      test::go_on(io, 20ms);
    }
  }
  return false;
}

std::optional<RegistryError> failure_of(asio::io_context& io, Registry& registry) {
  return test::failure(io, [&] { return registry.read({"k"}); });
}

// A server of some other kind.
class Foreign {
 public:
  explicit Foreign(std::string says) : says_(std::move(says)) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(socket_, 8) == 0);
    REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] {
      while (true) {
        const int client = ::accept(socket_, nullptr, nullptr);
        if (client < 0) return;
        clients_.push_back(client);
        if (!says_.empty() && ::send(client, says_.data(), says_.size(), MSG_NOSIGNAL) > 0) ::shutdown(client, SHUT_WR);
      }
    });
  }
  ~Foreign() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    for (const int client : clients_) ::close(client);
    ::close(socket_);
  }

  std::string endpoint;

 private:
  const std::string says_;
  int socket_ = -1;
  std::vector<int> clients_;
  std::thread thread_;
};

struct Folder {
  Folder() {
    std::string name = "/tmp/fargpu-etcd-test-XXXXXX";
    REQUIRE(::mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

TEST_CASE("etcd: members die and come back") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  auto members = EtcdServer::cluster(3);
  EtcdRegistry registry(
      io, options_for(fmt::format("{},{},{}", members[0]->endpoint(), members[1]->endpoint(), members[2]->endpoint())));
  REQUIRE(puts(io, registry, "k/0"));
  const auto lifetime = run(io, registry.begin_lifetime(5s));
  REQUIRE(put(io, registry, "k/bound", "x", lifetime->id()).committed);
  const auto watch = registry.watch("k/", run(io, registry.read({"k/"})).revision);
  for (std::size_t i = 0; i < members.size(); ++i) {
    SECTION(fmt::format("member {}", i)) {
      bool stands_still = false;
      SECTION("killed") { members[i]->kill(); }
      SECTION("stopped") {
        members[i]->signal(SIGSTOP);
        stands_still = true;
      }
      REQUIRE(puts(io, registry, "k/after"));
      CHECK(lifetime->lasts());
      const Changes changes = run(io, watch->next());
      REQUIRE(!changes.changes.empty());
      CHECK(changes.changes.back().entry.key == "k/after");
      if (stands_still) members[i]->signal(SIGCONT);
      else members[i]->start();
      REQUIRE(puts(io, registry, "k/again"));
      CHECK(run(io, registry.read({"k/"})).entries.size() == 4);
    }
  }
}

TEST_CASE("etcd: most of its members are away") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  auto members = EtcdServer::cluster(3);
  EtcdRegistry registry(
      io, options_for(fmt::format("{},{},{}", members[0]->endpoint(), members[1]->endpoint(), members[2]->endpoint())));
  REQUIRE(puts(io, registry, "k"));
  members[0]->kill();
  members[1]->kill();
  const auto failure = test::failure(io, [&] { return registry.read({"k"}); });
  REQUIRE(failure);
  CHECK(failure->kind == Kind::unavailable);
  members[0]->start();
  CHECK(puts(io, registry, "k"));
}

TEST_CASE("etcd: something else is there, or nothing") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  const auto kind_at = [&](const std::string& endpoint, std::string& said) {
    EtcdRegistry registry(io, options_for(endpoint));
    const auto begin = std::chrono::steady_clock::now();
    const auto failure = failure_of(io, registry);
    CHECK(std::chrono::steady_clock::now() - begin < 6s);
    REQUIRE(failure);
    said = failure->what();
    CHECK(said.find(endpoint) != std::string::npos);
    return failure->kind;
  };
  std::string said;
  CHECK(kind_at("127.0.0.1:" + std::to_string(test::free_port()), said) == Kind::unavailable);
  Foreign web("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), garbage(std::string(200, '\x7f')), silent("");
  CHECK(kind_at(web.endpoint, said) != Kind::lifetime_over);
  CHECK(said.find("no etcd") != std::string::npos);
  CHECK(kind_at(garbage.endpoint, said) != Kind::lifetime_over);
  CHECK(kind_at(silent.endpoint, said) == Kind::unavailable);
  // Another endpoint of the list serves.
  EtcdServer server;
  EtcdRegistry registry(io, options_for(silent.endpoint + "," + web.endpoint + "," + server.endpoint()));
  CHECK(puts(io, registry, "k"));
  // Words that are no endpoint are refused at once.
  for (const char* const bad : {"", ",", "ftp://h:1", "h:x", "h:70000", "[::1", "https://h:1"})
    CHECK_THROWS_AS(EtcdRegistry(io, options_for(bad)), std::runtime_error);
}

TEST_CASE("etcd: a release that is too old is refused by its number") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  EtcdServer::Options options;
  options.series = "3.3";
  EtcdServer old(options);
  EtcdRegistry registry(io, options_for(old.endpoint()));
  std::optional<RegistryError> failure;
  const auto end = std::chrono::steady_clock::now() + 10s;  // it has to start first
  do failure = failure_of(io, registry);
  while (failure && failure->kind != Kind::denied && std::chrono::steady_clock::now() < end);
  REQUIRE(failure);
  CHECK(std::string(failure->what()).find("3.4 or a newer one is needed") != std::string::npos);
  CHECK(std::string(failure->what()).find("is of version 3.3.") != std::string::npos);
  // One that is new enough is found beside it.
  EtcdServer server;
  EtcdRegistry both(io, options_for(old.endpoint() + "," + server.endpoint()));
  CHECK(puts(io, both, "k"));
}

TEST_CASE("etcd: certificates and rights") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  const Folder folder, other_site;
  const site::PkiFiles authority = site::make_authority(folder.path, site::authority_life);
  const site::PkiFiles host = site::issue_server(folder.path, "etcd", {"127.0.0.1"}, std::chrono::days(30));
  const site::PkiFiles root = site::issue_client(folder.path, "root", std::chrono::days(30));
  const site::PkiFiles member = site::issue_client(folder.path, "member", std::chrono::days(30));
  const site::PkiFiles stranger = site::issue_client(folder.path, "stranger", std::chrono::days(30));
  const site::PkiFiles foreign = site::make_authority(other_site.path, site::authority_life);
  const site::PkiFiles intruder = site::issue_client(other_site.path, "member", std::chrono::days(30));
  EtcdServer::Options options;
  options.encrypted = true;
  options.more = {"--cert-file=" + host.certificate.string(), "--key-file=" + host.key.string(),
                  "--trusted-ca-file=" + authority.certificate.string(), "--client-cert-auth"};
  EtcdServer server(options);
  const auto opened = [&](const std::filesystem::path& ca, const site::PkiFiles* files) {
    EtcdOptions by = options_for("https://" + server.endpoint());
    by.ca = ca;
    if (files) by.certificate = files->certificate, by.key = files->key;
    return std::make_unique<EtcdRegistry>(io, by);
  };
  const auto administer = [&](std::vector<std::string> words) {
    REQUIRE(
        server.control(words, {"--endpoints=https://" + server.endpoint(), "--cacert=" + authority.certificate.string(),
                               "--cert=" + root.certificate.string(), "--key=" + root.key.string()}));
  };
  REQUIRE(puts(io, *opened(authority.certificate, &root), "fargpu/v1/p/x"));
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"user", "add", "root", "--no-password"},
           {"user", "grant-role", "root", "root"},
           {"role", "add", "pool"},
           {"role", "grant-permission", "pool", "--prefix=true", "readwrite", "fargpu/v1/p/"},
           {"user", "add", "member", "--no-password"},
           {"user", "grant-role", "member", "pool"},
           {"auth", "enable"}})
    administer(words);

  const auto by_member = opened(authority.certificate, &member);
  CHECK(puts(io, *by_member, "fargpu/v1/p/y"));
  CHECK(run(io, by_member->read({"fargpu/v1/p/"})).entries.size() == 2);
  CHECK_FALSE(run(io, by_member->describe()).empty());
  const auto lifetime = run(io, by_member->begin_lifetime(5s));
  CHECK(put(io, *by_member, "fargpu/v1/p/z", "x", lifetime->id()).committed);
  const auto kind = [&](Registry& registry) {
    const auto failure = test::failure(io, [&] { return registry.read({"fargpu/v1/q/"}); });
    return failure ? std::optional(failure->kind) : std::nullopt;
  };
  CHECK(kind(*by_member) == Kind::denied);  // another pool's keys
  const auto failure = test::failure(io, [&] { return by_member->read({"fargpu/v1/q/"}); });
  REQUIRE(failure);
  CHECK(std::string(failure->what()).find("no role for the keys of this pool") != std::string::npos);
  CHECK(kind(*opened(authority.certificate, &stranger)) == Kind::denied);
  CHECK(kind(*opened(authority.certificate, nullptr)).has_value());
  CHECK(kind(*opened(authority.certificate, &intruder)).has_value());
  CHECK(kind(*opened(foreign.certificate, &member)) == Kind::denied);
}

TEST_CASE("etcd: it is full") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  EtcdServer::Options options;
  options.more = {"--quota-backend-bytes=200000"};
  EtcdServer server(options);
  EtcdRegistry registry(io, options_for(server.endpoint()));
  REQUIRE(puts(io, registry, "k/0"));
  std::optional<RegistryError> failure;
  // It counts what it has written to its disk, from time to time.
  const auto end = std::chrono::steady_clock::now() + 10s;
  for (int i = 0; !failure && std::chrono::steady_clock::now() < end; ++i)
    failure = test::failure(io, [&] {
      Transaction transaction;
      transaction.put(fmt::format("k/{}", i % 100), std::string(20'000, 'x'));
      return registry.commit(std::move(transaction));
    });
  REQUIRE(failure);
  CHECK(failure->kind == Kind::full);
  CHECK(std::string(failure->what()).find("disarm its alarm") != std::string::npos);
  CHECK_FALSE(run(io, registry.read({"k/"})).entries.empty());  // what is there can be read
}

TEST_CASE("etcd: what others have written there is large") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  EtcdServer server;
  EtcdRegistry registry(io, options_for(server.endpoint()));
  constexpr int keys = 40;
  constexpr std::size_t value_bytes = 1'000'000;  // one message has room for a few of them
  for (int i = 0; i < keys; ++i) {
    Transaction transaction;
    transaction.put(fmt::format("k/{:03}", i), std::string(value_bytes, 'x'));
    REQUIRE(run(io, registry.commit(std::move(transaction))).committed);
  }
  const Snapshot snapshot = run(io, registry.read({"k/"}));
  REQUIRE(snapshot.entries.size() == keys);
  for (const Entry& entry : snapshot.entries) CHECK(entry.value.size() == value_bytes);
}

TEST_CASE("etcd: it was set up again from a copy, or anew") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  auto server = std::make_unique<EtcdServer>();
  const std::string endpoint = server->endpoint();
  EtcdRegistry registry(io, options_for(endpoint));
  REQUIRE(puts(io, registry, "k/1"));
  server->kill();
  const Folder copy;
  std::filesystem::copy(server->data(), copy.path / "data", std::filesystem::copy_options::recursive);
  server->start();
  for (int i = 0; i < 5; ++i) REQUIRE(puts(io, registry, "k/2"));
  const auto watch = registry.watch("k/", run(io, registry.read({"k/"})).revision);
  server->kill();
  SECTION("a copy") {
    std::filesystem::remove_all(server->data());
    std::filesystem::copy(copy.path / "data", server->data(), std::filesystem::copy_options::recursive);
  }
  SECTION("anew") { std::filesystem::remove_all(server->data()); }
  server->start();
  std::optional<RegistryError> failure;
  const auto end = std::chrono::steady_clock::now() + 10s;
  while ((!failure || failure->kind == Kind::unavailable) && std::chrono::steady_clock::now() < end)
    failure = failure_of(io, registry);
  REQUIRE(failure);
  CHECK(failure->kind == Kind::strange);
  const auto of_watch = test::failure(io, [&] { return watch->next(); });
  REQUIRE(of_watch);
  CHECK(of_watch->kind == Kind::strange);
  CHECK(puts(io, registry, "k/3"));  // and it goes on with what there is
}

TEST_CASE("etcd: a member that does not answer is named by every call that has asked it") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  EtcdServer server;
  EtcdRegistry registry(io, options_for(server.endpoint()));
  REQUIRE(puts(io, registry, "k"));
  server.signal(SIGSTOP);
  std::vector<std::string> said;
  for (int i = 0; i < 3; ++i) {
    Transaction transaction;
    transaction.put("k", "x");
    asio::co_spawn(io, registry.commit(std::move(transaction)), [&](const std::exception_ptr& failure, Outcome) {
      try {
        if (failure) std::rethrow_exception(failure);
      } catch (const RegistryError& error) {
        said.emplace_back(error.what());
      }
    });
  }
  CHECK(test::comes(
      io, [&] { return said.size() == 3; }, 30s));
  CHECK(said.size() == 3);
  for (const std::string& text : said) CHECK(text == "etcd at " + server.endpoint() + ": no answer in time");
  server.signal(SIGCONT);
}

TEST_CASE("etcd: the end does not wait for answers") {
  if (!test::has_etcd()) return;
  asio::io_context io;
  EtcdServer server;
  auto registry = std::make_unique<EtcdRegistry>(io, options_for(server.endpoint()));
  REQUIRE(puts(io, *registry, "k"));
  auto lifetime = run(io, registry->begin_lifetime(60s));
  auto watch = registry->watch("k", 1);
  server.signal(SIGSTOP);
  unsigned over = 0;  // most of them by failing
  for (int i = 0; i < 20; ++i)
    asio::co_spawn(io, registry->read({"k"}), [&](const std::exception_ptr&, const Snapshot&) { ++over; });
  test::go_on(io, 100ms);
  const auto begin = std::chrono::steady_clock::now();
  watch.reset();
  lifetime.reset();
  registry.reset();
  CHECK(std::chrono::steady_clock::now() - begin < 2s);
  CHECK(test::comes(io, [&] { return over == 20; }));
  server.signal(SIGCONT);
}

}  // namespace
}  // namespace fargpu::server::pool
