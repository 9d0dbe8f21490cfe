#include "held_calls.h"

#include <utility>

namespace fargpu::server {

std::shared_ptr<HeldCall> HeldCalls::copy(Call& call) {
  TakenCredit credit = call.take_credit();
  auto charge = HostCharge::take(budget_, credit ? 0 : credit_of(call.message().size(), call.bulk().size()));
  if (!charge) return nullptr;
  auto held = std::make_shared<HeldCall>();
  held->credit = std::move(credit);
  held->charge = std::move(*charge);
  const CallId& id = call.id();
  held->header.sequence = id.sequence;
  held->header.thread = id.thread;
  held->header.subject = id.context;
  held->header.opcode = id.opcode;
  // call_never_held of a call that is awaited has had its effect: it came to be held all the same. Of one that is not
  // awaited it says what the stream that the call makes waits for.
  if (id.wants_reply) held->header.detail = call_wants_reply;
  else if (id.never_held) held->header.detail = call_never_held;
  held->message.assign(call.message().begin(), call.message().end());
  held->bulk.assign(call.bulk().begin(), call.bulk().end());
  return held;
}

void HeldCalls::execute(HeldCall& held, bool answered) {
  Call again(held.header, held.message, held.bulk);
  again.set_credit(std::move(held.credit));
  if (answered) again.set_answered();
  executor_.execute(*service_of(again.id().opcode), again);
}

void HeldCalls::leave_out(HeldCall& held) {
  Call again(held.header, held.message, held.bulk);
  again.set_credit(std::move(held.credit));
  executor_.refuse(again, CUDA_SUCCESS);
}

}  // namespace fargpu::server
