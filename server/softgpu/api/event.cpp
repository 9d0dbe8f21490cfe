#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/context.h"
#include "driver/event.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

constexpr double ns_per_ms = 1e6;

CUresult record(CUevent event_handle, CUstream handle, unsigned flags, bool per_thread) {
  return entry([&] {
    require((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) == 0);
    auto event = EventTable::instance().get(event_handle);
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    require(event->context() == stream->context()->home(), CUDA_ERROR_INVALID_HANDLE);
    record_event(stream, event, flags);
  });
}

CUresult wait(CUstream handle, CUevent event_handle, unsigned flags, bool per_thread) {
  return entry([&] {
    require((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) == 0);
    auto event = EventTable::instance().get(event_handle);
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    wait_for_event(stream, event, flags);
  });
}

/// An event whose last record belongs to a capture says nothing about time.
std::shared_ptr<Event> usable_event(CUevent handle) {
  auto event = EventTable::instance().get(handle);
  event->context()->check();
  require(event->captured() == nullptr, CUDA_ERROR_CAPTURED_EVENT);
  return event;
}

}  // namespace

CUresult cuEventCreate(CUevent* result, unsigned int flags) {
  return entry([&] {
    require(result != nullptr);
    constexpr unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    require((flags & ~known) == 0);
    // Processes share no time.
    require(!(flags & CU_EVENT_INTERPROCESS) || (flags & CU_EVENT_DISABLE_TIMING));
    auto context = usable_context();
    auto shared = flags & CU_EVENT_INTERPROCESS ? SharedEvent::create() : nullptr;
    *result = EventTable::instance().add(std::make_shared<Event>(context, flags, std::move(shared)));
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return entry([&] { require(EventTable::instance().remove(handle) != nullptr, CUDA_ERROR_INVALID_HANDLE); });
}
CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, 0, false); }
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return record(event, stream, 0, true); }
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, stream, flags, false);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
  return record(event, stream, flags, true);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return wait(stream, event, flags, false);
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return wait(stream, event, flags, true);
}

CUresult cuEventQuery(CUevent handle) {
  return entry([&] {
    auto event = usable_event(handle);
    refuse_while_capturing();
    if (!event->is_over()) return CUDA_ERROR_NOT_READY;
    event->context()->check();
    return CUDA_SUCCESS;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return entry([&] {
    auto event = usable_event(handle);
    refuse_while_capturing();
    if (auto task = event->last_task()) task->wait();
    event->context()->flush_print();
    event->context()->check();
  });
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  return entry([&] {
    require(milliseconds != nullptr, CUDA_ERROR_INVALID_HANDLE);
    auto start = usable_event(start_handle), end = usable_event(end_handle);
    require(start->has_timing() && end->has_timing(), CUDA_ERROR_INVALID_HANDLE);
    auto first = start->last(), last = end->last();
    require(first != nullptr && last != nullptr, CUDA_ERROR_INVALID_HANDLE);
    if (!first->task->is_done() || !last->task->is_done()) return CUDA_ERROR_NOT_READY;
    *milliseconds = static_cast<float>(static_cast<double>(last->time_ns.load() - first->time_ns.load()) / ns_per_ms);
    return CUDA_SUCCESS;
  });
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  return entry([&] {
    auto event = EventTable::instance().get(event_handle);
    require(handle != nullptr);
    require(event->shared() != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *handle = event->shared()->handle();
  });
}

CUresult cuIpcOpenEventHandle(CUevent* result, CUipcEventHandle handle) {
  return entry([&] {
    require(result != nullptr);
    auto context = usable_context();
    constexpr unsigned flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    *result = EventTable::instance().add(std::make_shared<Event>(context, flags, SharedEvent::open(handle)));
  });
}
