#include "call_credit.h"

#include <string>

#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {
namespace {

constexpr std::uint64_t largest_call = credit_of(limits::message_bytes_max, limits::bulk_bytes_max);

}  // namespace

CallCredit::CallCredit(HostBudget& budget) {
  constexpr std::uint64_t part = 16;  // of the room at most: the rest is for everything else
  std::uint64_t bytes = limits::credit_bytes;
  while (bytes > limits::credit_bytes_min && bytes > budget.room() / part) bytes /= 2;
  auto charge = HostCharge::try_take(budget, bytes);
  if (!charge) return;
  reserve_ = std::move(*charge);
  granted_ = bytes;
}

TakenCredit CallCredit::take(std::uint64_t bytes) {
  if (!has_credit(taken_ - settled_, bytes, granted_)) {
    throw ProtocolError("a call of " + std::to_string(bytes) + " bytes while " + std::to_string(taken_ - settled_) +
                        " are not settled; the session's credit is " + std::to_string(granted_));
  }
  taken_ += bytes;
  return TakenCredit(*this, bytes);
}

bool CallCredit::due(bool idle) const {
  const std::uint64_t untold = settled_ - told_;
  if (untold >= granted_ / 4) return true;
  const bool may_be_awaited = !has_credit(taken_ - told_, largest_call, credit_share(granted_, CreditShare::bytes));
  return may_be_awaited && (idle || untold >= granted_ / 32);
}

}  // namespace fargpu::server
