#pragma once
// Functions of which each serves several calls that differ in their arguments only. The spec says with which arguments
// ([forms]).

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/copy/program_copy.h"
#include "node_params.h"
#include "protocol/handle.h"

namespace fargpu::client::hand {

/// stream_memory.cpp: a wait for a value or a write of one. The operation's type says how wide the value is.
CUresult stream_operation(Thread& thread, CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
                          std::uint64_t value, unsigned flags);
/// stream_memory.cpp: as stream_operation, where the device offers the first version of these calls.
CUresult stream_operation_v1(Thread& thread, CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
                             std::uint64_t value, unsigned flags);

/// capture.cpp: all that can be asked of a capture. Status and id are known; graph and dependencies are asked for only
/// when wanted.
CUresult capture_info(Thread& thread, CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count);

/// legacy_launch.cpp: a piece of the parameters with which the next launch of the function is made.
CUresult set_parameter(Thread& thread, CUfunction function, int offset, const void* bytes, std::size_t count);
/// legacy_launch.cpp: a launch with block shape and parameters as they were set.
CUresult launch_legacy(Thread& thread, CUfunction function, int width, int height, CUstream stream);

/// virtual_memory.cpp: a copy that the program has been told is done may be on its way yet. When this returns it is
/// done.
CUresult finish_copies(Thread& thread);

/// What the program wants of a node; nothing where it gives a null pointer, which is refused.
using NodeWish = std::optional<CUgraphNodeParams>;

/// graph_node.cpp: a node behind others.
CUresult add_node(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                  NodeWish node);
/// graph_node.cpp: new parameters of a node in its graph, or in an executable one.
CUresult set_node(Thread& thread, CUgraphNode node, const NodeWish& wish);
CUresult set_in_exec(Thread& thread, CUgraphExec exec, CUgraphNode node, const NodeWish& wish);

/// copy.cpp: a copy as described.
CUresult run_copy(Thread& thread, CUstream stream, const Copy& copy);
/// copy.cpp: a copy of the calls that CUDA calls synchronous. Between device memory they do not wait either. Its
/// struct, or its two sides, say what is copied.
inline CUresult copy_now(Thread& thread, const CopySide& target, const CopySide& source, std::size_t bytes,
                         CUstream stream) {
  return run_copy(thread, stream, {.shape = {bytes}, .target = target, .source = source, .done_on_return = true});
}
CUresult copy_now(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream stream);
CUresult copy_now(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream stream);
/// copy.cpp: a copy on a stream.
inline CUresult copy_async(Thread& thread, const CopySide& target, const CopySide& source, std::size_t bytes,
                           CUstream stream) {
  return run_copy(thread, stream, {.shape = {bytes}, .target = target, .source = source});
}
CUresult copy_async(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream stream);
CUresult copy_async(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream stream);

// --- arguments ------------------------------------------------------------------------------------------------------

/// Where a CUdevice of the older calls stands for a place: CU_DEVICE_CPU is the host.
CUmemLocation location_of(CUdevice device);

/// Parameters of a node in the struct of its kind, of older calls with the context.
template <class Params, class... Context>
NodeWish node_of(const Params* params, Context... context) {
  return params ? NodeWish(node_params(*params, context...)) : std::nullopt;
}
inline NodeWish node_of(const CUgraphNodeParams* params) { return params ? NodeWish(*params) : std::nullopt; }

/// Sides of copies: memory of the program or of a device, as its address says; device memory; one row of an array.
inline CopySide in_memory(std::uint64_t address) { return {.kind = CopySide::Kind::unified, .place = address}; }
inline CopySide in_memory(const void* host) { return in_memory(reinterpret_cast<std::uint64_t>(host)); }
inline CopySide on_device(CUdeviceptr address) { return {.kind = CopySide::Kind::device, .place = address}; }
inline CopySide in_array(CUarray array, std::size_t offset) {
  return {.kind = CopySide::Kind::array, .place = handle_of(array).value(), .x = offset};
}

inline CUfunction function_of(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

}  // namespace fargpu::client::hand
