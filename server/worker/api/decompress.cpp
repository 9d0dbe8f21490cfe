// Decompression by the GPU's engine for it.

#include <algorithm>
#include <limits>

#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {

Outcome decompress(Session& session, Call& call, wire::Decompress::Reader in, StreamState& stream) {
  auto out = call.out<wire::DecompressReply>();
  const auto items = in.getItems();
  std::vector<CUmemDecompressParams> list(list_size(items.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const auto from = items[i];
    const DeviceMemory& memory = session.memory();
    const std::uint64_t target_bytes = std::max<std::uint64_t>(from.getTargetBytes(), 1);
    if (from.getSourceBytes() == 0 || !memory.holds(from.getSource(), from.getSourceBytes()) ||
        !memory.holds(from.getTarget(), target_bytes) || !memory.holds(from.getWritten(), sizeof(cuuint32_t))) {
      out.setFailed(i + 1);
      return CUDA_ERROR_INVALID_VALUE;
    }
    list[i] = {.srcNumBytes = from.getSourceBytes(),
               .dstNumBytes = from.getTargetBytes(),
               .dstActBytes = reinterpret_cast<cuuint32_t*>(from.getWritten()),
               .src = reinterpret_cast<const void*>(from.getSource()),
               .dst = reinterpret_cast<void*>(from.getTarget()),
               .algo = static_cast<CUmemDecompressAlgorithm>(from.getAlgorithm()),
               .padding = {}};
  }
  std::size_t failed = std::numeric_limits<std::size_t>::max();
  const CUresult result = session.driver().cuMemBatchDecompressAsync(list.data(), list.size(), 0, &failed, stream.cuda);
  if (result == CUDA_SUCCESS) session.ordering().submitted(stream);
  else if (failed < list.size()) out.setFailed(failed + 1);
  return result;
}

}  // namespace fargpu::server::hand
