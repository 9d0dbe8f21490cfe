#include "rooms.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "protocol/text.h"

namespace fargpu::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A session that has done nothing for so long does not work now. Workers say what they do four times a second.
constexpr auto idle_least = seconds(1);
/// For work that was given before. What does not work has none.
constexpr auto patience_idle = milliseconds(1000), patience_working = milliseconds(10'000);
/// A worker that was told something and does not answer is not waited for any longer.
constexpr auto answer_patience = seconds(60);
/// One that could not leave is asked again after this.
constexpr auto refusal_counts = seconds(3);
/// For how long room is kept for the session that it was made for.
constexpr auto grant_kept = seconds(5);
/// A call that could fail waits for no longer than this, and a session is not trusted to be on its way for longer.
constexpr auto wish_patience = seconds(60);
/// So often a session keeps its place though what was made for it was not enough.
constexpr unsigned grants_max = 8;
constexpr auto look_interval = milliseconds(50);
/// Less is not worth a swap.
constexpr std::uint64_t bytes_least = 1u << 20;
/// Of what a session has on a device, at least this part leaves at a time: one that wants a little again and again is
/// not to wait each time.
constexpr std::uint64_t parts_max = 8;
/// For a session that returns, this is also the most, or so much, if that is more: each portion costs time, too.
constexpr std::uint64_t portion_least = 1u << 30;

std::uint64_t sum(const Rooms::Bytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}); }

}  // namespace

void Rooms::join(SessionId id, const Session& session, Time now) {
  Member& member = members_[id];
  member.session = session;
  member.worked = member.came = member.since = now;
  if (!session.taken_over) member.host.max = member.disk.max = 0;
}

void Rooms::leave(SessionId id) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  gone(id, on_devices_(id), found->second.session.devices);
  std::erase_if(wishes_, [&](const Wish& wish) { return wish.session == id; });
  members_.erase(found);
}

void Rooms::worked(SessionId id, Time now) {
  if (const auto found = members_.find(id); found != members_.end()) found->second.worked = now;
}

// A word that crosses an order does not answer it.
void Rooms::told(SessionId id, const News& news, Time now) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  Member& member = found->second;
  const State before = std::exchange(member.state, news.state);
  if (before != news.state) member.since = now;
  member.away = news.away;
  member.away.resize(member.session.devices.size());
  member.rest = news.rest;
  member.rest.resize(member.session.devices.size());
  const bool away = news.state != State::RESIDENT;
  take(member, &Member::host, away ? news.host_bytes : 0);
  take(member, &Member::disk, away ? news.disk_bytes : 0);
  // By the order of an earlier broker: how much it will be is not known.
  if (news.state == State::LEAVING && member.session.taken_over && !member.told_to_leave)
    for (const auto part : {&Member::host, &Member::disk}) (member.*part).max.reset();
  if (news.state == State::RETURNING)
    for (Wish& wish : wishes_)
      if (wish.session == id) {
        wish.returns = true;
        wish.freed.assign(wish.freed.size(), 0);  // it takes that now
      }
  // What has no room yet it asks for next, and keeps its place.
  if (before == State::RETURNING && news.state == State::WAITING)
    for (Wish& wish : wishes_)
      if (wish.session == id && wish.granted) wish.granted = now;
  if (news.state == State::RESIDENT) {
    const auto over = [&](const Wish& wish) {
      return wish.session == id && (wish.granted || before == State::RETURNING);
    };
    if (std::any_of(wishes_.begin(), wishes_.end(), over)) member.came = member.worked = now;
    std::erase_if(wishes_, over);
  }
  if (news.state == State::LEAVING || !member.told_to_leave || news.order != member.order) return;
  member.told_to_leave.reset();
  member.host.expected = member.disk.expected = 0;
  const bool returns = news.state == State::RETURNING;  // the order has crossed that
  member.refusal = returns ? "its memory is being brought back" : news.refusal;
  member.busy = returns || news.busy;
  if (!member.refusal.empty()) member.refused = now;
  Bytes left = member.away;
  for (std::size_t d = 0; d < left.size(); ++d) left[d] -= std::min(left[d], member.away_before[d]);
  gone(id, news.state == State::RESIDENT ? Bytes{} : left, member.session.devices);
}

