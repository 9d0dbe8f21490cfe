#include "link_news.h"

#include <atomic>

namespace fargpu::client {
namespace {

std::atomic<LinkLost> at_loss{nullptr};

}  // namespace

void at_link_loss(LinkLost action) { at_loss = action; }

void tell_link_loss(const Calls& by, std::uint32_t number, const std::string& why) {
  if (const LinkLost action = at_loss.load()) action(by, number, why);
}

}  // namespace fargpu::client
