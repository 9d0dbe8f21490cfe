// Printing graphs. CUDA Driver API, "Graph Management", cuGraphDebugDotPrint.

#include <cstdio>
#include <memory>

#include "client/entry.h"
#include "client/remote_call.h"
#include "client/session.h"
#include "client_hand.h"
#include "operations.capnp.h"
#include "protocol/errors.h"

namespace fargpu::client::hand {

CUresult cuGraphDebugDotPrint(Thread& thread, CUgraph graph, const char* path, unsigned flags) {
  if (!path || !handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  for (std::uint64_t bytes = 1; text.size() < bytes;) {
    RemoteCall<wire::PrintGraph> call(thread, Opcode::printGraph, ContextNeed::optional);
    if (!call) return call.error();
    auto in = call.in();
    in.setGraph(handle_of(graph).value());
    in.setFlags(flags);
    in.setOffset(text.size());
    if (const CUresult result = call.wait(); result != CUDA_SUCCESS) return result;
    const auto out = call.out<wire::PrintGraphReply>();
    const auto part = out.getText().asChars();
    bytes = out.getBytes();
    if (part.size() == 0) break;
    if (bytes > limits::image_bytes_max) throw ProtocolError("the worker printed more of a graph than there is of any image");
    text.append(part.begin(), part.size());
  }
  std::FILE* const file = std::fopen(path, "we");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace fargpu::client::hand
