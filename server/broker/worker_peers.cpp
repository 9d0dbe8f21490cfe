// What sessions have to do with each other: things that one shares with another, and links between hosts.

#include <unistd.h>

#include <algorithm>

#include "passed_descriptors.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/same_secret.h"
#include "protocol/text.h"
#include "workers.h"

namespace fargpu::server {

void Workers::on_sharing_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor) {
  switch (message.which()) {
    case wire::WorkerMessage::SHARE: take_share(worker, message.getShare(), std::move(descriptor)); return;
    case wire::WorkerMessage::UNSHARE:
      shares_.remove(worker.process, message.getUnshare());
      send_link(worker.link->native_handle(),
                [&](wire::WorkerMessage::Builder answer) { answer.setUnshared(message.getUnshare()); });
      return;
    case wire::WorkerMessage::LET_GO: shares_.let_go(worker.process, message.getLetGo()); return;
    case wire::WorkerMessage::FETCH: answer(worker, message.getFetch()); return;
    default: return;
  }
}

void Workers::take_share(Worker& worker, wire::Share::Reader share, Descriptor descriptor) {
  if (!shares_.add(worker.process, worker.lease->lease().tenant, share, std::move(descriptor)))
    note(worker.session, EventLog::Level::warn, "too much shared",
         {{"session", worker.session}, {"worker", worker.process}});
}

// What sessions give each other names devices by their numbers, so both must have equal devices; and both are one
// tenant's.
bool Workers::may_share(const Worker& one, const Worker& other) {
  return one.lease && other.lease && one.lease->lease().tenant == other.lease->lease().tenant &&
         one.profile.devices == other.profile.devices;
}

// A session asks for a thing by a handle from the session that shares it. That session's worker has told the thing
// before, but its word may still be unread, behind others. So the words of all workers are heard first. A worker that
// asks in these is answered behind them.
void Workers::answer(Worker& worker, wire::Fetch::Reader fetch) {
  const auto key = share_key(fetch.getKey());
  if (!key) throw ProtocolError("the worker asks for what cannot be shared");
  const Asked asked{worker.process, fetch.getRequest(), *key};
  if (lend(worker, asked)) return;
  asked_.push_back(asked);
  if (std::exchange(hearing_, true)) return;
  hear_sharers(worker);
  hearing_ = false;
  for (const Asked& one : std::exchange(asked_, {})) {
    const auto found = by_process(one.worker);
    if (found == workers_.end() || found->state != Worker::State::session || lend(*found, one)) continue;
    send_link(found->link->native_handle(),
              [&](wire::WorkerMessage::Builder message) { message.initFetched().setRequest(one.request); });
  }
}

void Workers::hear_sharers(const Worker& asks) {
  constexpr std::size_t packets_max = limits::shares_max + 256;  // of each
  for (Worker& other : workers_) {
    for (std::size_t packets = 0; packets < packets_max; ++packets) {
      if (&other == &asks || other.state != Worker::State::session || !may_share(asks, other)) break;
      auto packet = receive_from_worker(other.link->native_handle());
      if (!packet || packet->message.empty()) break;
      if (!take(other, std::move(*packet))) kill(other);
    }
  }
}

// Gives a worker what another one shares; false if there is nothing by that key.
bool Workers::lend(Worker& worker, const Asked& asked) {
  const capnp::Data::Reader key = wire_of(asked.key);
  const SharedThing* const thing = shares_.lend(key, worker.process, [&](pid_t process) {
    const auto other = by_process(process);
    return other != workers_.end() && other->state == Worker::State::session && may_share(worker, *other);
  });
  if (!thing) return false;
  const bool sent = send_link(
      worker.link->native_handle(),
      [&](wire::WorkerMessage::Builder message) {
        auto fetched = message.initFetched();
        fetched.setRequest(asked.request);
        auto share = fetched.initShare();
        share.setKey(key);
        share.setDevice(thing->device);
        share.setBytes(thing->bytes);
        share.setEvent(data_of(thing->event));
      },
      thing->descriptor.number());
  if (!sent && thing->device >= 0) shares_.let_go(worker.process, key);
  return true;
}

// For memory of a session that has given it up, or ended.
void Workers::charge(pid_t heir, int device, std::uint64_t bytes, bool pays) {
  const auto found = by_process(heir);
  if (found == workers_.end() || !found->lease) return;
  auto& inherited = found->slot().inherited[device];
  if (pays) inherited += bytes;
  else inherited -= bytes;
}

void Workers::on_link_message(Worker& worker, wire::WorkerMessage::Reader message) {
  switch (message.which()) {
    case wire::WorkerMessage::ADMIT: admit(worker, message.getAdmit()); return;
    case wire::WorkerMessage::SHUT_OUT: {
      const auto key = message.getShutOut();
      const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(key.begin()), key.size());
      std::erase_if(worker.link_keys, [&](const auto& known) { return same_secret(known, bytes); });
      return;
    }
    case wire::WorkerMessage::DIAL: dial(worker, message.getDial()); return;
    default: return;
  }
}

void Workers::admit(Worker& worker, capnp::Data::Reader key) {
  add_link_key(worker, key);
  send_link(worker.link->native_handle(), [&](wire::WorkerMessage::Builder answer) { answer.setAdmitted(key); });
}

void Workers::add_link_key(Worker& worker, capnp::Data::Reader key) {
  if (key.size() != limits::lane_name_bytes + 32 || worker.link_keys.size() == limits::links_max)
    throw ProtocolError("the worker lets in more links than there can be");
  const auto* const bytes = reinterpret_cast<const std::byte*>(key.begin());
  worker.link_keys.emplace_back(bytes, bytes + key.size());
}

// The program's word for where the other host is: a session that tries many addresses is after something else.
void Workers::dial(Worker& worker, wire::Dial::Reader wanted) {
  const std::string host = wanted.getHost().cStr();
  const auto answer = [this, process = worker.process, session = worker.session, request = wanted.getRequest(), host](
                          int descriptor, const std::string& failure) {
    if (!failure.empty())
      note(session, EventLog::Level::info, "no link",
           {{"session", session}, {"host", printable(host, 256)}, {"reason", failure}});
    const auto found = by_process(process);
    if (found != workers_.end() && found->state == Worker::State::session && found->session == session)
      send_link(
          found->link->native_handle(),
          [&](wire::WorkerMessage::Builder message) {
            auto dialled = message.initDialled();
            dialled.setRequest(request);
            dialled.setFailure(failure);
          },
          descriptor);
    if (descriptor >= 0) ::close(descriptor);
  };
  if (++worker.dials > dials_of_session_max) return answer(-1, "the session has connected to other hosts often enough");
  dials_.dial(host, wanted.getPort(), worker.client.tenant, answer);
}

}  // namespace fargpu::server
