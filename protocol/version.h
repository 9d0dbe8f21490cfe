#pragma once
// Which versions of the protocol two sides can use with each other.

#include <cstdint>
#include <optional>
#include <string>

namespace fargpu {

/// The versions that one side speaks.
struct Versions {
  std::uint32_t oldest = 0;
  std::uint32_t newest = 0;
};

/// Those of this build.
extern const Versions our_versions;
/// The release of fargpu that this build is of, for example "0.2.0".
extern const char* const our_release;

/// Each binary of fargpu has its release in an ELF note as well, by which others know it without running it.
inline constexpr char release_note_owner[] = "fargpu";
inline constexpr std::uint32_t release_note_type = 1;

/// The newest version that both sides speak; nothing if there is none.
std::optional<std::uint32_t> common_version(const Versions& ours, const Versions& theirs);

/// Whether a peer that offered our_versions may answer with this version.
bool speaks(std::uint32_t version);

/// One side of a connection, as messages name it.
struct Side {
  std::string name;     ///< "this host", "the client", or an address
  std::string release;  ///< of its fargpu; empty: not known
  Versions versions;
};

/// Which side is older and what to do, for two sides that have no version in common.
std::string versions_apart(const Side& host, const Side& client);

/// What a message says of the versions its sender speaks. Senders of before 0.2.0 name one version; some of their
/// messages have other data where oldestProtocol is now.
template <class Message>
Versions versions_of(const Message& message) {
  const std::uint32_t newest = message.getProtocolVersion(), oldest = message.getOldestProtocol();
  return {oldest == 0 || oldest > newest ? newest : oldest, newest};
}

template <class Message>
void write_versions(Message message) {
  message.setOldestProtocol(our_versions.oldest);
  message.setProtocolVersion(our_versions.newest);
}

}  // namespace fargpu
