#include "shared_handle.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace fargpu::client {
namespace {

struct Layout {
  char mark[8];
  std::uint32_t kind;
  std::uint32_t zero;
  ShareKey key;
  std::uint64_t bytes;
  std::uint64_t offset;
  std::uint64_t length;
  std::uint64_t unused;
};
static_assert(sizeof(Layout) == SharedHandle::wire_bytes);

constexpr char mark[8] = {'f', 'a', 'r', 'g', 'p', 'u', 0, 1};

}  // namespace

SharedHandle::Bytes SharedHandle::encode() const {
  Layout layout{{}, static_cast<std::uint32_t>(kind), 0, key, bytes, offset, length, 0};
  std::memcpy(layout.mark, mark, sizeof(mark));
  Bytes result;
  std::memcpy(result.data(), &layout, sizeof(layout));
  return result;
}

std::optional<SharedHandle> SharedHandle::decode(std::span<const std::byte, wire_bytes> from, Kind kind) {
  Layout layout;
  std::memcpy(&layout, from.data(), sizeof(layout));
  if (std::memcmp(layout.mark, mark, sizeof(mark)) != 0 || layout.kind != static_cast<std::uint32_t>(kind))
    return std::nullopt;
  if (kind == Kind::memory && layout.length == 0) return std::nullopt;
  if (layout.offset > layout.bytes || layout.length > layout.bytes - layout.offset) return std::nullopt;
  return SharedHandle{kind, layout.key, layout.bytes, layout.offset, layout.length};
}

int SharedHandle::to_file() const {
  const int descriptor = ::memfd_create("fargpu-allocation", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return -1;
  const Bytes content = encode();
  if (::write(descriptor, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    ::close(descriptor);
    return -1;
  }
  return descriptor;
}

std::optional<SharedHandle> SharedHandle::from_file(int descriptor, Kind kind) {
  Bytes content;
  if (::pread(descriptor, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
    return std::nullopt;
  return decode(content, kind);
}

}  // namespace fargpu::client
