#pragma once
// GPU code by content: what any session of the host has sent need not be sent again.

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/image_hash.h"
#include "server/hashed_files.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

constexpr std::size_t image_end_bytes = 1;          ///< of the null behind each image
constexpr std::uint64_t folder_images_max = 16384;  ///< in a folder, whatever bytes they have

/// Images lie as files named by their hash in a folder that all workers of the host share; without a folder they are
/// kept for this session only. Bytes are trusted only after their hash was checked, on writing and on reading. Used by
/// the executor only.
class ImageStore {
 public:
  /// Above `bytes_max` bytes or `folder_images_max` images the files used longest ago go, a tenth of the folder at a
  /// time, so that looking at all of them is rare. What is in memory counts in `budget`.
  ImageStore(std::filesystem::path folder, std::uint64_t bytes_max, HostBudget& budget);

  /// The image, or empty if the host lacks it. It stays in memory while it is held, and after that until its room is
  /// wanted for another one. Behind it lies a null, at which the driver stops reading text.
  std::span<const std::byte> find(const ImageHash& hash, std::size_t bytes);
  /// Holds an image that was found, for as long as this lives; null if none was.
  std::shared_ptr<const void> hold(const ImageHash& hash) const;
  /// How many the folder has not taken: later sessions send those again.
  std::uint64_t not_kept() const { return not_kept_; }

  /// One that was found; empty if none was.
  std::span<const std::byte> found(const ImageHash& hash) const;
  /// Takes the next part of an image that is being sent, by several threads perhaps, each from its beginning. It is
  /// refused if it does not fit what came before, or if the whole has another hash, and then dropped, as it is where
  /// there is no room.
  enum class Received { taken, refused, no_room };
  Received receive(const ImageHash& hash, std::size_t bytes, std::size_t offset, std::span<const std::byte> part);

  /// Names of kernels that sessions have looked for in this image and found, the first so many:
  /// a session that loads it will want them. They are no
  /// more than a hint, since any session may have left them.
  const std::vector<std::string>& names_found(const ImageHash& hash);
  void note_found(const ImageHash& hash, const std::string& name);

  /// The message by which a session, the last that did, asked to load an image after this one. A hint as well. Empty:
  /// none did.
  const std::vector<std::byte>& next_load(const ImageHash& hash);
  void note_next_load(const ImageHash& hash, std::span<const std::byte> request);

 private:
  std::filesystem::path note_of(const ImageHash& hash, const char* suffix) const;

  const HashedFiles files_;
  HostBudget& budget_;
  struct Mapped {
    Mapped(const std::byte* mapped, std::size_t size, HostCharge taken)
        : data(mapped), bytes(size), charge(std::move(taken)) {}
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    ~Mapped();

    const std::byte* const data;
    const std::size_t bytes;
    const HostCharge charge;
    bool was_found = false;  // until then nobody could hold it
  };
  struct Arriving {
    std::vector<std::byte> bytes;
    HostCharge charge;
  };
  std::optional<HostCharge> take_room(std::uint64_t bytes);
  Mapped* map(const ImageHash& hash, std::span<const std::byte> bytes, HostCharge charge);
  std::uint64_t not_kept_ = 0;
  std::map<ImageHash, std::shared_ptr<Mapped>> mapped_;
  std::map<ImageHash, Arriving> arriving_;
  // Of images that were asked about.
  std::map<ImageHash, std::vector<std::string>> found_;
  std::map<ImageHash, std::vector<std::byte>> next_;
};

}  // namespace fargpu::server
