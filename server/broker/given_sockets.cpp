#include "given_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

namespace fargpu::server {
namespace {

constexpr int first_given = 3;  // SD_LISTEN_FDS_START
constexpr int given_max = 256;

long number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  long number = -1;
  if (text) std::from_chars(text, text + std::strlen(text), number);
  return number;
}

bool listens(int socket) {
  int yes = 0;
  socklen_t bytes = sizeof(yes);
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &yes, &bytes) == 0 && yes != 0;
}

// The kernel tells the path of a Unix socket with the zero byte behind it.
socklen_t length_of(const sockaddr_storage& address, socklen_t bytes) {
  const auto* const path = reinterpret_cast<const sockaddr_un&>(address).sun_path;
  const std::size_t before = offsetof(sockaddr_un, sun_path);
  if (address.ss_family != AF_UNIX || bytes <= before || path[0] == '\0') return bytes;
  return static_cast<socklen_t>(before + ::strnlen(path, bytes - before));
}

}  // namespace

GivenSockets::GivenSockets() {
  const long count = number_in("LISTEN_PID") == ::getpid() ? number_in("LISTEN_FDS") : 0;
  const char* const names = std::getenv("LISTEN_FDNAMES");
  std::istringstream rest(names ? names : "");
  for (int i = 0; i < std::min<long>(count, given_max); ++i) {
    const int number = first_given + i;
    ::fcntl(number, F_SETFD, FD_CLOEXEC);
    Given& given = given_.emplace_back(Given{Descriptor(number), ""});
    std::getline(rest, given.name, ':');
  }
  for (const char* const variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(variable);
}

bool GivenSockets::listens_at(const Given& given, const Wanted& wanted) {
  const int socket = given.socket.number();
  const auto& [address, v6_only] = wanted;
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  if (socket < 0 || !listens(socket) || ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &bytes) != 0 ||
      length_of(own, bytes) != address.size() || std::memcmp(&own, address.data(), address.size()) != 0)
    return false;
  int own_v6_only = 0;
  bytes = sizeof(own_v6_only);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(own);
  return own.ss_family != AF_INET6 || !IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr) ||
         ::getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &own_v6_only, &bytes) != 0 || (own_v6_only != 0) == v6_only;
}

Descriptor GivenSockets::take(const Wanted& wanted) {
  for (Given& given : given_)
    if (listens_at(given, wanted)) return std::move(given.socket);
  return {};
}

std::vector<std::string> GivenSockets::close_others(const std::vector<Wanted>& wanted) {
  std::vector<std::string> names;
  std::erase_if(given_, [&](const Given& given) {
    const auto here = [&](const Wanted& one) { return listens_at(given, one); };
    if (std::any_of(wanted.begin(), wanted.end(), here)) return false;
    if (given.socket.number() >= 0) names.push_back(given.name);
    return true;
  });
  return names;
}

}  // namespace fargpu::server
