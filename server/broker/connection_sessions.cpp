// Connections that go on to the worker of a session.

#include "connection.h"
#include "event_log.h"

namespace fargpu::server {

asio::awaitable<void> Broker::Connection::on_attach(wire::Attach::Reader attach) {
  const auto bytes = attach.getTicket();
  ClientFacts client;
  Worker* const worker =
      broker_.tickets_.redeem({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()}, client);
  if (!worker) {
    refused("wrong, used or expired ticket");
    co_await channel_.send([&](wire::Control::Builder control) {
      auto failure = control.initAttachAnswer().initFailure();
      failure.setReason(wire::Failure::Reason::DENIED);
      failure.setText("the ticket is wrong, used or expired; start the program again");
    });
    co_return;
  }
  client.peer = client_.peer;
  client.by_loopback = here_;
  client.shares_memory = channel_.by_socket() && attach.getSharedMemory();
  deadline_.cancel();
  const std::uint64_t id = broker_.next_session_++;
  if (!broker_.workers_.begin_session(*worker, id, client,
                                      {.descriptor = channel_.release(), .attach = channel_.message()}))
    EventLog::error("session lost", {{"session", id}, {"reason", "its worker ended before it could begin"}});
}

// What follows on the connection is between the client and the worker, which both have the ticket.
asio::awaitable<void> Broker::Connection::on_route(wire::Route::Reader route) {
  const auto bytes = route.getTicketName();
  const std::span<const std::byte> name(reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size());
  ClientFacts client;
  Tickets::Ticket ticket;
  Worker* const worker = broker_.tickets_.redeem_name(name, client, ticket);
  if (!worker) {
    refused("wrong, used or expired ticket");
    co_return;
  }
  client.peer = client_.peer;
  client.by_loopback = here_;
  deadline_.cancel();
  const std::uint64_t id = broker_.next_session_++;
  if (!broker_.workers_.begin_session(*worker, id, client,
                                      {.descriptor = channel_.release(), .ticket_name = name, .ticket = ticket}))
    EventLog::error("session lost", {{"session", id}, {"reason", "its worker ended before it could begin"}});
}

// A stranger's does not reach the session's worker, which has other things to hear. Where TLS is spoken, a handshake
// there with the rest of the key decides.
asio::awaitable<void> Broker::Connection::on_lane(wire::Lane::Reader lane) {
  deadline_.cancel();
  const auto key = lane.getKey();
  const std::uint64_t session = lane.getSessionId();
  const auto asked = broker_.workers_.judge_lane(session, {reinterpret_cast<const std::byte*>(key.begin()), key.size()},
                                                 transport_ == Transport::tls);
  if (asked == Workers::LaneVerdict::rightly) {
    broker_.workers_.add_lane(session, channel_.release(), channel_.message());
    co_return;
  }
  if (asked == Workers::LaneVerdict::by_stranger) refused("a bulk lane of no session, or without its key");
  co_await channel_.send([&](wire::Control::Builder control) {
    auto failure = control.initLaneAnswer();
    failure.setReason(wire::Failure::Reason::DENIED);
    failure.setText("there is no session that takes a bulk lane with this key");
  });
}

}  // namespace fargpu::server
