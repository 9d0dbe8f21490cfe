#pragma once
// What calls take of the credit that the worker grants to a session. docs/internals/ordering.md has the rules.

#include <cstddef>
#include <cstdint>

#include "limits.h"

namespace fargpu {

/// What a call takes of it: about what its frame takes at the worker while it is held back. The bulk bytes count as
/// they are, not as they travel.
constexpr std::uint64_t credit_of(std::size_t message_bytes, std::size_t bulk_bytes) {
  return limits::credit_call_bytes + message_bytes + bulk_bytes;
}

/// How much of it calls take.
enum class CreditShare {
  bytes,  ///< work that brings bytes, and may wait for more: where its stream stands still, other streams go on
  work,   ///< other work, which may wait too
  all,    ///< what may not wait: what memory that goes, or changes, says of itself
};
constexpr std::uint64_t credit_share(std::uint64_t granted, CreditShare share) {
  switch (share) {
    case CreditShare::bytes: return granted / 2;
    case CreditShare::work: return granted - granted / 8;
    case CreditShare::all: break;
  }
  return granted;
}

/// Whether a call may be sent, or taken, while so much is not settled. One that is larger than the limit goes alone.
constexpr bool has_credit(std::uint64_t unsettled, std::uint64_t bytes, std::uint64_t limit) {
  return unsettled + bytes <= limit || unsettled == 0;
}

}  // namespace fargpu