// What a session gave back counts for the wish that it left for.
void Rooms::gone(SessionId id, const Bytes& bytes, const std::vector<unsigned>& devices) {
  for (Wish& wish : wishes_) {
    if (wish.leaving.erase(id) == 0) continue;
    const auto& wanted = members_.at(wish.session).session.devices;
    for (std::size_t d = 0; d < wanted.size(); ++d) {
      const auto place = std::find(devices.begin(), devices.end(), wanted[d]);
      const auto number = static_cast<std::size_t>(place - devices.begin());
      if (number < bytes.size() && d < wish.freed.size()) wish.freed[d] += bytes[number];
    }
  }
}

void Rooms::wants(SessionId id, std::uint64_t request, const Bytes& bytes, bool needed, Time now) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  const auto same = std::find_if(wishes_.begin(), wishes_.end(), [&](const Wish& wish) { return wish.session == id; });
  Wish fresh{.session = id, .request = request, .bytes = bytes, .needed = needed, .since = now};
  const Session& session = found->second.session;
  fresh.bytes.resize(session.devices.size());
  if (session.bytes_max != 0)
    for (std::uint64_t& wanted : fresh.bytes) wanted = std::min(wanted, session.bytes_max);
  fresh.freed.resize(fresh.bytes.size());
  if (same == wishes_.end()) {
    wishes_.push_back(std::move(fresh));
    return;
  }
  if (same->request == request) {  // said again: it has not heard the answer
    if (same->granted) answer_(id, request, true);
    return;
  }
  // What it was granted was not enough, or it wants more: it keeps its place, for a while.
  fresh.tried = same->granted ? same->returns || !needed : same->tried;
  if (needed || !fresh.tried) fresh.freed = same->freed;
  fresh.grants = needed && sum(fresh.bytes) < sum(same->bytes) ? 0 : same->grants;
  fresh.since = same->since;
  if (fresh.grants >= grants_max) {
    wishes_.erase(same);
    fresh.grants = 0;
    wishes_.push_back(std::move(fresh));
    return;
  }
  fresh.leaving = same->leaving;
  *same = std::move(fresh);
}

std::string Rooms::ask_to_leave(SessionId id, Time now) {
  const auto found = members_.find(id);
  if (found == members_.end())
    return "there is no session " + std::to_string(id) + "; `fargpu ls` shows those that run";
  if (rules_.host_bytes_max == 0 && rules_.disk_bytes_max == 0)
    return "this host evicts no sessions: its settings evicted_bytes_max and evicted_disk_bytes_max are 0";
  const Member& member = found->second;
  const std::uint64_t there = sum(movable(id, member));
  if (member.told_to_leave || (member.state != State::RESIDENT && there < bytes_least)) return "";  // or it is away
  if (member.state == State::RESIDENT && there == 0) return fmt::format("session {} has no memory of a device", id);
  if (most_left() == 0)
    return fmt::format(
        "what the host has for evicted sessions, {} of its memory (evicted_bytes_max) and {} of its disk "
        "(evicted_disk_bytes_max), is full",
        bytes_text(rules_.host_bytes_max), bytes_text(rules_.disk_bytes_max));
  order(id, found->second, now, patience_working);
  return "";
}

std::optional<std::string> Rooms::outcome(SessionId id) const {
  const auto found = members_.find(id);
  if (found == members_.end()) return "it has ended";
  return found->second.told_to_leave ? std::nullopt : std::optional(found->second.refusal);
}

