#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <cstring>

#include "driver/context.h"
#include "driver/graph.h"
#include "driver/green_context.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

/// Priorities beyond the range count as its ends. They are hints, and change nothing here.
int within_range(int priority) { return std::min(std::max(priority, stream_priority_greatest), stream_priority_least); }

CUresult create_stream(CUstream* result, unsigned flags, int priority) {
  return entry([&] {
    require(result != nullptr && (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) == 0);
    auto context = current_context();
    context->check();
    *result = reinterpret_cast<CUstream>(context->create_stream(flags, within_range(priority)).get());
  });
}

std::shared_ptr<Stream> usable_stream(CUstream handle, bool per_thread) {
  auto stream = find_stream(handle, per_thread);
  stream->context()->check();
  return stream;
}

CUresult query(CUstream handle, bool per_thread) {
  return entry([&] {
    auto stream = usable_stream(handle, per_thread);
    refuse_if_captured(*stream);
    refuse_while_capturing();
    if (!stream->is_idle()) return CUDA_ERROR_NOT_READY;
    stream->context()->check();
    return CUDA_SUCCESS;
  });
}

CUresult synchronize(CUstream handle, bool per_thread) {
  return entry([&] {
    auto stream = usable_stream(handle, per_thread);
    refuse_if_captured(*stream);
    refuse_while_capturing();
    stream->synchronize();
  });
}

template <class T, class Get>
CUresult get_fact(CUstream handle, bool per_thread, T* out, Get get) {
  return entry([&] {
    require(out != nullptr);
    *out = get(*find_stream(handle, per_thread));
  });
}

}  // namespace

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) { return create_stream(stream, flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create_stream(stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return entry([&] {
    auto stream = StreamTable::instance().get(handle);
    abandon_capture(stream);
    StreamTable::instance().remove(handle);
    stream->context()->destroy_stream(stream);
  });
}
CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

CUresult cuStreamQuery(CUstream stream) { return query(stream, false); }
CUresult cuStreamQuery_ptsz(CUstream stream) { return query(stream, true); }
CUresult cuStreamSynchronize(CUstream stream) { return synchronize(stream, false); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return synchronize(stream, true); }

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return get_fact(stream, false, priority, [](Stream& s) { return s.priority(); });
}
CUresult cuStreamGetPriority_ptsz(CUstream stream, int* priority) {
  return get_fact(stream, true, priority, [](Stream& s) { return s.priority(); });
}
CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  return get_fact(stream, false, flags, [](Stream& s) { return s.flags(); });
}
CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int* flags) {
  return get_fact(stream, true, flags, [](Stream& s) { return s.flags(); });
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return get_fact(stream, false, id, [](Stream& s) { return s.id(); });
}
CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long* id) {
  return get_fact(stream, true, id, [](Stream& s) { return s.id(); });
}
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return get_fact(stream, false, device, [](Stream& s) { return s.context()->device().ordinal(); });
}
CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice* device) {
  return get_fact(stream, true, device, [](Stream& s) { return s.context()->device().ordinal(); });
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  return get_fact(stream, false, context, [](Stream& s) { return s.context()->handle(); });
}
CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext* context) {
  return get_fact(stream, true, context, [](Stream& s) { return s.context()->handle(); });
}
namespace {

CUresult get_contexts(CUstream handle, CUcontext* context, CUgreenCtx* green, bool per_thread) {
  return entry([&] {
    require(context != nullptr);
    auto of = find_stream(handle, per_thread)->context();
    *context = of->home()->handle();
    if (green != nullptr) *green = reinterpret_cast<CUgreenCtx>(green_of(*of).get());
  });
}

}  // namespace

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return get_contexts(stream, context, green, false);
}
CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return get_contexts(stream, context, green, true);
}
CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* green) {
  return get_fact(stream, false, green,
                  [](Stream& s) { return reinterpret_cast<CUgreenCtx>(green_of(*s.context()).get()); });
}

// ---- attributes ----------------------------------------------------------------------------------------------------

namespace {

CUstreamAttrValue* attribute_of(Stream& stream, CUstreamAttrID id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return &stream.access_policy;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: return &stream.synchronization_policy;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return &stream.memory_domain_map;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return &stream.memory_domain;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

CUresult get_attribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value, bool per_thread) {
  return entry([&] {
    require(value != nullptr);
    auto stream = find_stream(handle, per_thread);
    if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
      value->priority = stream->priority();
      return;
    }
    std::lock_guard lock(stream->attributes_mutex);
    *value = *attribute_of(*stream, id);
  });
}

CUresult set_attribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value, bool per_thread) {
  return entry([&] {
    require(value != nullptr);
    auto stream = find_stream(handle, per_thread);
    if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
      stream->set_priority(within_range(value->priority));
      return;
    }
    std::lock_guard lock(stream->attributes_mutex);
    *attribute_of(*stream, id) = *value;
  });
}

