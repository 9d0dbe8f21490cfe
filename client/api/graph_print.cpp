// Printing graphs. CUDA Driver API, "Graph Management", cuGraphDebugDotPrint.

#include <algorithm>
#include <cstdio>
#include <memory>

#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"
#include "protocol/errors.h"

namespace fargpu::client::hand {
namespace {

// The text of a graph of some hundred thousand nodes, with all that is known of them.
constexpr std::uint64_t text_bytes_max = 256u << 20;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

// What a part brings goes to the file before the next is asked for, so that however long a text the worker has, memory
// holds one part. All parts but the last are as long as one can be: nobody is asked more often than that takes.
CUresult cuGraphDebugDotPrint(Thread& thread, CUgraph graph, const char* path, unsigned flags) {
  if (!path || !handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  std::unique_ptr<std::FILE, Close> file;
  for (std::uint64_t printed = 0, bytes = 1; printed < bytes;) {
    RemoteCall<wire::PrintGraph> call(thread);
    auto in = call.in();
    in.setGraph(handle_of(graph).value());
    in.setFlags(flags);
    in.setOffset(printed);
    if (const CUresult result = call.wait(); result != CUDA_SUCCESS) return result;
    const auto out = call.out();
    const auto part = out.getText().asChars();
    bytes = out.getBytes();
    if (bytes > text_bytes_max) throw ProtocolError("the worker printed more of a graph than there can be");
    if (part.size() != std::min<std::uint64_t>(bytes - std::min(printed, bytes), limits::bulk_bytes_max))
      throw ProtocolError("the worker sent another part of a graph's text than was asked for");
    if (!file) file.reset(std::fopen(path, "we"));
    if (!file || std::fwrite(part.begin(), 1, part.size(), file.get()) != part.size())
      return CUDA_ERROR_OPERATING_SYSTEM;
    printed += part.size();
  }
  return std::fclose(file.release()) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace fargpu::client::hand