std::optional<Rooms::Time> Rooms::tick(Time now) {
  give_up_waiting(now);
  std::set<unsigned> claimed;  // by earlier wishes
  for (auto wish = wishes_.begin(); wish != wishes_.end();) {
    std::set<unsigned> devices;
    const auto& all = members_.at(wish->session).session.devices;
    // What a session needs for its return is kept for it, also where it found room before.
    const Bytes& away = members_.at(wish->session).away;
    for (std::size_t d = 0; d < wish->bytes.size(); ++d)
      if (wish->bytes[d] > 0 || (wish->needed && d < away.size() && away[d] > 0)) devices.insert(all[d]);
    const bool behind = std::any_of(devices.begin(), devices.end(), [&](unsigned d) { return claimed.contains(d); });
    claimed.merge(devices);
    if (!behind && !wish->granted && serve(*wish, now)) wish = wishes_.erase(wish);
    else ++wish;
  }
  evict_idle(now);
  const bool waits = !wishes_.empty() || std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.told_to_leave.has_value();
  });
  if (waits) return now + look_interval;
  if (rules_.idle_after.count() > 0 && !members_.empty()) return now + idle_least;
  return std::nullopt;
}

void Rooms::give_up_waiting(Time now) {
  for (auto& [id, member] : members_) {
    // What is being copied takes the host's memory, however long that takes.
    const auto patience = member.state == State::LEAVING ? 10 * answer_patience : answer_patience;
    if (!member.told_to_leave || now - *member.told_to_leave < patience) continue;
    member.told_to_leave.reset();
    member.host.expected = member.disk.expected = 0;
    member.refused = now;
    member.refusal = "its worker does not answer";
    gone(id, {}, {});
  }
  std::erase_if(wishes_, [&](const Wish& wish) {
    const Member& member = members_.at(wish.session);
    const auto kept = member.state == State::RETURNING ? 10 * answer_patience : grant_kept;
    return wish.granted && now - *wish.granted >= kept;
  });
  // However much room was made for it, and whichever wishes are before it.
  std::erase_if(wishes_, [&](const Wish& wish) {
    const bool given_up = !wish.needed && !wish.granted && now - wish.since >= wish_patience;
    if (given_up) answer_(wish.session, wish.request, false);
    return given_up;
  });
}

// True if the wish is over. One that was granted stays, and keeps others away from the room, until the session has it.
bool Rooms::serve(Wish& wish, Time now) {
  // Somebody else may have made room meanwhile. A session that has tried to allocate knows better.
  if (wish.needed && !wish.tried && wish.leaving.empty() && sum(wish.freed) == 0) return grant(wish, now);
  // The next portion of one that leaves in portions is before another one's memory.
  const auto comes = [&] {
    return wish.needed &&
           std::any_of(wish.leaving.begin(), wish.leaving.end(), [&](SessionId id) { return members_.at(id).more; });
  };
  Bytes rest = uncovered(wish);
  while (sum(rest) > 0 && !comes()) {
    const auto next = victim(wish, rest, now);
    if (next == members_.end()) break;
    const bool working = !idle(next->second, next->first, now);
    if (!order(next->first, next->second, now, working ? patience_working : patience_idle,
               part(wish, rest, next->first, next->second)))
      break;
    wish.leaving.insert(next->first);
    rest = uncovered(wish);
  }
  if (wish.needed && sum(wish.freed) > 0) return grant(wish, now);
  if (!wish.leaving.empty()) return false;
  if (sum(rest) == 0 || sum(wish.freed) > 0) return grant(wish, now);
  if (may_go_later(wish, now)) return false;
  answer_(wish.session, wish.request, false);
  return true;
}

bool Rooms::grant(Wish& wish, Time now) {
  wish.granted = now;
  ++wish.grants;
  answer_(wish.session, wish.request, true);
  return false;
}

