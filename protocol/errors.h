#pragma once
// The three families of errors, never mixed:
//   protocol  the peer sent something malformed or impossible: ProtocolError, the session ends;
//   policy    a call is refused (unsupported, over quota, foreign handle): a chosen CUresult, the session lives;
//   driver    what the driver answered: its CUresult, passed on unchanged.
// A connection that ends is ChannelClosed. Policy and driver errors are values, the other two are exceptions, because
// nothing between the place that notices and the one that ends the session could do anything about them.

#include <stdexcept>

namespace fargpu {

/// The peer broke the protocol. The text says what was wrong with what it sent.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The connection ended: the peer closed it, was killed, or fell silent for too long.
struct ChannelClosed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The peer closed the connection in order, as the end of its process does too.
struct ChannelEnded : ChannelClosed {
  using ChannelClosed::ChannelClosed;
};
/// The peer says nothing.
struct ChannelSilent : ChannelClosed {
  using ChannelClosed::ChannelClosed;
};
inline bool is_end(const ChannelClosed& error) { return dynamic_cast<const ChannelEnded*>(&error) != nullptr; }
/// Whether the line broke: the peer may be there still.
inline bool is_break(const ChannelClosed& error) {
  return !is_end(error) && dynamic_cast<const ChannelSilent*>(&error) == nullptr;
}

/// An operating-system call failed where nothing can be retried.
struct SystemError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fargpu
