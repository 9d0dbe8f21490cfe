// Kernel launches. CUDA Driver API, "Execution Control".

#include <cstring>
#include <deque>
#include <span>

#include "calls_stream.capnp.h"
#include "client/base/config.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/code/launch_arguments.h"
#include "client/code/launch_attributes.h"
#include "client/code/launch_class.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "cuda_facts.h"
#include "protocol/data.h"

namespace fargpu::client::hand {
namespace {

struct Launch {
  CUfunction function = nullptr;
  unsigned grid[3] = {};
  unsigned block[3] = {};
  unsigned shared_bytes = 0;
  CUstream stream = nullptr;
  void** params = nullptr;
  void** extra = nullptr;
  wire::Launch::Form form = wire::Launch::Form::PLAIN;
  const CUlaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

// What the driver would refuse at any stream and time; the rest it says at the first launch of the class.
CUresult check_shape(const Device& device, const Launch& launch) {
  for (std::size_t i = 0; i < 3; ++i)
    if (launch.grid[i] == 0 || launch.block[i] == 0 || launch.grid[i] > device.grid_max[i])
      return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// What an event was made for and in which context says whether a launch may record it.
void add_event(LaunchClass& fingerprint, const CUlaunchAttribute& attribute, const HandleMap<Event>& events) {
  std::uint64_t handle = 0;
  std::memcpy(&handle, &attribute.value, sizeof(handle));
  const Event* const event = events.find(Handle(handle));
  fingerprint.add(event ? event->flags : ~std::uint64_t{0});
  fingerprint.add(event && event->context ? event->context->id() : 0);
  if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
    fingerprint.add(static_cast<std::uint64_t>(attribute.value.launchCompletionEvent.flags));
  } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
    fingerprint.add(static_cast<std::uint64_t>(attribute.value.programmaticEvent.flags));
    fingerprint.add(static_cast<std::uint64_t>(attribute.value.programmaticEvent.triggerAtBlockStart));
  }
}

// Launches of one class are accepted or refused together. The grid counts where it must fit clusters, or the device at
// once.
std::uint64_t fingerprint_of(const Launch& launch, const Function& function, const Context& context) {
  LaunchClass fingerprint;
  const auto add_fit = [&](unsigned cluster, unsigned grid) { fingerprint.add(cluster != 0 ? grid % cluster : 0); };
  fingerprint.add(context.id());
  fingerprint.add(std::uint64_t{launch.block[0]} << 32 | launch.block[1]);
  fingerprint.add(std::uint64_t{launch.block[2]} << 32 | launch.shared_bytes);
  fingerprint.add(static_cast<std::uint64_t>(launch.form));
  for (std::size_t d = 0; d < 3; ++d) add_fit(function.cluster[d].load(std::memory_order_relaxed), launch.grid[d]);
  bool whole_grid = launch.form == wire::Launch::Form::COOPERATIVE;
  for (unsigned i = 0; i < launch.attribute_count; ++i) {
    const CUlaunchAttribute& attribute = launch.attributes[i];
    fingerprint.add(attribute.id);
    const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
    if (facts->holds_event) add_event(fingerprint, attribute, context.session->events);
    else fingerprint.add(std::as_bytes(std::span(&attribute.value, 1)).first(facts->bytes));
    const auto add_fits = [&](const auto& cluster) {
      add_fit(cluster.x, launch.grid[0]);
      add_fit(cluster.y, launch.grid[1]);
      add_fit(cluster.z, launch.grid[2]);
    };
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) add_fits(attribute.value.clusterDim);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION) add_fits(attribute.value.preferredClusterDim);
    whole_grid = whole_grid || attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  }
  if (whole_grid) {
    fingerprint.add(std::uint64_t{launch.grid[0]} << 32 | launch.grid[1]);
    fingerprint.add(launch.grid[2]);
  }
  return fingerprint.value();
}

// Whether the driver cannot but accept the launch's attributes: clusters only where there surely is room for them.
bool clusters_accepted(const Device& device, const Launch& launch, Function& function, const Context& context) {
  // CUDA C++ Programming Guide, "Thread Block Clusters": but for devices, or parts of them, that are too small for it.
  constexpr unsigned portable_cluster_max = 8;
  constexpr unsigned whole_device_clusters = 8;  // a whole device has multiprocessors for so many of them
  const bool has_clusters = device.attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0;
  const bool whole_device = has_clusters && !context.green &&
                            device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) >=
                                static_cast<int>(portable_cluster_max * whole_device_clusters);
  unsigned cluster[3] = {0, 0, 0};
  for (unsigned i = 0; i < launch.attribute_count; ++i) {
    const CUlaunchAttribute& attribute = launch.attributes[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION && has_clusters)
      continue;  // both came with compute capability 9.0
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return false;
    cluster[0] = attribute.value.clusterDim.x;
    cluster[1] = attribute.value.clusterDim.y;
    cluster[2] = attribute.value.clusterDim.z;
    for (std::size_t d = 0; d < 3; ++d)
      if (cluster[d] == 0 || launch.grid[d] % cluster[d] != 0) return false;
    const bool portable =
        std::uint64_t{1} * cluster[0] * cluster[1] * cluster[2] <= portable_cluster_max && whole_device;
    if (!portable && !function.launch_known(fit_of(context, launch.block, launch.shared_bytes, cluster))) return false;
  }
  return true;
}

