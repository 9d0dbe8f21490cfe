#include "version.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control.capnp.h"

namespace fargpu {
namespace {

std::string text_of(const Versions& versions) {
  return versions.oldest == versions.newest ? fmt::format("{}", versions.newest)
                                            : fmt::format("{} to {}", versions.oldest, versions.newest);
}

struct ReleaseNote {
  std::uint32_t owner_bytes, text_bytes, type;
  alignas(4) char owner[sizeof(release_note_owner)];
  alignas(4) char text[sizeof(FARGPU_VERSION)];
};
[[gnu::used, gnu::section(".note.fargpu")]] alignas(4) const ReleaseNote release_note{
    sizeof(release_note_owner), sizeof(FARGPU_VERSION), release_note_type, "fargpu", FARGPU_VERSION};

}  // namespace

const Versions our_versions{wire::OLDEST_PROTOCOL, wire::PROTOCOL_VERSION};
const char* const our_release = FARGPU_VERSION;

std::optional<std::uint32_t> common_version(const Versions& ours, const Versions& theirs) {
  const std::uint32_t version = std::min(ours.newest, theirs.newest);
  return version >= std::max(ours.oldest, theirs.oldest) ? std::optional(version) : std::nullopt;
}

bool speaks(std::uint32_t version) { return version >= our_versions.oldest && version <= our_versions.newest; }

std::string versions_apart(const Side& host, const Side& client) {
  const bool host_is_older = host.versions.newest < client.versions.newest;
  const auto& [older, newer] = host_is_older ? std::pair(host, client) : std::pair(client, host);
  const auto of = [](const Side& side) {
    return fmt::format("{}protocol {}", side.release.empty() ? "" : side.release + ", ", text_of(side.versions));
  };
  return fmt::format("{} has an older fargpu ({}) than {} ({}); update fargpu on the {}", older.name, of(older),
                     newer.name, of(newer), host_is_older ? "GPU host" : "client's machine");
}

}  // namespace fargpu
