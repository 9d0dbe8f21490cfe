#pragma once
// What a broker leaves for the host's next one, in the runtime folder: doors of its workers, and a key.
//
// Each worker has a door, a Unix socket there. With its session a worker gets a record of it, sealed by the key. When
// the broker is gone, however it ended, the next one knocks at all doors: workers with a session give the record back,
// and tell what has come since.

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "server/exchange.h"

namespace fargpu::server {

/// Used by the broker's one thread.
class Succession {
 public:
  /// Takes the folder, which is made if it is missing, for this process alone. Empty: nothing is left. Throws
  /// SettingsError.
  explicit Succession(std::string folder);
  /// What it means for a session, for the log.
  static constexpr const char* left_alone =
      "it goes on until its program ends, and what it has of the devices is counted nowhere; to end it, end the "
      "process";

  /// Whether there is a folder.
  bool possible() const { return !folder_.empty(); }

  struct Door {
    Descriptor socket;  ///< bound; for a worker to listen at
    std::string path;
  };
  /// Without a folder neither. Throws SystemError.
  Door make_door() const;

  /// A record as a worker may keep it. Throws SystemError.
  std::vector<std::byte> seal(std::span<const std::byte> record) const;
  /// What was sealed; empty if that was not by this host's brokers.
  std::span<const std::byte> unseal(std::span<const std::byte> sealed) const;

  struct Message {
    std::vector<std::byte> bytes;
    Descriptor descriptor;  ///< that came with it, if one did
  };
  /// A worker that has told all.
  struct Found {
    pid_t process = -1;
    Descriptor link, exit;  ///< to it, and its process (pidfd_open)
    std::string door;
    std::vector<Message> told;  ///< the first `kept`, the last `recounted`
    std::size_t told_bytes = 0, told_descriptors = 0;
  };
  /// Knocks at all doors that earlier brokers have left, for a few seconds, and removes those that nobody is behind.
  /// What does not answer in good order is left alone, with a line in the log.
  std::vector<Found> find() const;
  /// A name for the host that its next brokers have too, and no other host: a random one without a folder. Throws
  /// SettingsError.
  std::string host_identity() const;
  /// How many of these doors are still there: of sessions that go on, with this broker or without one.
  std::size_t doors_left() const;

 private:
  std::list<Found> knock() const;

  std::filesystem::path folder_;
  Descriptor lock_;  // of the key's file
  std::vector<std::byte> key_;
  std::vector<std::filesystem::path> doors_;  // that were there before
};

}  // namespace fargpu::server
