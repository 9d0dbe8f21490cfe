#include "pending_connections.h"

#include <sys/resource.h>

#include <algorithm>

#include "event_log.h"

namespace fargpu::server {
namespace {

constexpr std::size_t callers_wanted = 1024;

// The loopback's own address is that of every process of this machine, and of all clients of a tunnel that ends here. A
// bound by address would let any one of them shut out the others. Without that bound a flood costs little. (Another
// address, such as 127.0.0.2, is taken on purpose.)
bool everybodys(const std::string& source) {
  return source == "127.0.0.1" || source == "::1" || source == "::ffff:127.0.0.1";
}

// As many descriptors as the system allows, up to what can be of use. Returns how many callers there may be at once, so
// that sessions never lack descriptors for them.
std::size_t raise_descriptor_limit(std::uint64_t sessions_max) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return callers_wanted / 4;
  const rlim_t useful = 4 * callers_wanted + 4 * sessions_max;
  if (limit.rlim_cur < useful) {
    limit.rlim_cur = std::min(limit.rlim_max, useful);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return std::min<std::size_t>(callers_wanted, limit.rlim_cur / 4 + 1);
}

}  // namespace

PendingConnections::PendingConnections(const Settings& settings)
    : settings_(settings),
      most_(raise_descriptor_limit(settings.sessions_max)),
      failures_(settings.refusals_per_address_max) {}

bool PendingConnections::shut_out(const std::string& source) const {
  return !everybodys(source) && failures_.shut_out(source, ConnectionFailures::Clock::now());
}

void PendingConnections::make_room() {
  if (!pending_.empty()) pending_.front()->cut("room was needed for others");
}

void PendingConnections::make_room_for(const std::string& source) {
  if (pending_.size() >= most_) make_room();
  const auto from_there = [&](const PendingConnection* one) { return one->source() == source; };
  if (static_cast<std::uint64_t>(std::count_if(pending_.begin(), pending_.end(), from_there)) <
      settings_.callers_per_address_max)
    return;
  (*std::find_if(pending_.begin(), pending_.end(), from_there))->cut("too many connections from one address");
}

void PendingConnections::failed(const char* event, const std::string& peer, const std::string& source,
                                const std::string& reason) {
  const ConnectionFailures::Told told = failures_.add(source, ConnectionFailures::Clock::now());
  if (told == ConnectionFailures::Told::shut_out && everybodys(source)) {
    EventLog::warn("source not shut out",
                   {{"source", source},
                    {"refused", settings_.refusals_per_address_max},
                    {"reason", reason},
                    {"meaning", "every user of this machine shares it; find the program that does this"}});
  } else if (told == ConnectionFailures::Told::shut_out) {
    EventLog::warn("source shut out",
                   {{"source", source}, {"refused", settings_.refusals_per_address_max}, {"reason", reason}});
  } else if (told == ConnectionFailures::Told::not_any_more) {
    EventLog::debug(event, {{"peer", peer}, {"reason", reason}});
  } else if (told == ConnectionFailures::Told::last) {
    EventLog::warn(event, {{"peer", peer},
                           {"reason", reason},
                           {"meaning", "further ones of this source in this minute are logged at level debug only"}});
  } else {
    EventLog::warn(event, {{"peer", peer}, {"reason", reason}});
  }
}

}  // namespace fargpu::server
