#include "taken_copies.h"

#include <utility>

#include "server/worker/order/completions.h"

namespace fargpu::server {

std::shared_ptr<OvertakeEvent> OvertakeEvent::make(DriverTable& driver) {
  CUevent event = nullptr;
  if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
  return std::shared_ptr<OvertakeEvent>(new OvertakeEvent(driver, event));
}

void OvertakeEvent::end() {
  if (cuda_) driver_.cuEventDestroy_v2(std::exchange(cuda_, nullptr));
}

bool OvertakeEvent::over() const { return !cuda_ || query_event(driver_, cuda_) != CUDA_ERROR_NOT_READY; }

void TakenCopies::forbid(StreamState& stream) {
  ContextState& context = *stream.context;
  // One event stands for all such copies, so each comes behind the one before.
  // A wait for those so far keeps that event.
  auto& events = context.overtake_events;
  if (!events.empty() && stream.overtake_seen != context.overtake)
    driver_.cuStreamWaitEvent(stream.cuda, events.back()->cuda(), 0);
  std::erase_if(events, [&](const auto& event) { return event != events.back() && event.use_count() == 1; });
  if (events.empty() || events.back().use_count() > 1) {
    if (auto event = OvertakeEvent::make(driver_)) events.push_back(std::move(event));
  }
  context.overtake_on_legacy = &stream == context.legacy.get();
  const bool recorded = !events.empty() && events.back().use_count() == 1 &&
                        driver_.cuEventRecord(events.back()->cuda(), stream.cuda) == CUDA_SUCCESS;
  if (recorded) stream.overtake_seen = ++context.overtake;
  else driver_.cuStreamSynchronize(stream.cuda);  // what need not be waited for elsewhere is waited for here
}

void TakenCopies::catch_up(StreamState& stream) {
  ContextState& context = *stream.context;
  if (stream.overtake_seen == context.overtake) return;
  if (captures_.capturing(stream)) return;
  stream.overtake_seen = context.overtake;
  if (!stream.blocking || !context.overtake_on_legacy)
    driver_.cuStreamWaitEvent(stream.cuda, context.overtake_events.back()->cuda(), 0);
}

TakenCopies::Events TakenCopies::forbidden_in(const std::vector<ContextState*>& contexts) {
  Events events;
  for (const ContextState* context : contexts)
    if (!context->overtake_events.empty()) events.push_back(context->overtake_events.back());
  return events;
}

bool TakenCopies::forbidden(Events& events) {
  std::erase_if(events, [](const auto& event) { return event->over(); });
  return !events.empty();
}

void TakenCopies::context_closes(ContextState& context) {
  for (const auto& event : std::exchange(context.overtake_events, {})) event->end();
}

}  // namespace fargpu::server
