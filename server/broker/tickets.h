#pragma once
// What leads a client from the broker to the worker that it was promised.

#include <asio.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "workers.h"

namespace fargpu::server {

/// 32 bytes that nobody can guess, good once and for a while. Where TLS is spoken they are a key that never travels in
/// the clear: the client comes with the name of its ticket instead. Used by the broker's one thread.
class Tickets {
 public:
  using Ticket = std::array<std::byte, 32>;
  using Name = std::array<std::byte, 16>;

  Tickets(asio::io_context& io, Workers& workers, std::chrono::seconds good_for)
      : io_(io), workers_(workers), good_for_(good_for) {}

  /// For a worker that is reserved. `secure`: only its name may be shown. Throws SystemError.
  Ticket issue(Worker& worker, const ClientFacts& client, bool secure);
  /// Of a ticket that is good.
  const Name& name_of(const Ticket& ticket) const { return promised_.at(ticket).name; }
  /// It is not wanted any more; the worker is free again.
  void withdraw(const Ticket& ticket);
  /// The worker and the client of a ticket, which is used up by that; null if there is none (any more).
  Worker* redeem(std::span<const std::byte> ticket, ClientFacts& client);
  /// Redeems a ticket by its name, for a connection that is to speak TLS; tells the ticket too.
  Worker* redeem_name(std::span<const std::byte> name, ClientFacts& client, Ticket& ticket);
  /// Forgets what was promised of a worker that has ended.
  void worker_ended(const Worker& worker);

 private:
  struct Promise {
    Worker* worker = nullptr;
    ClientFacts client;
    Name name{};
    bool secure = false;
    std::unique_ptr<asio::steady_timer> expiry;
  };
  Worker* take(std::map<Ticket, Promise>::iterator promise, ClientFacts& client);

  asio::io_context& io_;
  Workers& workers_;
  const std::chrono::seconds good_for_;
  std::map<Ticket, Promise> promised_;
};

}  // namespace fargpu::server
