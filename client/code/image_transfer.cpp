#include "image_transfer.h"

#include <algorithm>

#include "client/base/log.h"
#include "operations.capnp.h"
#include "protocol/data.h"

namespace fargpu::client {

void send_image(Thread& thread, const ImageHash& hash, std::span<const std::byte> bytes) {
  log::debug("sending an image of {} bytes", bytes.size());
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::size_t part = std::min(bytes.size() - offset, limits::bulk_bytes_max);
    RemoteCall<wire::SendImage> call(thread);
    auto in = call.in();
    in.setHash(data_of(hash));
    in.setBytes(bytes.size());
    in.setOffset(offset);
    call.bulk(bytes.subspan(offset, part));
    call.tell();
    offset += part;
  }
}

}  // namespace fargpu::client
