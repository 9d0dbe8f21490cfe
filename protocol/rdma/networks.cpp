#include "networks.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "protocol/text.h"

namespace fargpu::rdma {
namespace {

constexpr unsigned mapped_bits = 96;  // in front of an address of IPv4
using Address = std::array<std::uint8_t, 16>;

Address mapped(const in_addr& v4) {
  Address address{};
  address[10] = address[11] = 0xff;
  std::memcpy(&address[12], &v4, sizeof(v4));
  return address;
}

bool same_network(const Address& one, const Address& other, unsigned bits) {
  const unsigned whole = bits / 8, rest = bits % 8;
  if (!std::equal(one.begin(), one.begin() + whole, other.begin())) return false;
  return rest == 0 || ((one[whole] ^ other[whole]) >> (8 - rest)) == 0;
}

}  // namespace

bool Networks::parse(const std::string& text, Networks& networks, std::string& error) {
  networks.networks_.clear();
  if (text == "none") return true;
  if (text == "all") {
    networks.networks_.push_back({{}, 0});
    return true;
  }
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, comma - begin);
    begin = comma + 1;
    const std::size_t slash = std::min(item.find('/'), item.size());
    const std::string address = item.substr(0, slash);
    in_addr v4{};
    in6_addr v6{};
    Network network{};
    unsigned most = 128, before = 0;
    if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
      network.address = mapped(v4);
      most = 32;
      before = mapped_bits;
    } else if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1) {
      std::memcpy(network.address.data(), &v6, sizeof(v6));
    } else {
      error = "'" + printable(item, 64) +
              "' is no network; write addresses such as 10.1.0.0/16 or fd00:1::/32, with "
              "commas between them, or none, or all";
      return false;
    }
    unsigned bits = most;
    if (slash < item.size()) {
      const char* const from = item.data() + slash + 1;
      const char* const to = item.data() + item.size();
      const auto [end, fault] = std::from_chars(from, to, bits);
      if (fault != std::errc{} || end != to || bits > most) {
        error = "'" + printable(item, 64) + "' has no length from 0 to " + std::to_string(most) + " behind its slash";
        return false;
      }
    }
    network.bits = before + bits;
    networks.networks_.push_back(network);
  }
  return true;
}

bool Networks::contain(const sockaddr_storage& address) const {
  Address bytes{};
  if (address.ss_family == AF_INET) {
    bytes = mapped(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  } else if (address.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, bytes.size());
  } else {
    return false;
  }
  return std::any_of(networks_.begin(), networks_.end(),
                     [&](const Network& one) { return same_network(one.address, bytes, one.bits); });
}

}  // namespace fargpu::rdma
