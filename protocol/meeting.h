#pragma once
// What a connection becomes once its ends have said what comes first: itself, or something else that both have met by.

#include <functional>
#include <memory>

#include "channel.h"

namespace fargpu {

/// What carries all that follows on the connection.
using GoOn = std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel> connection)>;
/// Agrees on that with the other end, which does so at the same place of what is said. Throws what ends the connection.
using Meet = std::function<GoOn(Channel& connection)>;

}  // namespace fargpu
