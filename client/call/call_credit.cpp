#include "call_credit.h"

#include "protocol/errors.h"

namespace fargpu::client {

// By one thread at a time, the one that reads.
void CallCredit::settled(std::uint64_t bytes) {
  if (bytes > taken_.load(std::memory_order_relaxed))
    throw ProtocolError("the worker settles more calls than were sent");
  if (bytes < settled_.load(std::memory_order_relaxed))
    throw ProtocolError("the worker takes back what it has settled");
  settled_.store(bytes, std::memory_order_release);
}

}  // namespace fargpu::client