// What is wanted beyond what has left, and what is leaving.
Rooms::Bytes Rooms::uncovered(const Wish& wish) const {
  const auto& devices = members_.at(wish.session).session.devices;
  Bytes rest = wish.bytes;
  for (std::size_t d = 0; d < rest.size(); ++d) {
    std::uint64_t room = wish.freed[d];
    for (const SessionId id : wish.leaving) {
      const Member& other = members_.at(id);
      for (std::size_t o = 0; o < other.session.devices.size() && o < other.leaving.size(); ++o)
        if (other.session.devices[o] == devices[d]) room += other.leaving[o];
    }
    rest[d] -= std::min(rest[d], room);
  }
  return rest;
}

// What of it is on its devices and can leave, as far as is known.
Rooms::Bytes Rooms::movable(SessionId id, const Member& member) const {
  Bytes bytes = on_devices_(id);
  if (member.state == State::RESIDENT) return bytes;
  for (std::size_t d = 0; d < bytes.size(); ++d)
    bytes[d] = d < member.rest.size() ? std::min(bytes[d], member.rest[d]) : 0;
  return bytes;
}

// What it is to leave of each of its devices, where so much is wanted yet.
Rooms::Bytes Rooms::part(const Wish& wish, const Bytes& uncovered, SessionId id, const Member& member) const {
  const auto& devices = members_.at(wish.session).session.devices;
  Bytes bytes = movable(id, member);
  for (std::size_t o = 0; o < bytes.size(); ++o) {
    const auto place = std::find(devices.begin(), devices.end(), member.session.devices.at(o)) - devices.begin();
    const auto d = static_cast<std::size_t>(place);
    const std::uint64_t wanted = d < uncovered.size() ? uncovered[d] : 0;
    const std::uint64_t away = o < member.away.size() ? member.away[o] : 0;
    const std::uint64_t least = (bytes[o] + away) / parts_max;
    const std::uint64_t most = wish.needed ? std::max(least, portion_least) : wanted;
    bytes[o] = wanted == 0 ? 0 : std::min(bytes[o], std::max(least, std::min(wanted, most)));
  }
  return bytes;
}

// Whether it has memory on a device that the wish is about.
bool Rooms::in_the_way(const Wish& wish, SessionId id, const Member& member) const {
  if (id == wish.session || member.state == State::LEAVING || member.state == State::RETURNING) return false;
  if (about_to_return(id)) return false;
  const auto& devices = members_.at(wish.session).session.devices;
  const Bytes bytes = movable(id, member);
  for (std::size_t o = 0; o < member.session.devices.size() && o < bytes.size(); ++o)
    for (std::size_t d = 0; d < devices.size(); ++d)
      if (devices[d] == member.session.devices[o] && wish.bytes[d] > 0 && bytes[o] >= bytes_least) return true;
  return false;
}

// It was granted the room for that.
bool Rooms::about_to_return(SessionId id) const {
  return std::any_of(wishes_.begin(), wishes_.end(),
                     [&](const Wish& wish) { return wish.session == id && wish.needed && wish.granted; });
}

// One that waits for room itself does nothing meanwhile.
bool Rooms::idle(const Member& member, SessionId id, Time now) const {
  return now - member.worked >= idle_least || std::any_of(wishes_.begin(), wishes_.end(), [&](const Wish& wish) {
           return wish.session == id && !wish.granted;
         });
}

std::map<Rooms::SessionId, Rooms::Member>::iterator Rooms::victim(const Wish& wish, const Bytes& uncovered, Time now) {
  using scheduler::Priority;
  const Priority own = members_.at(wish.session).session.priority;
  const std::uint64_t left = most_left();
  auto best = members_.end();
  const auto rank = [&](auto member) {
    return std::tuple(!idle(member->second, member->first, now), member->second.session.priority,
                      idle(member->second, member->first, now) ? member->second.worked : member->second.came);
  };
  for (auto one = members_.begin(); one != members_.end(); ++one) {
    const Member& member = one->second;
    if (!in_the_way(wish, one->first, member) || member.told_to_leave ||
        (member.refused && now - *member.refused < refusal_counts))
      continue;
    const std::uint64_t bytes = sum(part(wish, uncovered, one->first, member));
    if (bytes == 0 || bytes > left) continue;
    if (!idle(member, one->first, now) && (member.session.priority > own || now - member.came < rules_.quantum))
      continue;
    if (best == members_.end() || rank(one) < rank(best)) best = one;
  }
  return best;
}

