#include "take_over.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include "event_log.h"
#include "protocol/errors.h"
#include "protocol/text.h"
#include "session_record.h"

namespace fargpu::server {
namespace {

/// Something that a worker that was taken over has told.
struct Told {
  Worker* worker = nullptr;
  Succession::Message message;
};

/// The session of a worker that has told all. Throws ProtocolError if it cannot be one of this broker's.
Worker& enter(const Succession& succession, Leases& leases, Workers& workers, Succession::Found found) {
  MessageReader first(found.told.front().bytes);
  Descriptor memory = std::move(found.told.front().descriptor);
  const auto kept = first.root<wire::WorkerMessage>().getKept();
  const auto bytes = succession.unseal({reinterpret_cast<const std::byte*>(kept.begin()), kept.size()});
  if (bytes.empty()) throw ProtocolError("its record is not of this host's brokers");
  MessageReader reader(bytes);
  const auto record = reader.root<wire::SessionRecord>();
  if (record.getProcess() != found.process) throw ProtocolError("its record is another process's");
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

/// Whether what this is about is known already, or need not be.
bool ready(const SharedThings& shares, const Worker& worker, wire::WorkerMessage::Reader told) {
  if (told.isHolds()) {
    const auto key = share_key(told.getHolds().getKey());
    return !key || shares.shared(*key);
  }
  if (!told.isShares() || told.getShares().getCameBy().size() == 0) return true;
  const auto came_by = share_key(told.getShares().getCameBy());
  return !came_by || shares.lent(worker.process, *came_by);
}

/// Takes those that are wanted. Returns whether there were any.
template <class Wanted>
bool take(Workers& workers, std::deque<Told>& rest, Wanted wanted) {
  const std::size_t before = rest.size();
  for (std::size_t left = before; left > 0; --left) {
    Told one = std::move(rest.front());
    rest.pop_front();
    if (one.worker->state != Worker::State::session) continue;  // it was dropped
    try {
      MessageReader reader(one.message.bytes);
      const auto told = reader.root<wire::WorkerMessage>();
      if (wanted(*one.worker, told)) workers.take_over(*one.worker, told, std::move(one.message.descriptor));
      else rest.push_back(std::move(one));
    } catch (const kj::Exception& error) {
      workers.drop(*one.worker, error.getDescription().cStr());
    } catch (const std::exception& error) {
      workers.drop(*one.worker, error.what());
    }
  }
  return rest.size() < before;
}

/// Keys by which what is left will be shared.
std::set<ShareKey> to_be_shared(const std::deque<Told>& rest) {
  std::set<ShareKey> keys;
  for (const Told& one : rest) {
    MessageReader reader(one.message.bytes);
    const auto told = reader.root<wire::WorkerMessage>();
    if (const auto key = told.isShares() ? share_key(told.getShares().getKey()) : std::nullopt) keys.insert(*key);
  }
  return keys;
}

/// Makers first, then those that have it of them, and so on; in between what nobody is the maker of any more.
void take_all(Workers& workers, std::deque<Told>& rest) {
  constexpr int rounds_max = 64;  // memory that so many sessions have of each other
  const SharedThings& shares = workers.shares();
  for (int round = 0; round < rounds_max && !rest.empty(); ++round) {
    if (take(workers, rest, [&](const Worker& worker, auto told) { return ready(shares, worker, told); })) continue;
    const std::set<ShareKey> later = to_be_shared(rest);
    const auto of_nobody = [&](const Worker&, wire::WorkerMessage::Reader told) {
      const auto key = told.isHolds() ? share_key(told.getHolds().getKey()) : std::nullopt;
      return key && !later.contains(*key);
    };
    if (!take(workers, rest, of_nobody)) break;
  }
  for (const Told& one : rest)
    if (one.worker->state == Worker::State::session)
      workers.drop(*one.worker, "it shares memory that it has of itself, or by way of too many sessions");
}

}  // namespace

std::uint64_t take_over_sessions(const Succession& succession, Leases& leases, Workers& workers) {
  std::uint64_t highest = 0;
  std::deque<Told> rest;
  for (Succession::Found& found : succession.find()) {
    const pid_t process = found.process;
    try {
      std::vector<Succession::Message> told(std::make_move_iterator(found.told.begin() + 1),
                                            std::make_move_iterator(found.told.end()));
      Worker& worker = enter(succession, leases, workers, std::move(found));
      highest = std::max(highest, worker.session);
      for (Succession::Message& message : told) rest.push_back({&worker, std::move(message)});
    } catch (const kj::Exception& error) {
      EventLog::warn("session not taken over", {{"worker", process}, {"reason", error.getDescription().cStr()}});
    } catch (const std::exception& error) {
      EventLog::warn("session not taken over", {{"worker", process}, {"reason", error.what()}});
    }
  }
  leases.all_taken_over();
  take_all(workers, rest);
  workers.shares().all_taken_over();
  return highest;
}

}  // namespace fargpu::server
