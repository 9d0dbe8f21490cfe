#pragma once
// The order in which a session loads libraries: sessions of one program load the same ones in the same order, so that each can be loaded
// before it is asked for.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "image_store.h"
#include "protocol/handle.h"

namespace fargpu::server {

/// Used by the executor only.
class LoadOrder {
 public:
  using Request = std::vector<std::byte>;  ///< message of a loadImage

  explicit LoadOrder(ImageStore& images) : images_(images) {}

  /// The program has loaded an image as a library, by this request; later sessions that load the one before it will load this one next.
  void loaded(const ImageHash& image, std::span<const std::byte> request);
  /// Which requests earlier sessions made after they had loaded this image: a few, and none for what this session has loaded.
  std::vector<Request> next_after(const ImageHash& image);
  /// One of these was answered ahead, by this library.
  void answered_ahead(Handle library, const ImageHash& image, Request request);
  /// The program has come to load it. False if it is no such library.
  bool take(Handle library);

 private:
  struct Ahead {
    ImageHash image;
    Request request;
  };
  ImageStore& images_;
  std::optional<ImageHash> last_;
  std::set<ImageHash> seen_;
  std::map<std::uint64_t, Ahead> ahead_;  // by library, what the program has not come to load
};

}  // namespace fargpu::server
