#pragma once
// How each opcode is served. The table is generated.

#include <cstdint>
#include <vector>

#include "call.h"
#include "protocol/context_need.h"
#include "server/worker/base/device_range.h"
#include "work_kind.h"

namespace fargpu::server {

/// Whether a call is served while launches of its stream are still with the launch crew: because it is a launch itself,
/// or gives the driver nothing but an event.
enum class CrewUse : std::uint8_t {
  never,
  always,
  awaited,  ///< where its answer is awaited
};

struct Service {
  Outcome (*serve)(Session&, Call&) = nullptr;
  std::uint64_t (*stream_of)(Call&) = nullptr;      ///< of work on a stream: its handle
  WorkKind (*kind_of)(Call&) = nullptr;             ///< of work that needs a turn; null: its opcode says all
  std::uint64_t (*awaited_event)(Call&) = nullptr;  ///< of waits: the event's handle
  std::vector<std::uint64_t> (*recorded_events)(Call&) = nullptr;  ///< of work that records events: their handles
  std::uint64_t (*launched)(Call&) = nullptr;  ///< of launches of graphs: the executable graph's handle
  /// Whether the program's call has returned: nothing it does now may come first.
  bool (*taken_for_done)(Call&) = nullptr;
  /// Whether functions of the program that come before it on its stream need not have run: it is one, which the client
  /// runs behind them.
  bool (*passes_functions)(Call&) = nullptr;
  /// All device memory that it uses; null: it may use any.
  std::vector<DeviceRange> (*memory)(Call&) = nullptr;
  /// Gives up what comes with a call besides its frame: after a refusal, and when the service fails at once.
  void (*drop)(Session&, Call&) = nullptr;
  ContextNeed context = ContextNeed::current;
  bool after_held = false;   ///< must not overtake work that is held back
  bool needs_turn = false;   ///< gives work to the GPU
  bool asks = false;         ///< gives the GPU nothing, and needs no memory of it: carried out wherever that is
  bool driver_room = false;  ///< the driver may take memory of the GPU for it: where it has none, it is repeated
  bool staged = false;       ///< its bytes are received in pinned memory
  CrewUse crew = CrewUse::never;
};

/// What a call is taken for by Turns.
inline WorkKind kind_of(const Service& service, Call& call) {
  return service.kind_of ? service.kind_of(call) : work_kind(call);
}

/// Null for opcodes that this worker does not serve.
const Service* service_of(std::uint16_t opcode);

}  // namespace fargpu::server
