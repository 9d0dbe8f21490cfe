// Streams, events, captures, and functions of the program that a driver calls.

#include "fixtures.h"

namespace answers {

namespace {

Slot stream(World& w) {
  CUstream made;
  MUST(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  w.at_end([made] { (void)cuStreamDestroy(made); });
  return slot_of(made);
}
Slot event(World& w) {
  CUevent made;
  MUST(cuEventCreate(&made, CU_EVENT_DEFAULT));
  w.at_end([made] { (void)cuEventDestroy(made); });
  return slot_of(made);
}
Slot recorded(World& w) {
  const Slot made = event(w);
  MUST(cuEventRecord(made.get<CUevent>(), w.get<CUstream>("stream")));
  MUST(cuEventSynchronize(made.get<CUevent>()));
  return made;
}
Slot capturing(World& w) {
  const CUstream made = stream(w).get<CUstream>();
  const CUdeviceptr memory = w.get<CUdeviceptr>("memory");
  MUST(cuStreamBeginCapture(made, CU_STREAM_CAPTURE_MODE_RELAXED));
  w.at_end([made] {
    CUgraph graph = nullptr;
    if (cuStreamEndCapture(made, &graph) == CUDA_SUCCESS && graph) (void)cuGraphDestroy(graph);
  });
  MUST(cuMemsetD8Async(memory, 1, 4, made));
  return slot_of(made);
}
void CUDA_CB nothing_of_stream(CUstream, CUresult, void*) {}
size_t CUDA_CB size_of_block(int block) { return static_cast<size_t>(block) * 4; }

}  // namespace

void CUDA_CB nothing_of_host(void*) {}

void add_streams(Makers& makers) {
  makers.insert({
      {"stream", stream},
      {"stream2", stream},
      {"captured_stream", stream},
      {"capturing", capturing},
      {"captured_list",
       [](World& w) {
         const CUgraphNode* found;
         std::size_t count;
         CUstreamCaptureStatus status;
         MUST(cuStreamGetCaptureInfo(w.get<CUstream>("capturing"), &status, nullptr, nullptr, &found, nullptr, &count));
         if (count != 1) throw NoFixture("a capture of one node depends on others");
         return slot_of(w.list<CUgraphNode>({*found}));
       }},
      {"event", event},
      {"event2", event},
      {"recorded", recorded},
      {"recorded2", recorded},
      {"shared_event",
       [](World& w) {
         CUevent made;
         MUST(cuEventCreate(&made, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
         w.at_end([made] { (void)cuEventDestroy(made); });
         return slot_of(made);
       }},
      {"event_handle",
       [](World& w) {
         CUipcEventHandle made;
         MUST(cuIpcGetEventHandle(&made, w.get<CUevent>("shared_event")));
         return slot_of(made);
       }},
      {"host_function", [](World&) { return slot_of(&nothing_of_host); }},
      {"stream_function", [](World&) { return slot_of(&nothing_of_stream); }},
      {"size_function", [](World&) { return slot_of(&size_of_block); }},
      {"attribute_value", [](World& w) { return pointer_to(w, CUlaunchAttributeValue{}); }},
  });
}

}  // namespace answers
