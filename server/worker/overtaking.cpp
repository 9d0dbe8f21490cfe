#include "overtaking.h"

namespace fargpu::server {

void Overtaking::forbid(StreamState& stream) {
  ContextState& context = *stream.context;
  if (!context.overtake_event && driver_.cuEventCreate(&context.overtake_event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    context.overtake_event = nullptr;
    driver_.cuStreamSynchronize(stream.cuda);  // what need not be waited for elsewhere is waited for here
    return;
  }
  // One event stands for all such copies, so each comes behind the one before.
  if (stream.overtake_seen != context.overtake) driver_.cuStreamWaitEvent(stream.cuda, context.overtake_event, 0);
  context.overtake_on_legacy = &stream == context.legacy.get();
  if (driver_.cuEventRecord(context.overtake_event, stream.cuda) == CUDA_SUCCESS) stream.overtake_seen = ++context.overtake;
  else driver_.cuStreamSynchronize(stream.cuda);
}

void Overtaking::catch_up(StreamState& stream) {
  ContextState& context = *stream.context;
  if (stream.overtake_seen == context.overtake) return;
  if (captures_.capturing(stream)) return;
  stream.overtake_seen = context.overtake;
  if (!stream.blocking || !context.overtake_on_legacy) driver_.cuStreamWaitEvent(stream.cuda, context.overtake_event, 0);
}

}  // namespace fargpu::server