// Whether the driver cannot but accept the launch, as what is known of the function shows: then nobody waits for its
// word. Whatever the driver has to find out by itself, such as room for clusters or for much local memory, is not sure.
bool surely_accepted(const Device& device, const Launch& launch, Function& function, const Context& context) {
  constexpr int local_bytes_sure = 1024;  // of a thread's stack, as much as every context has from its beginning
  if (launch.form == wire::Launch::Form::COOPERATIVE) return false;
  if (function.handle.kind() == HandleKind::function && function.context != context.id()) return false;
  if (!clusters_accepted(device, launch, function, context)) return false;
  const std::lock_guard lock(function.mutex);
  const auto known = function.attributes.find(function.attribute_device(context.device));
  if (known == function.attributes.end()) return false;
  const auto at_most = [&](CUfunction_attribute attribute, std::uint64_t value) {
    const auto bound = known->second.value(attribute);
    return bound && value <= static_cast<std::uint64_t>(std::max(*bound, 0));
  };
  const auto block_fits = [&] {
    return at_most(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                   std::uint64_t{1} * launch.block[0] * launch.block[1] * launch.block[2]) &&
           launch.block[0] <= device.block_max[0] && launch.block[1] <= device.block_max[1] &&
           launch.block[2] <= device.block_max[2];
  };
  const auto memory_fits = [&] {
    const auto local_bytes = known->second.value(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    return at_most(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes) && local_bytes &&
           *local_bytes <= local_bytes_sure;
  };
  const auto needs_no_cluster = [&] {
    return known->second.value(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) == 0 &&
           known->second.value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) == 0 &&
           known->second.value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT) == 0 &&
           known->second.value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH) == 0;
  };
  return block_fits() && memory_fits() && needs_no_cluster();
}

// Checks a launch and says it, all but its attributes.
CUresult write_launch(Thread& thread, const Launch& launch, Function& function, const StreamUse& stream,
                      wire::Launch::Builder in) {
  Session& session = session_of(thread);
  if (const CUresult bad = check_shape(session.terms.facts.at(stream->context->device), launch); bad != CUDA_SUCCESS)
    return bad;
  std::span<const std::byte> arguments;
  if (const CUresult bad = gather_arguments(function, launch.params, launch.extra, arguments); bad != CUDA_SUCCESS)
    return bad;
  if (const CUresult bad =
          prepare_memory({session.calls, session.host_memory, session.managed, session.whole_system_work}, thread,
                         function, arguments);
      bad != CUDA_SUCCESS)
    return bad;
  in.setFunction(function.handle.value());
  in.setStream(stream.wire());
  in.setGridX(launch.grid[0]);
  in.setGridY(launch.grid[1]);
  in.setGridZ(launch.grid[2]);
  in.setBlockX(launch.block[0]);
  in.setBlockY(launch.block[1]);
  in.setBlockZ(launch.block[2]);
  in.setSharedBytes(launch.shared_bytes);
  in.setForm(launch.form);
  in.setParameters(data_of(arguments));
  return CUDA_SUCCESS;
}

// Events that a launch records by its attributes become part of a capture, or no longer are, as by cuEventRecord.
void note_records(Session& session, const Launch& launch, const Stream& stream) {
  for (const CUlaunchAttribute& attribute : std::span(launch.attributes, launch.attribute_count)) {
    const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
    if (!facts || !facts->holds_event) continue;
    std::uint64_t handle = 0;
    std::memcpy(&handle, &attribute.value, sizeof(handle));
    if (Event* const event = session.events.find(Handle(handle))) session.captures.record(*event, stream);
  }
}

