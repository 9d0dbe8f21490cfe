#pragma once
// How each opcode is served. The table is generated.

#include <cstdint>

#include "call.h"
#include "protocol/context_need.h"

namespace fargpu::server {

struct Service {
  Outcome (*serve)(Session&, Call&) = nullptr;
  std::uint64_t (*stream_of)(Call&) = nullptr;  ///< of work on a stream: its handle
  std::uint64_t (*event_of)(Call&) = nullptr;   ///< of records and waits: the event's handle
  bool records_event = false;
  ContextNeed context = ContextNeed::current;
  bool after_held = false;  ///< must not overtake work that is held back
  bool needs_turn = false;  ///< gives work to the GPU
};

/// Null for opcodes that this worker does not serve.
const Service* service_of(std::uint16_t opcode);

}  // namespace fargpu::server
