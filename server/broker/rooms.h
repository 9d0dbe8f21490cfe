#pragma once
// Which sessions' memory leaves the devices so that others find room there. A machine without threads, clocks or
// sockets: it is told what happens and when, and says what follows.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "server/scheduler/share.h"

namespace fargpu::server {

struct RoomRules {
  std::uint64_t host_bytes_max = 0;  ///< of the host's memory, for what is evicted
  std::uint64_t disk_bytes_max = 0;  ///< of its disk; with neither nothing is evicted
  /// A session that works has its memory for so long, even if others want the room: to swap it costs time.
  std::chrono::nanoseconds quantum = std::chrono::seconds(5);
  /// Memory leaves when its session has not worked for so long, though nobody wants the room; 0: it stays.
  std::chrono::nanoseconds idle_after{0};
};

/// As much of a session's memory leaves as is wanted, but no small pieces of it, and of the next session only when that
/// is not enough. For a session that returns it leaves in several portions, so that one returns while the next one
/// leaves. Sessions that do not work go first, of those the ones that have not worked for longest, and
/// best-effort ones before others; then those that have had their memory for the quantum. Nobody that works makes room
/// for a lease of lower priority. Wishes for a device are served in their order.
class Rooms {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using SessionId = std::uint64_t;
  using Bytes = std::vector<std::uint64_t>;  ///< of each of a session's devices

  using State = wire::Residency;
  struct Session {
    std::vector<unsigned> devices;  ///< of the host
    scheduler::Priority priority = scheduler::Priority::normal;
    std::uint64_t bytes_max = 0;  ///< that it may hold of each device, and want; 0 for no limit
    bool taken_over = false;      ///< an earlier broker may have had it evicted
  };
  /// Memory of a session is to leave within this patience, and may take so much of the host's memory, or else of its
  /// disk.
  struct Order {
    std::uint64_t number = 0;
    Bytes bytes;  ///< at least; empty: all that can
    std::uint64_t host_bytes_max = 0;
    std::uint64_t disk_bytes_max = 0;
    std::chrono::milliseconds patience{0};
  };
  using Evict = std::function<void(SessionId, const Order&)>;
  /// Room was made for a session's wish of this number, or cannot be.
  using Answer = std::function<void(SessionId, std::uint64_t request, bool made)>;
  /// What of a session lies on its devices.
  using OnDevices = std::function<Bytes(SessionId)>;

  Rooms(const RoomRules& rules, OnDevices on_devices, Evict evict, Answer answer)
      : rules_(rules), on_devices_(std::move(on_devices)), evict_(std::move(evict)), answer_(std::move(answer)) {}

  void join(SessionId id, const Session& session, Time now);
  void leave(SessionId id);
  /// It has done something.
  void worked(SessionId id, Time now);
  struct News {
    State state = State::RESIDENT;
    Bytes away;
    Bytes rest;  ///< that has not left, and could; of a resident session nothing is said
    std::uint64_t host_bytes = 0, disk_bytes = 0;
    std::string refusal;      ///< why it stays
    bool busy = false;        ///< and may leave later
    std::uint64_t order = 0;  ///< number of the last one that it has heard
  };
  /// Where its memory is.
  void told(SessionId id, const News& news, Time now);
  /// It wants room; another wish takes the place of an earlier one. `needed`: its memory is away.
  void wants(SessionId id, std::uint64_t request, const Bytes& bytes, bool needed, Time now);
  /// An operator wants all of its memory to leave. Why not; empty if it was told to.
  std::string ask_to_leave(SessionId id, Time now);
  /// What came of the last time that it was told to leave: why it stays; empty if it left. Nothing yet while it has not
  /// answered.
  std::optional<std::string> outcome(SessionId id) const;

  /// Does what is due. When it must be called again, unless something happens before; nothing if it need not.
  std::optional<Time> tick(Time now);

  struct View {
    State state = State::RESIDENT;
    std::uint64_t away = 0;
    std::uint64_t host_bytes = 0, disk_bytes = 0;
    std::string refusal;
  };
  View view(SessionId id) const;
  /// Of the host's memory and of its disk, taken by all that is evicted.
  std::uint64_t host_bytes() const { return taken(&Member::host); }
  std::uint64_t disk_bytes() const { return taken(&Member::disk); }

 private:
  /// What a session takes of the host's memory, or of its disk.
  struct Part {
    std::uint64_t bytes = 0;
    std::uint64_t expected = 0;        // while it is told to leave
    std::optional<std::uint64_t> max;  // as it was told last
  };
  struct Member {
    Session session;
    State state = State::RESIDENT;
    Bytes away, rest;
    Bytes leaving, away_before;  // what is expected to leave while it is told to, and what had left before
    bool more = false;           // could leave then
    Part host, disk;
    std::string refusal;
    bool busy = false;  // that is why it stayed
    std::optional<Time> refused;
    Time since{};  // of the state
    Time worked{};
    Time came{};                        // its memory
    std::optional<Time> told_to_leave;  // and has not answered
    std::uint64_t order = 0;            // number of the last one
  };
  struct Wish {
    SessionId session = 0;
    std::uint64_t request = 0;
    Bytes bytes;
    bool needed = false;
    bool tried = false;    // in vain, though nobody had left
    unsigned grants = 0;   // in vain, so far
    bool returns = false;  // the session has begun to return since it was granted
    Time since{};
    Bytes freed;                  // since then, by those that left for it
    std::set<SessionId> leaving;  // for it
    std::optional<Time> granted;  // and the session has not said what came of it
  };

  bool serve(Wish& wish, Time now);
  bool grant(Wish& wish, Time now);
  Bytes uncovered(const Wish& wish) const;
  Bytes movable(SessionId id, const Member& member) const;
  Bytes part(const Wish& wish, const Bytes& uncovered, SessionId id, const Member& member) const;
  std::map<SessionId, Member>::iterator victim(const Wish& wish, const Bytes& uncovered, Time now);
  bool may_go_later(const Wish& wish, Time now) const;
  bool in_the_way(const Wish& wish, SessionId id, const Member& member) const;
  bool about_to_return(SessionId id) const;
  bool idle(const Member& member, SessionId id, Time now) const;
  bool order(SessionId id, Member& member, Time now, std::chrono::milliseconds patience, Bytes bytes = {});
  void gone(SessionId id, const Bytes& bytes, const std::vector<unsigned>& devices);
  std::uint64_t taken(Part Member::*part) const;
  std::uint64_t left(Part Member::*part) const;
  std::uint64_t left_then(Part Member::*part) const;
  std::uint64_t most_left() const { return std::max(left(&Member::host), left(&Member::disk)); }
  void take(Member& member, Part Member::*part, std::uint64_t bytes) const;
  void evict_idle(Time now);
  void give_up_waiting(Time now);

  const RoomRules rules_;
  const OnDevices on_devices_;
  const Evict evict_;
  const Answer answer_;
  std::map<SessionId, Member> members_;
  std::list<Wish> wishes_;  // in their order
  std::uint64_t orders_ = 0;
};

}  // namespace fargpu::server
