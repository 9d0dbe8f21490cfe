#include "links.h"

#include <kj/exception.h>

#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "client/base/log.h"
#include "client/call/remote_call.h"
#include "operations.capnp.h"
#include "protocol/text.h"
#include "protocol/words.h"
#include "session.h"

namespace fargpu::client {

std::shared_ptr<Link> Links::between(Session& from, Session& to) {
  const Ends ends{&from, &to};
  std::unique_lock lock(mutex_);
  Pair& pair = pairs_[ends];  // stays where it is
  changed_.wait(lock, [&] { return !pair.making; });
  if (pair.link && !pair.link->lost) return pair.link;
  if (pair.refused) return nullptr;
  if (pair.made == made_max) {
    pair.refused = true;
    log::info("copies and waits from {} to {} go through this program: their link was lost {} times", from.terms.host,
              to.terms.host, made_max);
    return nullptr;
  }
  const auto link = std::make_shared<Link>(next_++, from, to);
  std::function<void()> make_link = [this, &pair, link] {
    const std::string why = make(*link);
    if (why.empty())
      log::info("copies and waits from {} to {} go directly, by {}", link->from.terms.host, link->to.terms.host,
                link->rdma ? "RDMA" : "TCP");
    else
      log::info("copies and waits from {} to {} go through this program: {}", link->from.terms.host,
                link->to.terms.host, why);
    {
      const std::lock_guard made(mutex_);
      if (!why.empty()) pair.link = nullptr;
      pair.refused = !why.empty();
      pair.making = false;
      if (why.empty() && link->lost.load()) {
        close(link->from, *link);
        close(link->to, *link);
      }
    }
    changed_.notify_all();
  };
  maker_.run(std::move(make_link));
  pair.making = true;  // it looks at this under the mutex, when it is done
  pair.link = link;    // which may be lost as soon as one of its ends has it
  ++pair.made;
  changed_.wait(lock, [&] { return !pair.making; });
  return pair.link && !pair.link->lost ? pair.link : nullptr;
}

// Why there is none; empty if there is.
std::string Links::make(Link& link) {
  const Terms& target = link.to.terms;
  if (!link.from.calls.serves(Opcode::joinPeer) || !link.to.calls.serves(Opcode::offerPeer))
    return "one of them is of a release that has no links";
  if (target.peer.host.empty()) return target.host + " was reached by a socket of this machine";
  bool offered = false;
  std::string why;
  try {
    why = make(link, offered);
  } catch (const kj::Exception& error) {
    why = words(error.getDescription().cStr());
  } catch (const std::exception& error) {
    why = words(error.what());
  }
  if (offered && !why.empty()) close(link.to, link);
  return why;
}

// `offered`: the target has its end, whether the other one comes or is lost.
std::string Links::make(Link& link, bool& offered) {
  const Terms& target = link.to.terms;
  Thread& thread = Thread::current();
  RemoteCall<wire::OfferPeer> offer(link.to.calls, thread);
  offer.in().setLink(link.number);
  if (offer.wait() != CUDA_SUCCESS) return target.host + " offers none";
  if (const auto failure = offer.out().getFailure(); failure.size() > 0)
    return target.host + ": " + printable(failure.cStr(), 512);
  offered = true;
  RemoteCall<wire::JoinPeer> join(link.from.calls, thread);
  auto in = join.in();
  in.setLink(link.number);
  in.setHost(target.peer.host);
  in.setPort(target.peer.port);
  in.setSession(target.session_id);
  in.setKey(offer.out().getKey());
  in.setEncrypted(target.peer.encrypted);
  if (join.wait() != CUDA_SUCCESS) return link.from.terms.host + ": it makes none";
  if (const auto failure = join.out().getFailure(); failure.size() > 0)
    return link.from.terms.host + ": " + printable(failure.cStr(), 512);
  link.rdma = join.out().getRdma();
  return {};
}

// Telling a worker may have to wait, so it is done where its questions are answered. One that is not told, for the want
// of memory, keeps what it has of the link until its session ends.
void Links::close(Session& session, const Link& link) noexcept try {
  session.answers.run([&session, number = link.number] {
    try {
      RemoteCall<wire::ClosePeer> close(session.calls, Thread::current());
      close.in().setLink(number);
      close.tell();
      session.calls.commands.flush();
    } catch (const std::exception& error) {
      session.lose(words(error.what()));
    }
  });
} catch (const std::exception& error) {
  log::info("the worker at {} is not told that a link is closed: {}", session.terms.host, error.what());
}

void Links::lost(const Session& session) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [ends, pair] : pairs_) {
    if ((ends.first != &session && ends.second != &session) || !pair.link || pair.link->lost.exchange(true)) continue;
    if (!pair.making) close(ends.first == &session ? *ends.second : *ends.first, *pair.link);
  }
}

void Links::lost(const Calls& by, std::uint32_t number, const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [ends, pair] : pairs_) {
    if (!pair.link || pair.link->number != number || (&ends.first->calls != &by && &ends.second->calls != &by))
      continue;
    if (pair.link->lost.exchange(true)) return;
    log::info("the link from {} to {} is lost: {}", ends.first->terms.host, ends.second->terms.host,
              printable(why, 512));
  }
}

}  // namespace fargpu::client
