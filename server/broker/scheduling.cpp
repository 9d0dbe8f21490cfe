#include "scheduling.h"

#include "server/worker_link.h"

namespace fargpu::server {

Scheduling::Scheduling(asio::io_context& io, const scheduler::Rules& rules)
    : scheduler_(rules, [this](std::uint64_t lease, const scheduler::Turn& turn) { tell(lease, turn); }), timer_(io) {}

void Scheduling::set_rules(const scheduler::Rules& rules) {
  scheduler_.set_rules(rules, now());
  tick();
}

void Scheduling::begin(std::uint64_t session, std::uint64_t lease, const scheduler::Share& share, int link) {
  if (leases_[lease]++ == 0) scheduler_.join(lease, share, now());
  const scheduler::Turn turn = scheduler_.add_session(lease, session, now());
  send(sessions_[session] = {lease, link, 0}, turn);
  tick();
}

void Scheduling::end(std::uint64_t session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const std::uint64_t lease = found->second.lease;
  sessions_.erase(found);
  scheduler_.remove_session(lease, session, now());
  if (--leases_[lease] == 0) {
    leases_.erase(lease);
    scheduler_.leave(lease, now());
  }
  tick();
}

bool Scheduling::change(std::uint64_t session, const scheduler::Share& share) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return false;
  scheduler_.change(found->second.lease, share, now());
  tick();
  return true;
}

void Scheduling::heard(std::uint64_t session, wire::Activity::Reader activity) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  ++found->second.words;
  scheduler_.report(found->second.lease, session, {.wants = activity.getWants(), .busy = activity.getBusy()},
                    activity.getNumber(), scheduler::Time(activity.getSinceNs()), now());
  tick();
}

std::optional<scheduler::Scheduler::View> Scheduling::view(std::uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? std::nullopt : scheduler_.view(found->second.lease);
}

std::uint64_t Scheduling::words(std::uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.words;
}

void Scheduling::tell(std::uint64_t lease, const scheduler::Turn& turn) {
  for (auto& [session, member] : sessions_)
    if (member.lease == lease) send(member, turn);
}

// A worker that has not read for so long that there is no room is one that has died, or it soon will have.
void Scheduling::send(Member& member, const scheduler::Turn& turn) {
  ++member.words;
  send_link(member.link, [&](wire::WorkerMessage::Builder message) {
    auto told = message.initTurn();
    told.setGranted(turn.granted);
    told.setQuiet(turn.quiet);
    told.setUntilNs(turn.until.count());
    told.setAheadNs(turn.ahead.count());
    told.setNumber(turn.number);
  });
}

void Scheduling::tick() {
  const scheduler::Time at = now();
  const scheduler::Time next = scheduler_.tick(at);
  if (next == scheduler::never) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(asio::steady_timer::time_point(next));
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) tick();
  });
}

}  // namespace fargpu::server
