#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <set>
#include <span>
#include <vector>

#include "driver/event.h"
#include "driver/launch_operation.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

CUresult launch(CUfunction function, const LaunchShape& shape, CUstream handle, void** arguments, void** extra,
                bool per_thread, CUevent completion_event = nullptr) {
  return entry([&] {
    require(function != nullptr, CUDA_ERROR_INVALID_HANDLE);
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    auto operation = std::make_unique<KernelOperation>(function, shape, arguments, extra);
    require(operation->function()->module()->context() == stream->context()->home(), CUDA_ERROR_INVALID_HANDLE);
    if (stream_is_captured(*stream)) return submit(stream, std::move(operation));
    stream->context()->flush_print();
    stream->begin_launch();
    auto task = std::shared_ptr<Task>();
    try {
      submit(stream, std::move(operation));
      // Counts the launch as waiting until the stream has passed it.
      stream->enqueue(std::make_shared<FunctionTask>(FunctionTask::Place::inline_on_completion,
                                                     [stream] { stream->end_launch(); }));
    } catch (const Failure&) {
      stream->end_launch();
      throw;
    }
    if (completion_event != nullptr) record_event(stream, EventTable::instance().get(completion_event), 0);
    if (Driver::get().configuration().launch_blocking) stream->synchronize();
  });
}

LaunchShape make_shape(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes) {
  LaunchShape shape;
  shape.grid = {grid_x, grid_y, grid_z};
  shape.block = {block_x, block_y, block_z};
  shape.dynamic_shared_bytes = shared_bytes;
  return shape;
}

/// Attributes of cuLaunchKernelEx. Hints are accepted; what would change results is refused.
CUresult launch_with_attributes(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra,
                                bool per_thread) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchShape shape = make_shape(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                 config->blockDimY, config->blockDimZ, config->sharedMemBytes);
  CUevent completion_event = nullptr;
  CUresult result = guarded([&] {
    require(config->attrs != nullptr || config->numAttrs == 0);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const CUlaunchAttributeValue& value = config->attrs[i].value;
      switch (config->attrs[i].id) {
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: shape.is_cooperative = value.cooperative != 0; break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
          // Zeros stand for none.
          if (value.clusterDim.x == 0) break;
          shape.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
          shape.is_cluster_given = true;
          break;
        case CU_LAUNCH_ATTRIBUTE_PRIORITY: shape.priority = value.priority; break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: completion_event = value.programmaticEvent.event; break;
        case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: completion_event = value.launchCompletionEvent.event; break;
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: break;
        default: throw Failure(CUDA_ERROR_INVALID_VALUE);
      }
    }
  });
  if (result != CUDA_SUCCESS) return result;
  return launch(function, shape, config->hStream, arguments, extra, per_thread, completion_event);
}

using Streams = std::vector<std::shared_ptr<Stream>>;

/// From here on no stream goes on before all of them have got here.
void join(const Streams& streams) {
  for (const auto& from : streams) {
    auto place = std::make_shared<Event>(from->context(), CU_EVENT_DISABLE_TIMING);
    record_event(from, place, 0);
    for (const auto& to : streams)
      if (to != from) wait_for_event(to, place, 0);
  }
}

/// Streams of one device each, none of them a default stream; launches that are alike.
Streams streams_of(const CUDA_LAUNCH_PARAMS* list, unsigned count) {
  Streams streams;
  std::set<int> devices;
  for (const CUDA_LAUNCH_PARAMS& p : std::span(list, count)) {
    require(p.hStream != nullptr && p.hStream != CU_STREAM_LEGACY && p.hStream != CU_STREAM_PER_THREAD);
    auto stream = find_stream(p.hStream, false);
    refuse_if_captured(*stream);
    require(devices.insert(stream->context()->device().ordinal()).second, CUDA_ERROR_INVALID_DEVICE);
    require(p.gridDimX == list->gridDimX && p.gridDimY == list->gridDimY && p.gridDimZ == list->gridDimZ &&
            p.blockDimX == list->blockDimX && p.blockDimY == list->blockDimY && p.blockDimZ == list->blockDimZ &&
            p.sharedMemBytes == list->sharedMemBytes);
    streams.push_back(std::move(stream));
  }
  return streams;
}

}  // namespace

/// The kernels begin together, unless a flag says otherwise, and what follows waits for all of
/// them. Each is synchronised as a grid of its own.
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned int count, unsigned int flags) {
  constexpr unsigned no_join_before = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC;
  constexpr unsigned no_join_after = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  return entry([&] {
    require(list != nullptr && count != 0 && (flags & ~(no_join_before | no_join_after)) == 0);
    Streams streams = streams_of(list, count);
    if (!(flags & no_join_before)) join(streams);
    for (const CUDA_LAUNCH_PARAMS& p : std::span(list, count)) {
      CUresult result =
          cuLaunchCooperativeKernel(p.function, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY,
                                    p.blockDimZ, p.sharedMemBytes, p.hStream, p.kernelParams);
      require(result == CUDA_SUCCESS, result);
    }
    if (!(flags & no_join_after)) join(streams);
  });
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void** arguments,
                        void** extra) {
  return launch(f, make_shape(gx, gy, gz, bx, by, bz, shared_bytes), stream, arguments, extra, false);
}
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                             unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
                             void** arguments, void** extra) {
  return launch(f, make_shape(gx, gy, gz, bx, by, bz, shared_bytes), stream, arguments, extra, true);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** arguments, void** extra) {
  return launch_with_attributes(config, f, arguments, extra, false);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** arguments, void** extra) {
  return launch_with_attributes(config, f, arguments, extra, true);
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                   unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
                                   void** arguments) {
  LaunchShape shape = make_shape(gx, gy, gz, bx, by, bz, shared_bytes);
  shape.is_cooperative = true;
  return launch(f, shape, stream, arguments, nullptr, false);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared_bytes,
                                        CUstream stream, void** arguments) {
  LaunchShape shape = make_shape(gx, gy, gz, bx, by, bz, shared_bytes);
  shape.is_cooperative = true;
  return launch(f, shape, stream, arguments, nullptr, true);
}