CUresult copy_attributes(CUstream to_handle, CUstream from_handle, bool per_thread) {
  return entry([&] {
    auto to = find_stream(to_handle, per_thread), from = find_stream(from_handle, per_thread);
    if (to == from) return;
    std::scoped_lock lock(to->attributes_mutex, from->attributes_mutex);
    to->access_policy = from->access_policy;
    to->synchronization_policy = from->synchronization_policy;
    to->memory_domain_map = from->memory_domain_map;
    to->memory_domain = from->memory_domain;
    to->set_priority(from->priority());
  });
}

}  // namespace

CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID id, CUstreamAttrValue* value) {
  return get_attribute(stream, id, value, false);
}
CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID id, CUstreamAttrValue* value) {
  return get_attribute(stream, id, value, true);
}
CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue* value) {
  return set_attribute(stream, id, value, false);
}
CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue* value) {
  return set_attribute(stream, id, value, true);
}
CUresult cuStreamCopyAttributes(CUstream to, CUstream from) { return copy_attributes(to, from, false); }
CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from) { return copy_attributes(to, from, true); }

// ---- host functions ------------------------------------------------------------------------------------------------

namespace {

CUresult launch_host_function(CUstream handle, CUhostFn function, void* user_data, bool per_thread) {
  return entry([&] {
    require(function != nullptr);
    submit(usable_stream(handle, per_thread), std::make_unique<HostOperation>(function, user_data));
  });
}

/// Unlike a host function, a callback is called after an error, too, and told of it.
CUresult add_callback(CUstream handle, CUstreamCallback callback, void* user_data, unsigned flags, bool per_thread) {
  return entry([&] {
    require(callback != nullptr && flags == 0);
    auto stream = usable_stream(handle, per_thread);
    refuse_if_captured(*stream);
    stream->enqueue(std::make_shared<FunctionTask>(FunctionTask::Place::service,
                                                   [context = stream->context(), handle, callback, user_data] {
                                                     CUresult status = guarded([&] { context->check(); });
                                                     run_host_function([&] { callback(handle, status, user_data); });
                                                   }));
  });
}

}  // namespace

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user_data) {
  return launch_host_function(stream, function, user_data, false);
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* user_data) {
  return launch_host_function(stream, function, user_data, true);
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* user_data, unsigned int flags) {
  return add_callback(stream, callback, user_data, flags, false);
}
CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* user_data, unsigned int flags) {
  return add_callback(stream, callback, user_data, flags, true);
}

// ---- memory operations ---------------------------------------------------------------------------------------------

namespace {

CUresult run_memory_ops(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* ops, unsigned flags,
                        bool per_thread) {
  return entry([&] {
    require(ops != nullptr && count != 0 && count <= 256 && flags == 0);
    auto stream = usable_stream(handle, per_thread);
    submit(stream, std::make_unique<MemoryOpsOperation>(stream->context()->handle(), count, ops, flags));
  });
}

CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, bool is_wide,
                     bool per_thread) {
  CUstreamBatchMemOpParams op = {};
  op.operation = is_wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = address;
  op.writeValue.flags = flags;
  if (is_wide) op.writeValue.value64 = value;
  else op.writeValue.value = static_cast<cuuint32_t>(value);
  return run_memory_ops(stream, 1, &op, 0, per_thread);
}

CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, bool is_wide,
                    bool per_thread) {
  CUstreamBatchMemOpParams op = {};
  op.operation = is_wide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = address;
  op.waitValue.flags = flags;
  if (is_wide) op.waitValue.value64 = value;
  else op.waitValue.value = static_cast<cuuint32_t>(value);
  return run_memory_ops(stream, 1, &op, 0, per_thread);
}

}  // namespace

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return write_value(stream, address, value, flags, false, false);
}
CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return write_value(stream, address, value, flags, false, true);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return write_value(stream, address, value, flags, true, false);
}
CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return write_value(stream, address, value, flags, true, true);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return wait_value(stream, address, value, flags, false, false);
}
CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return wait_value(stream, address, value, flags, false, true);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return wait_value(stream, address, value, flags, true, false);
}
CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return wait_value(stream, address, value, flags, true, true);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* ops, unsigned int flags) {
  return run_memory_ops(stream, count, ops, flags, false);
}
CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* ops,
                                    unsigned int flags) {
  return run_memory_ops(stream, count, ops, flags, true);
}

// ---- capture -------------------------------------------------------------------------------------------------------