CUresult launch(Thread& thread, const Launch& launch) {
  Session& session = session_of(thread);
  Function* const function = session.functions.find(launch.function);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const StreamUse stream(thread, launch.stream);
  if (!stream) return stream.error();
  RemoteCall<wire::Launch> call(thread, stream->context);
  auto in = call.in();
  if (const CUresult bad = write_launch(thread, launch, *function, stream, in); bad != CUDA_SUCCESS) return bad;
  if (launch.attribute_count > 0) {
    if (const CUresult bad = write_attributes(session.events, launch.attributes, launch.attribute_count,
                                              in.initAttributes(launch.attribute_count));
        bad != CUDA_SUCCESS)
      return bad;
  }
  const auto noted = [&](CUresult given) {
    if (given == CUDA_SUCCESS && launch.attribute_count > 0) note_records(session, launch, *stream);
    return given;
  };
  const std::uint64_t fingerprint = fingerprint_of(launch, *function, *stream->context);
  const WholeSystemWork::Launch turn(session.whole_system_work, thread, *stream,
                                     function->whole_system.load(std::memory_order_relaxed));
  session.waits.before_work(thread);
  if (session.waits.host_sees()) call.host_visible();
  if (config().launch_blocking && !stream->capture.load()) {
    if (const CUresult result = noted(call.wait(stream)); result != CUDA_SUCCESS) return result;
    return session.waits.settle(thread, *stream);
  }
  if (function->launch_known(fingerprint)) return noted(call.post(stream));
  const std::uint64_t changes = function->changes_now();
  if (surely_accepted(session.terms.facts.at(stream->context->device), launch, *function, *stream->context)) {
    const CUresult result = noted(call.post(stream));
    if (result == CUDA_SUCCESS) function->learn_launch(fingerprint, changes);
    return result;
  }
  // Behind what this process has yet to do the answer may take as long as that, and what it has to do may be this
  // thread's.
  if (session.waits.for_host() && !stream->capture.load()) return noted(call.post(stream));
  const CUresult result = noted(call.wait(stream));
  if (result != CUDA_SUCCESS) return result;
  const auto reply = call.out();
  function->cluster[0] = reply.getClusterX();
  function->cluster[1] = reply.getClusterY();
  function->cluster[2] = reply.getClusterZ();
  function->learn_launch(fingerprint_of(launch, *function, *stream->context), changes);
  return result;
}

}  // namespace

CUresult cuLaunchKernel(Thread& thread, CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                        void** params, void** extra) {
  return launch(thread,
                {f, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, params, extra});
}

CUresult cuLaunchCooperativeKernel(Thread& thread, CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream stream, void** params) {
  return launch(thread, {f,
                         {grid_x, grid_y, grid_z},
                         {block_x, block_y, block_z},
                         shared_bytes,
                         stream,
                         params,
                         nullptr,
                         wire::Launch::Form::COOPERATIVE});
}

// Deprecated, but drivers still have it.
CUresult cuLaunchCooperativeKernelMultiDevice(Thread& thread, CUDA_LAUNCH_PARAMS* list, unsigned count,
                                              unsigned flags) {
  constexpr unsigned flags_known = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                   CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  Session& session = session_of(thread);
  if (!list || count == 0 || count > session.terms.facts.devices.size() || (flags & ~flags_known) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<StreamUse> streams;
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& p = list[i];
    if (!p.hStream || p.hStream == CU_STREAM_LEGACY || p.hStream == CU_STREAM_PER_THREAD)
      return CUDA_ERROR_INVALID_VALUE;
    const StreamUse& stream = streams.emplace_back(thread, p.hStream);
    if (!stream) return stream.error();
    if (stream->capture.load()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (unsigned j = 0; j < i; ++j)
      if (streams[j]->context->device == stream->context->device) return CUDA_ERROR_INVALID_DEVICE;
  }
  bool whole_system = false;
  std::deque<WholeSystemWork::Launch> turns;
  RemoteCall<wire::LaunchTogether> call(thread, streams[0]->context);
  call.in().setFlags(flags);
  auto launches = call.in().initLaunches(count);
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& p = list[i];
    Function* const function = session.functions.find(p.function);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    const Launch launch{p.function,
                        {p.gridDimX, p.gridDimY, p.gridDimZ},
                        {p.blockDimX, p.blockDimY, p.blockDimZ},
                        p.sharedMemBytes,
                        p.hStream,
                        p.kernelParams,
                        nullptr,
                        wire::Launch::Form::COOPERATIVE};
    if (const CUresult bad = write_launch(thread, launch, *function, streams[i], launches[i]); bad != CUDA_SUCCESS)
      return bad;
    if (i > 0) call.also_on(*streams[i]);
    whole_system = whole_system || function->whole_system.load();
  }
  for (const StreamUse& stream : streams) turns.emplace_back(session.whole_system_work, thread, *stream, whole_system);
  session.waits.before_work(thread);
  if (session.waits.host_sees()) call.host_visible();
  // As with a launch: what must come first may be this thread's to do.
  return session.waits.for_host() ? call.post(streams[0]) : call.wait(streams[0]);
}

CUresult cuLaunchKernelEx(Thread& thread, const CUlaunchConfig* c, CUfunction f, void** params, void** extra,
                          CUstream default_stream) {
  if (!c || (c->numAttrs > 0 && !c->attrs)) return CUDA_ERROR_INVALID_VALUE;
  return launch(thread, {f,
                         {c->gridDimX, c->gridDimY, c->gridDimZ},
                         {c->blockDimX, c->blockDimY, c->blockDimZ},
                         c->sharedMemBytes,
                         c->hStream ? c->hStream : default_stream,
                         params,
                         extra,
                         c->numAttrs > 0 ? wire::Launch::Form::EXTENDED : wire::Launch::Form::PLAIN,
                         c->attrs,
                         c->numAttrs});
}

}  // namespace fargpu::client::hand
