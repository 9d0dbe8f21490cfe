#include "settings.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "protocol/host_name.h"

namespace fargpu::server {

std::string Settings::name_in_pool() const { return pool_host.empty() ? host_name() : pool_host; }

// 0 for what is no number.
double Settings::oversubscription() const {
  double factor = 0;
  const char* const end = memory_oversubscription.data() + memory_oversubscription.size();
  const auto [parsed, error] = std::from_chars(memory_oversubscription.data(), end, factor);
  return error == std::errc{} && parsed == end ? factor : 0;
}

std::uint64_t Settings::resume_seconds_of(bool by_loopback) const {
  const bool standard = std::any_of(origins.begin(), origins.end(), [](const Origin& origin) {
    return origin.name == "resume_seconds" && origin.from == "default";
  });
  return by_loopback && standard ? 0 : resume_seconds;
}

std::vector<ListenAddress> parse_listen(const std::string& text, const std::string& setting) {
  std::vector<ListenAddress> addresses;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    ListenAddress address;
    if (item.starts_with("unix:")) {
      address.socket = item.substr(5);
      if (!address.socket.starts_with('/') || address.socket.size() < 2 || address.socket.size() > 107)
        throw SettingsError(setting + " is '" + text + "': '" + item + "' names no Unix socket by its whole path");
      addresses.push_back(address);
      continue;
    }
    if (item.find(' ') != std::string::npos) throw SettingsError(setting + " is '" + text + "', which has a space");
    if (item.starts_with("tls://")) address.transport = ListenAddress::Transport::tls;
    if (item.starts_with("tcp://")) address.transport = ListenAddress::Transport::tcp;
    if (address.transport != ListenAddress::Transport::usual) item.erase(0, 6);
    if (const std::size_t other = item.find("://"); other != std::string::npos)
      throw SettingsError(setting + " is '" + text + "': '" + item.substr(0, other) +
                          "' is no transport; write tcp:// or tls://");
    const std::size_t colon = item.rfind(':');
    const std::string port = colon == std::string::npos ? "" : item.substr(colon + 1);
    address.host = item.substr(0, colon);
    if (address.host.starts_with('[') && address.host.ends_with(']'))
      address.host = address.host.substr(1, address.host.size() - 2);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (port.empty() || address.host.empty() || error != std::errc{} || end != port.data() + port.size())
      throw SettingsError(setting + " is '" + text + "': '" + item + "' is not host:port" +
                          (setting == "listen" ? " or unix:/path" : ""));
    addresses.push_back(address);
  }
  if (addresses.empty())
    throw SettingsError(setting + " is empty; give host:port" + (setting == "listen" ? " or unix:/path" : ""));
  return addresses;
}

std::vector<int> parse_devices(const std::string& text) {
  std::vector<int> devices;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    int device = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), device);
    if (error != std::errc{} || end != item.data() + item.size() || device < 0)
      throw SettingsError("devices is '" + text + "': '" + item + "' is no device number");
    if (std::find(devices.begin(), devices.end(), device) != devices.end())
      throw SettingsError("devices is '" + text + "': it names device " + item + " twice; name each once");
    devices.push_back(device);
  }
  return devices;
}

}  // namespace fargpu::server