namespace {

CUresult begin(CUstream handle, CUstreamCaptureMode mode, bool per_thread) {
  return entry([&] {
    require(mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    begin_capture(usable_stream(handle, per_thread), mode, nullptr, {});
  });
}

CUresult begin_to_graph(CUstream handle, CUgraph graph_handle, const CUgraphNode* dependencies, size_t count,
                        CUstreamCaptureMode mode, bool per_thread) {
  return entry([&] {
    require(mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    auto graph = GraphTable::instance().get(graph_handle, CUDA_ERROR_INVALID_VALUE);
    std::vector<GraphNode*> nodes;
    {
      std::lock_guard lock(graph_mutex());
      nodes = find_nodes(dependencies, count);
    }
    begin_capture(usable_stream(handle, per_thread), mode, std::move(graph), std::move(nodes));
  });
}

CUresult end(CUstream handle, CUgraph* graph, bool per_thread) {
  return entry([&] {
    if (graph != nullptr) *graph = nullptr;
    std::shared_ptr<Graph> captured = end_capture(find_stream(handle, per_thread));
    if (graph == nullptr) return;
    // A graph of the program's own is in the table already.
    if (GraphTable::instance().find(captured->handle()) == nullptr) GraphTable::instance().add(captured);
    *graph = captured->handle();
  });
}

CUresult is_capturing(CUstream handle, CUstreamCaptureStatus* status, bool per_thread) {
  return entry([&] {
    require(status != nullptr);
    auto stream = find_stream(handle, per_thread);
    std::lock_guard lock(graph_mutex());
    if (stream->kind() == Stream::Kind::legacy && stream->context()->has_captured_blocking_stream())
      throw Failure(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = stream->capture == nullptr        ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->is_invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  });
}

struct CaptureInfo {
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  const CUgraphEdgeData** edge_data = nullptr;
  size_t* count = nullptr;
};

CUresult get_info(CUstream handle, CUstreamCaptureStatus* status, const CaptureInfo& info, bool per_thread) {
  CUresult result = is_capturing(handle, status, per_thread);
  if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
  return entry([&] {
    auto stream = find_stream(handle, per_thread);
    std::lock_guard lock(graph_mutex());
    require(stream->capture != nullptr, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (info.id != nullptr) *info.id = stream->capture->id;
    if (info.graph != nullptr) {
      // So that the handle can be used while the capture goes on.
      auto graph = stream->capture->graph;
      if (GraphTable::instance().find(graph->handle()) == nullptr) GraphTable::instance().add(graph);
      *info.graph = graph->handle();
    }
    // Nodes are their own handles; the arrays live until the next change of the capture.
    static_assert(sizeof(GraphNode*) == sizeof(CUgraphNode));
    auto& dependencies = stream->capture_dependencies;
    if (info.dependencies != nullptr) *info.dependencies = reinterpret_cast<const CUgraphNode*>(dependencies.data());
    if (info.count != nullptr) *info.count = dependencies.size();
    if (info.edge_data != nullptr) {
      thread_local std::vector<CUgraphEdgeData> plain_edges;
      plain_edges.assign(dependencies.size(), {});
      *info.edge_data = plain_edges.data();
    }
  });
}

CUresult update_dependencies(CUstream handle, const CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count,
                             unsigned flags, bool per_thread) {
  return entry([&] {
    require(flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES || flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    auto stream = find_stream(handle, per_thread);
    std::lock_guard lock(graph_mutex());
    require(stream->capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
    std::vector<GraphNode*> nodes = find_nodes(dependencies, count);
    for (GraphNode* node : nodes) require(&node->graph() == stream->capture->graph.get());
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
      auto& let_go = stream->capture->let_go;
      let_go.insert(let_go.end(), stream->capture_dependencies.begin(), stream->capture_dependencies.end());
      stream->capture_dependencies.clear();
    }
    for (GraphNode* node : nodes)
      if (std::find(stream->capture_dependencies.begin(), stream->capture_dependencies.end(), node) ==
          stream->capture_dependencies.end())
        stream->capture_dependencies.push_back(node);
  });
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream stream) { return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, false); }
CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, true); }
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) { return begin(stream, mode, false); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) { return begin(stream, mode, true); }
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData*, size_t count, CUstreamCaptureMode mode) {
  return begin_to_graph(stream, graph, dependencies, count, mode, false);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData*, size_t count, CUstreamCaptureMode mode) {
  return begin_to_graph(stream, graph, dependencies, count, mode, true);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) { return end(stream, graph, false); }
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) { return end(stream, graph, true); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return is_capturing(stream, status, false);
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return is_capturing(stream, status, true);
}
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return get_info(stream, status, {.id = id}, false);
}
CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return get_info(stream, status, {.id = id}, true);
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count) {
  return get_info(stream, status, {.id = id, .graph = graph, .dependencies = dependencies, .count = count}, false);
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies, size_t* count) {
  return get_info(stream, status, {.id = id, .graph = graph, .dependencies = dependencies, .count = count}, true);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, const CUgraphEdgeData** edge_data, size_t* count) {
  return get_info(stream, status, {id, graph, dependencies, edge_data, count}, false);
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies, const CUgraphEdgeData** edge_data,
                                        size_t* count) {
  return get_info(stream, status, {id, graph, dependencies, edge_data, count}, true);
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* dependencies, size_t count,
                                           unsigned int flags) {
  return update_dependencies(stream, dependencies, nullptr, count, flags, false);
}
CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode* dependencies, size_t count,
                                                unsigned int flags) {
  return update_dependencies(stream, dependencies, nullptr, count, flags, true);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData* edge_data, size_t count, unsigned int flags) {
  return update_dependencies(stream, dependencies, edge_data, count, flags, false);
}
CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode* dependencies,
                                                   const CUgraphEdgeData* edge_data, size_t count, unsigned int flags) {
  return update_dependencies(stream, dependencies, edge_data, count, flags, true);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return entry([&] {
    require(mode != nullptr);
    require(*mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    *mode = exchange_capture_mode(*mode);
  });
}
