#pragma once
// The links of a session with the workers of other hosts.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peer_link.h"
#include "server/peer_door.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

/// What a connection asks for that knows a link's key, or the key's name.
struct PeerWish {
  std::uint32_t link = 0;
  std::uint32_t channel = 0;
  std::vector<std::byte> key;
  bool encrypted = false;  ///< a handshake of TLS by the rest of the key follows
  bool rdma = false;       ///< the source has RDMA for this connection
};

class PeerLinks {
 public:
  /// `lost`: the client is to hear of it. `door`: null where there are no other workers.
  PeerLinks(Waker& waker, HostBudget& budget, Compression compression, std::chrono::milliseconds silence,
            PeerDoor* door, std::function<void(std::uint32_t link, const std::string& why)> lost)
      : waker_(waker),
        budget_(budget),
        compression_(compression),
        silence_(silence),
        door_(door),
        lost_(std::move(lost)) {}
  ~PeerLinks() { close_all(); }

  // --- for the executor ---------------------------------------------------------------------------------------------

  /// Makes the target's end of a link that does not exist yet. Why not; empty if it has.
  std::string offer(std::uint32_t number);
  /// Makes the source's end.
  std::string join(std::uint32_t number);
  /// Null for a number that is none.
  std::shared_ptr<PeerLink> find(std::uint32_t number) const;
  bool any() const { return !links_.empty(); }
  void close(std::uint32_t number);
  /// Of the session's end: nothing that waits hears of it.
  void close_all();
  bool collect();
  void context_closes(DriverTable& driver, const ContextState& context);

  // --- for any thread -----------------------------------------------------------------------------------------------

  /// The key by which the connections of an offered link come in, once they do. Empty if they cannot.
  std::vector<std::byte> admit(std::uint32_t number);
  struct Met {
    std::string failure;  ///< why they have not met; empty if they have
    bool rdma = false;    ///< all of its connections go by RDMA
  };
  /// Connects a link with its target.
  Met meet(std::uint32_t number, const PeerAddress& address);
  /// What the first frame on a connection asks for; nothing if it is not a link of this session.
  std::optional<PeerWish> read(std::span<const std::byte> lane_message) const noexcept;
  /// Answers such a connection and takes it, once for each channel of a link.
  void take(std::unique_ptr<Channel> channel, const PeerWish& wish) noexcept;

 private:
  struct Member {
    HostCharge charge;  // first: the link's memory goes before it
    std::shared_ptr<PeerLink> link;
    std::vector<std::byte> key;  // while connections may come
    std::uint32_t missing = 0;   // of its connections
    bool told = false;           // of its end
  };
  std::string make(std::uint32_t number, PeerLink::End end);
  void forget_key(Member& member);

  Waker& waker_;
  HostBudget& budget_;
  const Compression compression_;
  const std::chrono::milliseconds silence_;
  PeerDoor* const door_;
  const std::function<void(std::uint32_t, const std::string&)> lost_;
  mutable std::mutex mutex_;  // for what other threads see; links are added and taken away by the executor alone
  std::map<std::uint32_t, Member> links_;
  std::size_t made_ = 0;
};

}  // namespace fargpu::server
