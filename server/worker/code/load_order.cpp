#include "load_order.h"

#include <cstring>

#include "operations.capnp.h"
#include "protocol/limits.h"
#include "protocol/message.h"

namespace fargpu::server {
namespace {

constexpr std::size_t hops_max = 64;

// What a file says is a hint, and may be anything.
std::optional<ImageHash> image_in(std::span<const std::byte> request) {
  try {
    MessageReader reader(request);
    const auto hash = reader.root<wire::LoadImage>().getHash();
    ImageHash image;
    if (hash.size() != image.size()) return std::nullopt;
    std::memcpy(image.data(), hash.begin(), hash.size());
    return image;
  } catch (const kj::Exception&) {
    return std::nullopt;
  }
}

}  // namespace

void LoadOrder::loaded(const ImageHash& image, std::span<const std::byte> request) {
  if (last_ && *last_ != image) images_.note_next_load(*last_, request);
  last_ = image;
}

std::vector<LoadOrder::Request> LoadOrder::next_after(const ImageHash& image) {
  std::vector<Request> found;
  if (coming_) return found;
  std::set<ImageHash> passed{image};
  ImageHash at = image;
  while (passed.size() < hops_max && found.size() < limits::ahead_loads_max &&
         ahead_.size() + found.size() < limits::ahead_waiting_max) {
    const Request& request = images_.next_load(at);
    const auto next = image_in(request);
    if (!next || !passed.insert(*next).second) break;
    if (seen_.insert(*next).second) found.push_back(request);
    at = *next;
  }
  coming_ = !found.empty();
  return found;
}

std::optional<LoadOrder::Ahead> LoadOrder::take(Handle library) {
  const auto found = ahead_.find(library.value());
  if (found == ahead_.end()) return std::nullopt;
  Ahead taken = std::move(found->second);
  ahead_.erase(found);
  loaded(taken.image, taken.request);
  return taken;
}

}  // namespace fargpu::server
