#pragma once
// Images travel by their hash; their bytes go only to a host that lacks them.

#include <cuda.h>

#include <span>

#include "protocol/image_hash.h"
#include "client/call/remote_call.h"

namespace fargpu::client {

void send_image(Thread& thread, const ImageHash& hash, std::span<const std::byte> bytes);

/// Whether hosts may answer a call before it is made.
enum class AnsweredAhead { never, maybe };

/// Makes a call that names an image, once, or once more after the bytes were sent: `fill(in, hash)` writes the request.
/// The reply says whether the host knows the image; `settle(call, result, ahead)` gets the call whose reply says that
/// it does, or that failed, and whether that came ahead. Its value is the outcome.
template <class Request, class Fill, class Settle>
CUresult call_with_image(Thread& thread, ContextNeed need, std::span<const std::byte> bytes, AnsweredAhead answered,
                         Fill&& fill, Settle&& settle) {
  const ImageHash hash = hash_image(bytes);
  for (bool sent = false;; sent = true) {
    RemoteCall<Request> call(thread, need);
    if (!call) return call.error();
    if (const CUresult bad =
            fill(call.in(), capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
        bad != CUDA_SUCCESS)
      return bad;
    if (const CUresult refused = call.refusal(); refused != CUDA_SUCCESS) return refused;
    const bool ahead = answered == AnsweredAhead::maybe && call.take_ahead();
    const CUresult result = ahead ? CUDA_SUCCESS : call.wait_with_room();  // code lies on the device
    const auto out = call.out();
    if (result != CUDA_SUCCESS || out.getKnown()) return settle(call, result, ahead);
    if (sent) throw ProtocolError("the worker asked twice for an image");
    send_image(thread, hash, bytes);
  }
}

}  // namespace fargpu::client
