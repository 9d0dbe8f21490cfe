// Memory of graphs. CUDA Driver API, "Graph Management", "Stream Ordered Memory Allocator".

#include "client/memory/graph_memory.h"

#include <cstring>

#include "client/session/entry.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "node_params.h"

namespace fargpu::client::hand {
namespace {

std::shared_ptr<MemoryPool> pool_of(Thread& thread, CUdevice device) {
  Session& session = session_of(thread);
  return session.terms.facts.has(device) ? session.device_memory.pools().graph_of(device) : nullptr;
}

}  // namespace

CUresult cuGraphAddMemAllocNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams node;
  std::memset(&node, 0, sizeof(node));
  node.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  node.alloc.poolProps = params->poolProps;
  node.alloc.accessDescs = params->accessDescs;
  node.alloc.accessDescCount = params->accessDescCount;
  node.alloc.bytesize = params->bytesize;
  const CUresult result = cuGraphAddNode_v2(thread, out, graph, dependencies, nullptr, count, &node);
  if (result == CUDA_SUCCESS) params->dptr = node.alloc.dptr;
  return result;
}

CUresult cuGraphMemAllocNodeGetParams(Thread& thread, CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params, [&](auto in) {
    const auto allocation = in.getAllocation();
    const auto region = session_of(thread).map.find(allocation.getAddress());
    std::memset(params, 0, sizeof(*params));
    params->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params->poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = region ? region->device : 0};
    params->bytesize = allocation.getBytes();
    params->dptr = allocation.getAddress();
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemFreeNodeGetParams(Thread& thread, CUgraphNode node, CUdeviceptr* address) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_MEM_FREE, address, [&](auto in) {
    *address = in.getFree();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetGraphMemAttribute(Thread& thread, CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const auto pool = pool_of(thread, device);
  if (!pool) return CUDA_ERROR_INVALID_DEVICE;
  const PoolUsage usage = session_of(thread).device_memory.usage(*pool);
  cuuint64_t number;
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: number = usage.used; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: number = usage.used_high; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: number = usage.reserved; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: number = usage.reserved_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(value, &number, sizeof(number));
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(Thread& thread, CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const auto pool = pool_of(thread, device);
  if (!pool) return CUDA_ERROR_INVALID_DEVICE;
  cuuint64_t number;
  std::memcpy(&number, value, sizeof(number));
  const bool reserved = attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (!reserved && attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  if (number != 0) return CUDA_ERROR_INVALID_VALUE;  // it can only be reset
  session_of(thread).device_memory.reset_high(*pool, reserved);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(Thread& thread, CUdevice device) {
  const auto pool = pool_of(thread, device);
  if (!pool) return CUDA_ERROR_INVALID_DEVICE;
  session_of(thread).device_memory.trim(thread, *pool, 0);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
