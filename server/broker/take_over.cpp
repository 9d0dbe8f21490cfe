#include "take_over.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "event_log.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/text.h"
#include "session_record.h"

namespace fargpu::server {
namespace {

/// Something that a worker that was taken over has told.
struct Told {
  Worker* worker = nullptr;
  Succession::Message message;
  std::optional<ShareKey> needs = {}, came_by = {}, shares = {};
};

/// The session of a worker that has told all. Throws ProtocolError if it cannot be one of this broker's.
Worker& enter(const Succession& succession, Leases& leases, Workers& workers, Succession::Found found) {
  MessageReader first(found.told.front().bytes);
  Descriptor memory = std::move(found.told.front().descriptor);
  const auto bytes = succession.unseal(bytes_of(first.root<wire::WorkerMessage>().getKept()));
  if (bytes.empty()) throw ProtocolError("its record is not of this host's brokers");
  MessageReader reader(bytes);
  const auto record = reader.root<wire::SessionRecord>();
  if (record.getProcess() != found.process) throw ProtocolError("its record is another process's");
  if (record.getAccountLayout() != TenantAccount::layout())
    throw ProtocolError("its account is of a release that lays it out in another way");
  if (workers.serves(record.getSession())) throw ProtocolError("another session has its number");
  if (memory.number() < 0 || account_number(memory.number()) != record.getAccount())
    throw ProtocolError("it has not the account that it was given");
  const auto uuids = workers.device_uuids();
  auto facts = read_lease(record, uuids);
  if (!facts) throw ProtocolError("its lease is of devices that this fargpud does not offer, or in another order");
  const WorkerProfile profile{
      .environment = {},
      .devices = facts->devices.size() == uuids.size() ? std::vector<unsigned>{} : facts->devices,
      .sm_groups = facts->sm_groups};
  std::string why_not;
  auto lease =
      leases.take_over(std::move(*facts), std::make_shared<TenantAccount>(TenantAccount::open(memory.release())),
                       record.getSlot(), why_not);
  if (!lease) throw ProtocolError(why_not);
  return workers.take_over(std::move(found), record, profile, std::move(lease));
}

/// Has a worker's words taken, or drops it.
template <class Action>
void use(Workers& workers, Worker& worker, const Succession::Message& message, Action action) {
  try {
    MessageReader reader(message.bytes);
    action(reader.root<wire::WorkerMessage>());
  } catch (const kj::Exception& error) {
    workers.drop(worker, error.getDescription().cStr());
  } catch (const std::exception& error) {
    workers.drop(worker, error.what());
  }
}

/// What it needs to be known before, and by which key it makes something known. Throws kj::Exception.
void read_keys(Told& told, wire::WorkerMessage::Reader message) {
  if (message.isHolds()) told.needs = share_key(message.getHolds().getKey());
  if (!message.isShares()) return;
  told.shares = share_key(message.getShares().getKey());
  if (message.getShares().getCameBy().size() != 0) told.came_by = share_key(message.getShares().getCameBy());
}

/// Whether what this is about is known already, or need not be.
bool ready(const SharedThings& shares, const Told& told) {
  if (told.came_by) return shares.lent(told.worker->process, *told.came_by);
  return !told.needs || shares.shared(*told.needs);
}

/// Takes those that are wanted. Returns whether there were any.
template <class Wanted>
bool take(Workers& workers, std::deque<Told>& rest, Wanted wanted) {
  const std::size_t before = rest.size();
  for (std::size_t left = before; left > 0; --left) {
    Told one = std::move(rest.front());
    rest.pop_front();
    if (one.worker->state != Worker::State::session) continue;  // it was dropped
    if (!wanted(one)) {
      rest.push_back(std::move(one));
      continue;
    }
    use(workers, *one.worker, one.message, [&](wire::WorkerMessage::Reader told) {
      workers.take_over(*one.worker, told, std::move(one.message.descriptor));
    });
  }
  return rest.size() < before;
}

/// Makers first, then those that have it of them, and so on; in between what nobody is the maker of any more.
void take_all(Workers& workers, std::deque<Told>& rest) {
  constexpr int rounds_max = 16;  // memory that so many sessions have of each other
  const SharedThings& shares = workers.shares();
  for (int round = 0; round < rounds_max && !rest.empty(); ++round) {
    if (take(workers, rest, [&](const Told& told) { return ready(shares, told); })) continue;
    std::set<ShareKey> later;
    for (const Told& one : rest)
      if (one.shares) later.insert(*one.shares);
    if (!take(workers, rest, [&](const Told& told) { return told.needs && !later.contains(*told.needs); })) break;
  }
  for (const Told& one : rest)
    if (one.worker->state == Worker::State::session)
      workers.drop(*one.worker, "it shares memory that it has of itself, or by way of too many sessions");
}

}  // namespace

std::uint64_t take_over_sessions(const Succession& succession, Leases& leases, Workers& workers) {
  std::uint64_t highest = 0;
  std::size_t taken = 0;
  std::deque<Told> rest;
  for (Succession::Found& found : succession.find()) {
    const auto leave_alone = [process = found.process](const char* why) {
      EventLog::warn("session not taken over",
                     {{"worker", process}, {"reason", why}, {"meaning", Succession::left_alone}});
    };
    try {
      std::vector<Succession::Message> told(std::make_move_iterator(found.told.begin() + 1),
                                            std::make_move_iterator(found.told.end()));
      Worker& worker = enter(succession, leases, workers, std::move(found));
      ++taken;
      highest = std::max(highest, worker.session);
      for (Succession::Message& message : told) {
        Told& one = rest.emplace_back(Told{&worker, std::move(message)});
        use(workers, worker, one.message, [&](wire::WorkerMessage::Reader words) { read_keys(one, words); });
      }
    } catch (const kj::Exception& error) {
      leave_alone(error.getDescription().cStr());
    } catch (const std::exception& error) {
      leave_alone(error.what());
    }
  }
  leases.all_taken_over(/*all=*/succession.doors_left() == taken);
  take_all(workers, rest);
  workers.shares().all_taken_over();
  return highest;
}

}  // namespace fargpu::server
