#include "pool_address.h"

#include <algorithm>
#include <asio.hpp>

#include "event_log.h"

namespace fargpu::server {

asio::awaitable<void> look_at_pool_address(std::string address, bool open) {
  std::string name = address;
  if (const std::size_t scheme = name.find("://"); scheme != std::string::npos) name.erase(0, scheme + 3);
  name.resize(std::min(name.rfind(':'), name.size()));
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  asio::ip::tcp::resolver resolver(co_await asio::this_coro::executor);
  asio::error_code error;
  const auto found = co_await resolver.async_resolve(name, "", asio::redirect_error(asio::use_awaitable, error));
  const bool own =
      std::all_of(found.begin(), found.end(), [](const auto& one) { return one.endpoint().address().is_loopback(); });
  if (error)
    EventLog::warn("pool_address", {{"address", address},
                                    {"reason", "'" + name + "' is unknown here: " + error.message()},
                                    {"meaning",
                                     "clients that do not know this name either find no way to this host; "
                                     "give one that they know by pool_address"}});
  else if (own && open)
    EventLog::warn("pool_address", {{"address", address},
                                    {"reason", "'" + name + "' is this machine itself"},
                                    {"meaning",
                                     "clients of other machines find no way to this host; give an address "
                                     "that they reach by pool_address"}});
}

}  // namespace fargpu::server
