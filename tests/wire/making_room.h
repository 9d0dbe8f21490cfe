#pragma once
// In the place of a broker whose host evicts sessions: tests say what becomes of wishes for room.

#include <functional>

#include "server/worker/session/residency.h"

namespace fargpu::test {

/// Whether room is made. Sessions that begin while it is set ask here. Set it back.
extern std::function<bool(const server::RoomWish&)> make_room;

}  // namespace fargpu::test
