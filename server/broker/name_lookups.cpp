#include "name_lookups.h"

#include <netdb.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <utility>

#include "protocol/quiet_thread.h"
#include "server/exchange.h"

namespace fargpu::server {
namespace {

/// Shared with the thread, which may outlive the broker.
struct Lookup {
  Descriptor over{::eventfd(0, EFD_CLOEXEC)};
  std::promise<NameLookups::Endpoints> found;
};

NameLookups::Endpoints find(const std::string& host, const std::string& port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  addrinfo* first = nullptr;
  NameLookups::Endpoints found;
  if (::getaddrinfo(host.c_str(), port.c_str(), &wanted, &first) != 0) return found;
  for (const addrinfo* entry = first; entry; entry = entry->ai_next) {
    asio::ip::tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoint.resize(entry->ai_addrlen);
    found.push_back(endpoint);
  }
  ::freeaddrinfo(first);
  return found;
}

}  // namespace

bool NameLookups::look_up(const std::string& host, std::uint16_t port, const std::string& tenant, Found found) {
  FairLimit::Place place = room_.take(tenant);
  if (!place) return false;
  const auto lookup = std::make_shared<Lookup>();
  const int watched = ::dup(lookup->over.number());
  if (watched < 0) return false;  // this process has no descriptor left
  const auto over = std::make_shared<asio::posix::stream_descriptor>(io_, watched);
  try {
    quiet_thread("fargpud-name", [lookup, host, port = std::to_string(port)] {
      lookup->found.set_value(find(host, port));
      ::eventfd_write(lookup->over.number(), 1);
    }).detach();
  } catch (const std::system_error&) {  // this process may have no more threads
    return false;
  }
  over->async_wait(asio::posix::stream_descriptor::wait_read,
                   [lookup, over, found = std::move(found), place = std::move(place)](const asio::error_code& error) {
                     if (!error) found(lookup->found.get_future().get());
                   });
  return true;
}

}  // namespace fargpu::server
