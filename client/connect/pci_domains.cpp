#include "pci_domains.h"

#include <map>
#include <set>

namespace fargpu::client {

void separate_domains(std::vector<std::vector<unsigned>>& hosts) {
  constexpr unsigned domains = 1u << 16;  // what is printed with four digits
  std::set<unsigned> taken;
  for (auto& host : hosts) {
    std::map<unsigned, unsigned> given;
    std::set<unsigned> own;
    for (unsigned& domain : host) {
      const auto known = given.find(domain);
      if (known != given.end()) {
        domain = known->second;
        continue;
      }
      unsigned free = domain % domains;
      while (taken.contains(free) || own.contains(free)) free = (free + 1) % domains;
      own.insert(free);
      given[domain] = free;
      domain = free;
    }
    taken.insert(own.begin(), own.end());
  }
}

}  // namespace fargpu::client
