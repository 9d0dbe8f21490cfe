#pragma once
// Channels that speak TLS 1.3.

#include <chrono>
#include <memory>
#include <string>

#include "channel.h"
#include "errors.h"
#include "tls.h"

namespace fargpu {

/// The other end closed the connection because of this end's certificate. In TLS 1.3 a client hears of it only after
/// its handshake.
struct CertificateRefused : ChannelClosed {
  using ChannelClosed::ChannelClosed;
};

/// The client's end on a connected socket, whose descriptor it takes, after the handshake. `server_name`: what the
/// server's certificate must say, a name or an address; empty where keys or a fingerprint tell. Throws TlsError, and
/// ChannelClosed if the server left or said nothing for so long.
std::unique_ptr<Channel> connect_tls(int descriptor, std::string peer, const TlsContext& context,
                                     const std::string& server_name, std::chrono::milliseconds timeout);

/// The server's end, the same way.
std::unique_ptr<Channel> accept_tls(int descriptor, std::string peer, const TlsContext& context,
                                    std::chrono::milliseconds timeout);

}  // namespace fargpu
