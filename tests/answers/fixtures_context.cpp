// Contexts, green contexts, and what belongs to a device.

#include "fixtures.h"

namespace answers {

namespace {

void CUDA_CB nothing_of_notification(CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {}
void CUDA_CB nothing_of_logs(void*, CUlogLevel, char*, size_t) {}

}  // namespace

void add_contexts(Makers& makers) {
  makers.insert({
      {"context", [](World&) { return slot_of(primary_context()); }},
      {"own_context",
       [](World& w) {
         CUcontext made;
         MUST(cuCtxCreate(&made, nullptr, 0, 0));
         w.at_end([made] { (void)cuCtxDestroy(made); });
         return slot_of(made);
       }},
      {"sm_resource",
       [](World& w) {
         auto* made = w.zeroed<CUdevResource>();
         MUST(cuDeviceGetDevResource(0, made, CU_DEV_RESOURCE_TYPE_SM));
         return slot_of(made);
       }},
      {"resource_description",
       [](World& w) {
         CUdevResourceDesc made;
         MUST(cuDevResourceGenerateDesc(&made, w.get<CUdevResource*>("sm_resource"), 1));
         return slot_of(made);
       }},
      {"green_context",
       [](World& w) {
         CUgreenCtx made;
         MUST(
             cuGreenCtxCreate(&made, w.get<CUdevResourceDesc>("resource_description"), 0, CU_GREEN_CTX_DEFAULT_STREAM));
         w.at_end([made] { (void)cuGreenCtxDestroy(made); });
         return slot_of(made);
       }},
      {"affinity",
       [](World& w) {
         CUexecAffinityParam p{};
         p.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
         p.param.smCount.val = 8;
         return pointer_to(w, p);
       }},
      {"context_params", [](World& w) { return pointer_to(w, CUctxCreateParams{}); }},
      {"bus_id",
       [](World& w) {
         auto* made = reinterpret_cast<char*>(w.memory(64));
         MUST(cuDeviceGetPCIBusId(made, 64, 0));
         return slot_of(made);
       }},
      {"atomics", [](World& w) { return slot_of(w.list<CUatomicOperation>({CU_ATOMIC_OPERATION_INTEGER_ADD})); }},
      {"async_function", [](World&) { return slot_of(&nothing_of_notification); }},
      {"notification",
       [](World& w) {
         CUasyncCallbackHandle made;
         MUST(cuDeviceRegisterAsyncNotification(0, nothing_of_notification, nullptr, &made));
         w.at_end([made] { (void)cuDeviceUnregisterAsyncNotification(0, made); });
         return slot_of(made);
       }},
      {"logs_function", [](World&) { return slot_of(&nothing_of_logs); }},
      {"logs_handle",
       [](World& w) {
         CUlogsCallbackHandle made;
         MUST(cuLogsRegisterCallback(nothing_of_logs, nullptr, &made));
         w.at_end([made] { (void)cuLogsUnregisterCallback(made); });
         return slot_of(made);
       }},
      {"log_iterator",
       [](World& w) {
         auto* made = w.zeroed<CUlogIterator>();
         MUST(cuLogsCurrent(made, 0));
         return slot_of(made);
       }},
  });
}

}  // namespace answers
