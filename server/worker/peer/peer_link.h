#pragma once
// A link with the worker of another host: contents of memory and word of events, from one program's session there to
// its session here, or the other way, without the program's process in between.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "driver_table.h"
#include "protocol/channel.h"
#include "protocol/limits.h"
#include "server/worker/base/pages.h"
#include "server/worker/copy/worker_lanes.h"
#include "server/worker/memory/staging.h"

namespace fargpu::server {

/// One end. A link that fails in any way is of no use any more: what waits for it hears `lost`, once, and nothing else
/// comes of it. Everything is the executor's but what says otherwise.
class PeerLink {
 public:
  enum class End { source, target };
  /// The waker brings the executor to collect(). `silence`: after which the other end is dead.
  PeerLink(std::uint32_t number, End end, Waker& waker, Compression compression, std::chrono::milliseconds silence);
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  /// What one takes of the host's memory.
  static std::uint64_t memory_of(End end);

  std::uint32_t number() const { return number_; }
  End end() const { return end_; }
  /// Why it is of no use; empty while it is.
  const std::string& failure() const { return failure_; }

  /// Takes a connection on which both ends have said one frame: 0 is the link's own, the others are lanes. Any thread.
  /// False for one that it has, or that no link has. `first`: what is to be said on it once it is taken, before anybody
  /// uses it; what follows at the other end may lead to that at once.
  bool take(std::uint32_t channel, std::shared_ptr<Channel> connection,
            const std::function<void(Channel&)>& first = {});
  /// Hands over what has happened. Returns whether anything had.
  bool collect();
  /// Ends it, because of this.
  void fail(const std::string& why);
  /// Ends it with the session: nothing that waits hears of it.
  void abandon();
  /// The context is about to go.
  void context_closes(DriverTable& driver, const ContextState& context);
  /// Memory that chunks pass through is pinned in the current context.
  void pin(DriverTable& driver, const ContextState& context);

  // --- at the source ------------------------------------------------------------------------------------------------

  struct Sending {
    std::function<void(std::uint32_t chunks)> wanted;  ///< so many of them in all; never fewer than before
    std::function<void()> landed;
    std::function<void()> lost;
  };
  /// A transfer begins. Throws ProtocolError for a number that is in use.
  void send(std::uint32_t transfer, Sending sending);
  void say_begins(std::uint32_t transfer);
  void say_passed(std::uint64_t number);
  /// Where chunks lie until they have left.
  StagingSpace& out() { return out_; }

  // --- at the target ------------------------------------------------------------------------------------------------

  struct Receiving {
    std::function<void()> begins;
    std::function<void()> lost;
  };
  /// As send().
  void receive(std::uint32_t transfer, Receiving receiving);
  void say_landed(std::uint32_t transfer);
  struct Awaiting {
    std::function<void()> passed;
    std::function<void()> lost;
  };
  /// Waits for an event that the source tells of, once.
  void await(std::uint64_t number, Awaiting awaiting);

  /// The transfer is over.
  void forget(std::uint32_t transfer);
  WorkerLanes& lanes() { return lanes_; }

 private:
  struct Wanted {
    std::uint32_t transfer, chunks;
  };
  struct Begins {
    std::uint32_t transfer;
  };
  struct Landed {
    std::uint32_t transfer;
  };
  struct Passed {
    std::uint64_t number;
  };
  using Word = std::variant<Wanted, Begins, Landed, Passed>;
  class Line;

  void say(const std::function<void(wire::PeerWord::Builder)>& fill);
  void hear(const Word& word);
  void attend(Line& line);
  void lose(const std::string& why);
  void bound(std::size_t things);
  void close();

  const std::uint32_t number_;
  const End end_;
  Waker& waker_;
  const std::chrono::milliseconds silence_;
  std::string failure_;
  std::map<std::uint32_t, Sending> sending_;
  std::map<std::uint32_t, std::uint32_t> wanted_early_;  // of transfers that have not begun here
  std::map<std::uint32_t, Receiving> receiving_;
  std::set<std::uint32_t> began_early_;
  std::map<std::uint64_t, Awaiting> awaiting_;
  std::set<std::uint64_t> passed_early_;
  Pages out_memory_;
  StagingSpace out_;
  const ContextState* out_pinned_in_ = nullptr;

  std::mutex mutex_;
  std::vector<Word> heard_;
  std::string lost_why_;
  std::set<std::uint32_t> channels_;
  std::shared_ptr<Line> line_;
  bool closed_ = false;
  std::thread thread_;
  WorkerLanes lanes_;
};

}  // namespace fargpu::server
