// Decompression by the GPU's engine for it. CUDA Driver API, "Memory Management", cuMemBatchDecompressAsync.

#include <algorithm>
#include <limits>

#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

// An address over its length, as kernels know it.
CUresult reach(Thread& thread, const void* pointer, std::size_t bytes, RemoteCallBase& call, std::uint64_t& address) {
  address = reinterpret_cast<std::uint64_t>(pointer);
  if (!session_of(thread).map.usable(address, std::max<std::size_t>(bytes, 1))) return CUDA_ERROR_INVALID_VALUE;
  return session_of(thread).host_memory.reach(thread, address, call);
}

CUresult write_item(Thread& thread, const CUmemDecompressParams& item, RemoteCallBase& call,
                    wire::Decompress::Item::Builder out) {
  const auto is_zero = [](unsigned char byte) { return byte == 0; };
  if (!std::all_of(std::begin(item.padding), std::end(item.padding), is_zero) || item.srcNumBytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t source = 0, target = 0, written = 0;
  if (const CUresult bad = reach(thread, item.src, item.srcNumBytes, call, source); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = reach(thread, item.dst, item.dstNumBytes, call, target); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = reach(thread, item.dstActBytes, sizeof(cuuint32_t), call, written); bad != CUDA_SUCCESS)
    return bad;
  out.setSource(source);
  out.setSourceBytes(item.srcNumBytes);
  out.setTarget(target);
  out.setTargetBytes(item.dstNumBytes);
  out.setWritten(written);
  out.setAlgorithm(item.algo);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemBatchDecompressAsync(Thread& thread, CUmemDecompressParams* list, std::size_t count, unsigned flags,
                                   std::size_t* failed, CUstream stream) {
  const auto fail = [&](std::size_t item, CUresult result) {
    if (failed) *failed = item;
    return result;
  };
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  if (!list || count == 0 || count > limits::array_elements_max || flags != 0)
    return fail(none, CUDA_ERROR_INVALID_VALUE);
  const StreamUse use(thread, stream);
  if (!use) return fail(none, use.error());
  if (use->capture.load()) return fail(none, refuse_use("capturing a batch decompression"));
  RemoteCall<wire::Decompress> call(thread, use->context);
  call.in().setStream(use.wire());
  auto items = call.in().initItems(static_cast<unsigned>(count));
  for (std::size_t i = 0; i < count; ++i)
    if (const CUresult bad = write_item(thread, list[i], call, items[static_cast<unsigned>(i)]); bad != CUDA_SUCCESS)
      return fail(i, bad);
  if (session_of(thread).waits.for_host()) return call.post(use);  // what must come first may be this thread's to do
  const CUresult result = call.wait(use);
  return result == CUDA_SUCCESS ? result : fail(call.out().getFailed() - 1, result);  // 0 becomes `none`
}

}  // namespace fargpu::client::hand
