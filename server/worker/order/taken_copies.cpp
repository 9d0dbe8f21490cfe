#include "taken_copies.h"

#include <utility>

#include "server/worker/order/completions.h"

namespace fargpu::server {

std::shared_ptr<CopyMark> CopyMark::make(DriverTable& driver) {
  CUevent event = nullptr;
  if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
  return std::shared_ptr<CopyMark>(new CopyMark(driver, event));
}

void CopyMark::end() {
  if (cuda_) driver_.cuEventDestroy_v2(std::exchange(cuda_, nullptr));
}

bool CopyMark::over() const { return !cuda_ || query_event(driver_, cuda_) != CUDA_ERROR_NOT_READY; }

void TakenCopies::mark(StreamState& stream) {
  ContextState& context = *stream.context;
  // One mark stands for all such copies, so each comes behind the one before.
  // A wait for those so far keeps that mark.
  auto& marks = context.copy_marks;
  if (!marks.empty() && stream.copy_mark_seen != context.copy_marks_made)
    driver_.cuStreamWaitEvent(stream.cuda, marks.back()->cuda(), 0);
  std::erase_if(marks, [&](const auto& mark) { return mark != marks.back() && mark.use_count() == 1; });
  if (marks.empty() || marks.back().use_count() > 1) {
    if (auto made = CopyMark::make(driver_)) marks.push_back(std::move(made));
  }
  context.copy_mark_on_legacy = &stream == context.legacy.get();
  const bool recorded = !marks.empty() && marks.back().use_count() == 1 &&
                        driver_.cuEventRecord(marks.back()->cuda(), stream.cuda) == CUDA_SUCCESS;
  if (recorded) stream.copy_mark_seen = ++context.copy_marks_made;
  else driver_.cuStreamSynchronize(stream.cuda);  // what need not be waited for elsewhere is waited for here
}

void TakenCopies::catch_up(StreamState& stream) {
  ContextState& context = *stream.context;
  if (stream.copy_mark_seen == context.copy_marks_made) return;
  if (captures_.capturing(stream)) return;
  stream.copy_mark_seen = context.copy_marks_made;
  if (!stream.blocking || !context.copy_mark_on_legacy)
    driver_.cuStreamWaitEvent(stream.cuda, context.copy_marks.back()->cuda(), 0);
}

TakenCopies::Marks TakenCopies::marks_in(const std::vector<ContextState*>& contexts) {
  Marks marks;
  for (const ContextState* context : contexts)
    if (!context->copy_marks.empty()) marks.push_back(context->copy_marks.back());
  return marks;
}

bool TakenCopies::any_open(Marks& marks) {
  std::erase_if(marks, [](const auto& mark) { return mark->over(); });
  return !marks.empty();
}

void TakenCopies::context_closes(ContextState& context) {
  for (const auto& mark : std::exchange(context.copy_marks, {})) mark->end();
}

}  // namespace fargpu::server