// Whether somebody in the way will have to go, is on its way, or has not been asked. A call that could fail waits for
// nobody else.
bool Rooms::may_go_later(const Wish& wish, Time now) const {
  const std::uint64_t most_then = std::max(left_then(&Member::host), left_then(&Member::disk));
  if (most_then == 0) return false;
  const Session& own = members_.at(wish.session).session;
  const Bytes rest = uncovered(wish);
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const Member& member = entry.second;
    const bool moves =
        member.state == State::LEAVING || member.state == State::RETURNING || about_to_return(entry.first);
    if (moves && entry.first != wish.session && now - member.since < wish_patience)
      return std::any_of(member.session.devices.begin(), member.session.devices.end(), [&](unsigned device) {
        return std::find(own.devices.begin(), own.devices.end(), device) != own.devices.end();
      });
    const std::uint64_t bytes = sum(part(wish, rest, entry.first, member));
    return bytes > 0 && bytes <= most_then && in_the_way(wish, entry.first, member) &&
           member.session.priority <= own.priority && (!member.refused || member.busy || *member.refused < wish.since);
  });
}

// More may leave than is wanted: memory leaves in whole pieces.
bool Rooms::order(SessionId id, Member& member, Time now, milliseconds patience, Bytes bytes) {
  if (most_left() == 0) return false;
  const Bytes all = movable(id, member);
  member.told_to_leave = now;
  member.order = ++orders_;
  member.refusal.clear();
  member.leaving = bytes.empty() ? all : bytes;
  member.more = sum(member.leaving) < sum(all);
  member.away_before = member.away;
  member.away_before.resize(member.session.devices.size());
  for (const auto part : {&Member::host, &Member::disk}) {
    (member.*part).expected = std::min(left(part), sum(all));
    (member.*part).max = (member.*part).bytes + (member.*part).expected;
  }
  evict_(id, {member.order, std::move(bytes), member.host.expected, member.disk.expected, patience});
  return true;
}

std::uint64_t Rooms::taken(Part Member::*part) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, member] : members_) bytes += (member.*part).bytes;
  return bytes;
}

// When those that leave now have left: most of what they could take they will not.
std::uint64_t Rooms::left_then(Part Member::*part) const {
  const std::uint64_t max = part == &Member::host ? rules_.host_bytes_max : rules_.disk_bytes_max;
  return max - std::min(max, taken(part));
}

std::uint64_t Rooms::left(Part Member::*part) const {
  std::uint64_t left = left_then(part);
  for (const auto& [id, member] : members_) left -= std::min(left, (member.*part).expected);
  return left;
}

// No worker can say that there is no room left for others.
void Rooms::take(Member& member, Part Member::*part, std::uint64_t bytes) const {
  Part& own = member.*part;
  own.bytes = 0;
  if (bytes != 0 && !own.max) own.max = std::min(bytes, left(part));
  if (bytes != 0) own.bytes = std::min(bytes, *own.max);
}

void Rooms::evict_idle(Time now) {
  if (rules_.idle_after.count() == 0) return;
  for (auto& [id, member] : members_) {
    if ((member.state != State::RESIDENT && member.state != State::EVICTED) || member.told_to_leave ||
        now - member.worked < rules_.idle_after || (member.refused && now - *member.refused < rules_.idle_after) ||
        sum(movable(id, member)) < bytes_least)
      continue;
    order(id, member, now, patience_idle);
  }
}

Rooms::View Rooms::view(SessionId id) const {
  const auto found = members_.find(id);
  if (found == members_.end()) return {};
  const Member& member = found->second;
  return {member.state, sum(member.away), member.host.bytes, member.disk.bytes, member.refusal};
}

}  // namespace fargpu::server
