#include "tickets.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "event_log.h"
#include "protocol/errors.h"

namespace fargpu::server {

Tickets::Ticket Tickets::issue(Worker& worker, const ClientFacts& client, bool secure) {
  Ticket ticket;
  Name name;
  if (::getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size()) ||
      ::getrandom(name.data(), name.size(), 0) != static_cast<ssize_t>(name.size()))
    throw SystemError("no random numbers");
  Promise& promise = promised_[ticket];
  promise.name = name;
  promise.secure = secure;
  promise.worker = &worker;
  promise.client = client;
  promise.expiry = std::make_unique<asio::steady_timer>(io_, good_for_);
  promise.expiry->async_wait([this, ticket](const asio::error_code& error) {
    if (!error) withdraw(ticket);
  });
  return ticket;
}

void Tickets::withdraw(const Ticket& ticket) {
  const auto found = promised_.find(ticket);
  if (found == promised_.end()) return;  // used, or its worker is gone
  EventLog::info("ticket unused",
                 {{"program", found->second.client.program}, {"worker", found->second.worker->process}});
  workers_.release(*found->second.worker);
  promised_.erase(found);
}

Worker* Tickets::redeem(std::span<const std::byte> bytes, ClientFacts& client) {
  Ticket ticket;
  if (bytes.size() != ticket.size()) return nullptr;
  std::memcpy(ticket.data(), bytes.data(), ticket.size());
  const auto found = promised_.find(ticket);
  if (found == promised_.end() || found->second.secure) return nullptr;
  return take(found, client);
}

Worker* Tickets::redeem_name(std::span<const std::byte> name, ClientFacts& client, Ticket& ticket) {
  const auto found = std::find_if(promised_.begin(), promised_.end(), [&](const auto& entry) {
    return entry.second.secure &&
           std::equal(name.begin(), name.end(), entry.second.name.begin(), entry.second.name.end());
  });
  if (found == promised_.end()) return nullptr;
  ticket = found->first;
  return take(found, client);
}

Worker* Tickets::take(std::map<Ticket, Promise>::iterator promise, ClientFacts& client) {
  Worker* const worker = promise->second.worker;
  client = promise->second.client;
  promised_.erase(promise);
  return worker;
}

void Tickets::worker_ended(const Worker& worker) {
  std::erase_if(promised_, [&](const auto& entry) { return entry.second.worker == &worker; });
}

}  // namespace fargpu::server
