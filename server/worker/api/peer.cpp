// Links with the workers of other hosts, and waits for events there. Copies by them: copy_sources.h, copy_targets.h.

#include "protocol/data.h"
#include "protocol/errors.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

std::shared_ptr<PeerLink> link_of(Session& session, std::uint32_t number, PeerLink::End end) {
  auto link = session.peers().find(number);
  if (!link || link->end() != end) throw ProtocolError("an event on a link that there is not");
  return link;
}

}  // namespace

// Beside the executor, because the broker is waited for.
Outcome offerPeer(Session& session, Call& call, wire::OfferPeer::Reader in) {
  const std::uint32_t number = in.getLink();
  if (const std::string why = session.peers().offer(number); !why.empty()) {
    call.out<wire::OfferPeerReply>().setFailure(why);
    return CUDA_SUCCESS;
  }
  const auto key = std::make_shared<std::vector<std::byte>>();
  return session.aside_reply(
      call,
      [&session, number, key] {
        *key = session.peers().admit(number);
        return CUDA_SUCCESS;
      },
      [&session, number, key](CUresult result, MessageWriter& writer) {
        auto out = writer.root<wire::OfferPeerReply>();
        if (key->empty()) session.peers().close(number);
        if (key->empty()) out.setFailure("its fargpud does not let other hosts in");
        out.setKey(data_of(*key));
        return result;
      });
}

Outcome joinPeer(Session& session, Call& call, wire::JoinPeer::Reader in) {
  const std::uint32_t number = in.getLink();
  const auto met = std::make_shared<PeerLinks::Met>(PeerLinks::Met{.failure = session.peers().join(number)});
  if (!met->failure.empty()) {
    call.out<wire::JoinPeerReply>().setFailure(met->failure);
    return CUDA_SUCCESS;
  }
  return session.aside_reply(
      call,
      [&session, number, met,
       address = PeerAddress{.host = in.getHost().cStr(),
                             .port = in.getPort(),
                             .session = in.getSession(),
                             .key = copy_of(in.getKey()),
                             .encrypted = in.getEncrypted()}] {
        *met = session.peers().meet(number, address);
        return CUDA_SUCCESS;
      },
      [&session, number, met](CUresult result, MessageWriter& writer) {
        if (const auto link = session.peers().find(number); link && met->failure.empty())
          met->failure = link->failure();
        if (!met->failure.empty()) session.peers().close(number);
        auto out = writer.root<wire::JoinPeerReply>();
        out.setFailure(met->failure);
        out.setRdma(met->rdma);
        return result;
      });
}

Outcome closePeer(Session& session, Call&, wire::ClosePeer::Reader in) {
  session.peers().close(in.getLink());
  return CUDA_SUCCESS;
}

// What the stream was given before is with the driver already: it is held, and waits for nothing else.
Outcome awaitPeer(Session& session, Call& call, wire::AwaitPeer::Reader in, StreamState& stream) {
  const auto link = link_of(session, in.getLink(), PeerLink::End::target);
  if (!link->failure().empty()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  const std::uint64_t held = session.ordering().hold_for_program(stream);
  link->await(in.getNumber(), {.passed = [&session, held] { session.ordering().release(held); },
                               .lost =
                                   [&session, held, id = call.id()] {
                                     session.finish(id, CUDA_ERROR_DEVICE_UNAVAILABLE);
                                     session.ordering().release(held);
                                   }});
  return Outcome::later();
}

Outcome tellPeer(Session& session, Call&, wire::TellPeer::Reader in, StreamState& stream) {
  const auto link = link_of(session, in.getLink(), PeerLink::End::source);
  session.completions().after(stream, Completions::Kind::signal,
                              [link, number = in.getNumber()](CUresult) { link->say_passed(number); });
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server::hand
