#pragma once
// Calls that cannot be executed yet: they come behind work that is held back, or wait for the session's turn. Their frames are kept.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "server/worker/call/call.h"
#include "server/worker/call/dispatch.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// An attribute that a function's launches are checked against.
using Limit = std::pair<CUfunction, CUfunction_attribute>;

/// Calls wait in the session's StreamOrder and Turns; what they keep is taken from its HostBudget. Used by the executor only.
class HeldCalls {
 public:
  explicit HeldCalls(Session& session) : session_(session) {}

  /// Whether the call comes behind something that is held back; then it is executed in its turn.
  bool holds(const Service& service, Call& call);
  /// Whether it gives the GPU work that the session may not give now; then it waits, with what comes behind it on its stream.
  bool waits_for_turn(const Service& service, Call& call);

  // For services that find out by themselves what they come behind: the answer of a call that must wait, and is served again then, or that
  // cannot wait; nothing if it may go on.

  /// An executable graph is about to be changed: launches of it that are held back come first.
  std::optional<Outcome> behind_launches(Call& call, std::uint64_t exec);
  /// The same for a context that is about to go, and everything that is held back; or, for a client that cannot wait for others, on the
  /// context's own streams.
  std::optional<Outcome> behind_context(Call& call, ContextState& context);
  /// Work on several streams: comes behind what is held back on any of them, and later work on all of them behind it.
  std::optional<Outcome> behind_streams(Call& call, const std::vector<StreamState*>& streams);
  /// A stream is about to be captured: work that it was given before is no part of the capture, and would break it later.
  std::optional<Outcome> before_capture(Call& call, StreamState& stream);
  /// Work on several streams that may not be given now.
  std::optional<Outcome> behind_turn(Call& call, const std::vector<StreamState*>& streams);
  /// Memory is about to be unmapped: copies into it that the program takes for done come first.
  std::optional<Outcome> behind_copies(Call& call);
  /// A limit is about to be set. Launches that are held back may need more than a lower one: it is answered, and set behind them, unless
  /// it has been set again by then.
  std::optional<Outcome> sets_limit(Call& call, const Limit& limit, int value, bool lowers);
  /// What the program has set and the driver has not heard of yet.
  std::optional<int> lowered_later(const Limit& limit) const;

 private:
  /// Returns the item, 0 if there is no room for it.
  std::uint64_t park(Call& call, const std::vector<std::uint64_t>& before, StreamState& stream, std::vector<std::uint64_t> recorded_events);
  void park_behind_all(Call& call);
  /// `streams`: later work on them comes behind it.
  Outcome park_behind(const std::vector<std::uint64_t>& items, Call& call, const std::vector<StreamState*>& streams = {});

  struct Lowered {
    int value = 0;
    std::uint32_t call = 0;  // that set it last
  };

  Session& session_;
  std::map<Limit, Lowered> lowered_later_;
};

}  // namespace fargpu::server
