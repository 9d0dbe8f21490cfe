#pragma once
// Images travel by their hash; their bytes go only to a host that lacks them.

#include <cuda.h>

#include <span>

#include "protocol/data.h"
#include "protocol/image_hash.h"
#include "client/call/remote_call.h"

namespace fargpu::client {

void send_image(Thread& thread, const ImageHash& hash, std::span<const std::byte> bytes);

/// Whether hosts may answer a call before it is made.
enum class AnsweredAhead { never, maybe };

/// How often the bytes are sent at most: the host may have given them up again, for those of another thread.
constexpr unsigned image_sends_max = 4;

/// Makes a call that names an image, once, or again after the bytes were sent: `fill(in, hash)` writes the request. The
/// reply says whether the host knows the image; `settle(call, result, ahead)` gets the call whose reply says that
/// it does, or that failed, and whether that came ahead. Its value is the outcome.
template <class Request, class Fill, class Settle>
CUresult call_with_image(Thread& thread, ContextNeed need, std::span<const std::byte> bytes, AnsweredAhead answered,
                         Fill&& fill, Settle&& settle) {
  const ImageHash hash = hash_image(bytes);
  for (unsigned sent = 0;; ++sent) {
    RemoteCall<Request> call(thread, need);
    if (!call) return call.error();
    if (const CUresult bad = fill(call.in(), data_of(hash)); bad != CUDA_SUCCESS) return bad;
    if (const CUresult refused = call.refusal(); refused != CUDA_SUCCESS) return refused;
    const bool ahead = answered == AnsweredAhead::maybe && call.take_ahead();
    const CUresult result = ahead ? CUDA_SUCCESS : call.wait_with_room();  // code lies on the device
    const auto out = call.out();
    if (result != CUDA_SUCCESS || out.getKnown()) return settle(call, result, ahead);
    // Why the host has not kept them it has said by now.
    if (const CUresult late = sent ? thread.take_late_error() : CUDA_SUCCESS; late != CUDA_SUCCESS) return late;
    if (sent == image_sends_max) return CUDA_ERROR_OUT_OF_MEMORY;
    send_image(thread, hash, bytes);
  }
}

}  // namespace fargpu::client
