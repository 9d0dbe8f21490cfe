#pragma once
// The order in which a session loads libraries: sessions of one program load the same ones in the same order, so that
// each can be loaded before it is asked for.

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

  /// A load that is answered before it is asked for.
  struct Ahead {
    ImageHash image;
    Request request;
    bool prints = false;
  };

  /// The program loads an image as a library.
  void begins(const ImageHash& image) { seen_.insert(image); }
  /// It is loaded, by this request; later sessions that load the one before it will load this one next.
  void loaded(const ImageHash& image, std::span<const std::byte> request);
  /// Which requests earlier sessions made after they had loaded this image: a few, each once in a session, and none for
  /// what the program has begun to load. There are more when these have been answered, or given up.
  std::vector<Request> next_after(const ImageHash& image);
  void answered_ahead(Handle library, Ahead ahead) { ahead_[library.value()] = std::move(ahead); }
  void all_answered() { coming_ = false; }
  /// The program has come to load it, and it is loaded. Nothing if it is no such library.
  std::optional<Ahead> take(Handle library);

 private:
  ImageStore& images_;
  std::optional<ImageHash> last_;
  std::set<ImageHash> seen_;
  bool coming_ = false;                   // answers ahead
  std::map<std::uint64_t, Ahead> ahead_;  // by library, what the program has not come to load
};

}  // namespace fargpu::server
