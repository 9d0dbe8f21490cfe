#include "words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <utility>

namespace fargpu::etcd {
namespace {

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

template <std::size_t n>
bool has_one(const std::string& text, const std::array<const char*, n>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const char* part) { return has(text, part); });
}

bool is_port(const std::string& text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); }) &&
         std::stoul(text) >= 1 && std::stoul(text) <= 65535;
}

std::optional<Address> read_endpoint(std::string text, bool has_ca, std::string& why) {
  Address address;
  address.encrypted = has_ca;
  const auto refused = [&](const char* reason) {
    why = "'" + text + "' is no endpoint of etcd: " + reason;
    return std::nullopt;
  };
  std::string rest = text;
  if (rest.starts_with("https://")) {
    rest.erase(0, 8);
    if (!has_ca) return refused("https needs the certificate of an authority");
  } else if (rest.starts_with("http://")) {
    rest.erase(0, 7);
    address.encrypted = false;
  } else if (has(rest, "://")) {
    return refused("the scheme is http or https");
  }
  if (rest.ends_with("/")) rest.pop_back();
  std::string host = rest, port = "2379";
  if (rest.starts_with("[")) {
    const std::size_t end = rest.find(']');
    if (end == std::string::npos) return refused("']' is missing");
    host = rest.substr(0, end + 1);
    if (end + 1 < rest.size()) {
      if (rest[end + 1] != ':') return refused("after ']' comes a port");
      port = rest.substr(end + 2);
    }
  } else if (const std::size_t colon = rest.find(':'); colon != std::string::npos) {
    if (rest.find(':', colon + 1) != std::string::npos) return refused("an IPv6 address stands in brackets");
    host = rest.substr(0, colon);
    port = rest.substr(colon + 1);
  }
  if (!is_port(port)) return refused("the port is a number from 1 to 65535");
  if (host.empty() || !std::all_of(host.begin(), host.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '[' || c == ']' || c == '%';
      }))
    return refused("the name of the host is none");
  address.written = host + ":" + port;
  address.target = "dns:///" + address.written;
  return address;
}

// gRPC tells a chain of reasons, of which the last one says something.
std::string last_reason(const std::string& message) {
  std::string reason = message;
  for (const char* const before : {"last error: ", "Failed to connect to remote host: "})
    if (const std::size_t at = reason.rfind(before); at != std::string::npos)
      reason = reason.substr(at + std::char_traits<char>::length(before));
  for (const char* const before : {"UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: ", "etcdserver: "})
    if (reason.starts_with(before)) reason = reason.substr(std::char_traits<char>::length(before));
  return reason.empty() ? "no reason is told" : reason;
}

// By what etcd itself says, whatever code it gives to that.
Failure failure_of_text(const std::string& text) {
  if (has(text, "requested lease not found")) return Failure::lifetime_over;
  if (has(text, "database space exceeded")) return Failure::full;
  if (has(text, "has been compacted")) return Failure::compacted;
  if (has(text, "is a future revision")) return Failure::strange;
  if (has_one(text, std::array{"permission denied", "user name is empty", "user name not found", "invalid auth token",
                               "authentication failed"}))
    return Failure::denied;
  if (has_one(text, std::array{"too many requests", "no leader", "leader changed", "not leader", "not capable",
                               "server stopped", "request timed out", "unhealthy cluster", "not supported for learner",
                               "auth store is old", "context canceled", "context deadline exceeded"}))
    return Failure::unavailable;
  return Failure::none;
}

// What a reason wants to be done, where etcd does not say it.
std::string advice_for(const std::string& message, const Address& address) {
  if (has(message, "database space exceeded"))
    return ": it is full; compact and defragment it and disarm its alarm, or give it more by --quota-backend-bytes";
  if (has(message, "no leader")) return ": most of its members cannot be reached";
  if (has(message, "permission denied")) return ": the user of this certificate has no role for the keys of this pool";
  if (has_one(message, std::array{"user name is empty", "user name not found"}))
    return ": it knows no user by this certificate; its user is the certificate's common name";
  if (has_one(message, std::array{"Endpoint read failed", "Socket closed"}))
    return address.encrypted ? ": it wants another certificate perhaps"
                             : ": it speaks TLS perhaps, as https:// names it";
  return "";
}

}  // namespace

std::optional<std::vector<Address>> read_endpoints(const std::string& text, bool has_ca, std::string& why) {
  std::vector<Address> all;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string one = text.substr(begin, end - begin);
    std::erase_if(one, [](unsigned char c) { return std::isspace(c); });
    begin = end + 1;
    if (one.empty()) continue;
    std::optional<Address> address = read_endpoint(one, has_ca, why);
    if (!address) return std::nullopt;
    all.push_back(std::move(*address));
  }
  if (all.empty()) {
    why = "no endpoint of etcd is named";
    return std::nullopt;
  }
  return all;
}

bool is_too_old(const std::string& version) {
  std::pair<unsigned, unsigned> found;
  return std::sscanf(version.c_str(), "%u.%u.", &found.first, &found.second) == 2 && found < std::pair(3u, 4u);
}

Trouble trouble_of(const grpc::Status& status, const Address& address) {
  const std::string& message = status.error_message();
  Trouble trouble;
  trouble.failure = failure_of_text(message);
  std::string reason = last_reason(message);
  if (trouble.failure == Failure::none) {
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
      case grpc::StatusCode::ABORTED: trouble.failure = Failure::unavailable; break;
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        trouble.failure = Failure::unavailable;
        reason = "no answer in time";
        break;
      case grpc::StatusCode::PERMISSION_DENIED:
      case grpc::StatusCode::UNAUTHENTICATED: trouble.failure = Failure::denied; break;
      case grpc::StatusCode::UNIMPLEMENTED:
        trouble.failure = Failure::strange;
        trouble.elsewhere = true;
        reason = "this is no etcd of version 3.4 or newer (" + reason + ")";
        break;
      default: trouble.failure = Failure::strange;
    }
    if (trouble.failure == Failure::unavailable) {
      if (has(message, "tcp handshaker shutdown")) {  // so gRPC calls an attempt to connect that it has given up
        reason = "no connection in time (" + reason + ")";
      } else if (has_one(message,
                         std::array{"andshake", "certificate", "CERTIFICATE", "Peer name", "SSL", "peer name"})) {
        trouble.failure = Failure::denied;
        trouble.elsewhere = true;
        if (!has(reason, "TLS")) reason = "no TLS by these certificates (" + reason + ")";
      } else if (has_one(message, std::array{"http1.x", "HTTP/1", "http2 header with status", "HTTP status code",
                                             "Failed parsing HTTP/2"})) {
        trouble.failure = Failure::strange;
        trouble.elsewhere = true;
        reason = "this is no etcd (" + reason + ")";
      }
    }
  }
  if (trouble.failure == Failure::unavailable) trouble.elsewhere = !has(message, "too many requests");
  trouble.not_done = trouble.failure == Failure::denied ||
                     has_one(message, std::array{"no leader", "too many requests", "not capable",
                                                 "failed to connect to all addresses", "not supported for learner"});
  trouble.why = "etcd at " + address.written + ": " + reason + advice_for(message, address);
  return trouble;
}

Trouble trouble_of(const std::string& cancel_reason, const Address& address) {
  Trouble trouble;
  trouble.failure = failure_of_text(cancel_reason);
  if (trouble.failure == Failure::none) trouble.failure = Failure::strange;
  trouble.why = "etcd at " + address.written + ": " + last_reason(cancel_reason) + advice_for(cancel_reason, address);
  return trouble;
}

}  // namespace fargpu::etcd
