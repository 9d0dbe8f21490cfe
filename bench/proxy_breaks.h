#pragma once
// How the connections of a proxy break: by a reset, after a byte that may be any, or by silence.

#include <linux/filter.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <asio.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace bench {

/// A connection of the client, and the one by which it goes on. Threads: that of their context.
struct Pair {
  explicit Pair(asio::ip::tcp::socket accepted) : client(std::move(accepted)), server(client.get_executor()) {}

  /// Both ends hear of it; whether there was a connection.
  bool reset() {
    bool open = false;
    for (auto* const end : {&client, &server}) {
      asio::error_code ignored;
      open = open || end->is_open();
      end->set_option(asio::socket_base::linger(true, 0), ignored);
      end->close(ignored);
    }
    return open;
  }

  /// Neither end hears of anything any more, as in a network in which packets vanish. What the system has taken of the
  /// proxy arrives before: it would be sent again and again, and tell the ends that there is somebody.
  void mute() {
    muted = true;
    for (auto* const end : {&client, &server}) {
      asio::error_code ignored;
      end->cancel(ignored);
    }
  }

  bool sent_all() {
    for (auto* const end : {&client, &server}) {
      int left = 0;
      if (::ioctl(end->native_handle(), SIOCOUTQ, &left) == 0 && left > 0) return false;
    }
    return true;
  }

  /// The system drops what comes for it, unread and unacknowledged.
  void drop() {
    sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program{1, &nothing};
    for (auto* const end : {&client, &server})
      if (end->is_open() &&
          ::setsockopt(end->native_handle(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
        std::perror("proxy: dropping packets");
  }

  asio::ip::tcp::socket client, server;
  bool muted = false;
};

/// Tells on stdout, in lines of JSON, when connections broke and when the next one came: in seconds of the monotonic
/// clock. Threads: any.
class Breaks {
 public:
  /// Whether the connection may go on to the server. A network that is silent is so for connections that begin, too: a
  /// session opens its lanes one after the other, and the next of them would count as the one by which it goes on.
  bool came(const std::shared_ptr<Pair>& pair) {
    const std::lock_guard lock(mutex_);
    if (std::chrono::steady_clock::now() < silent_until_) {
      pair->mute();
      pair->drop();
      silent_.push_back(pair);
      return false;
    }
    std::erase_if(pairs_, [](const std::weak_ptr<Pair>& known) { return known.expired(); });
    pairs_.push_back(pair);
    if (std::exchange(awaited_, false)) tell("came");
    return true;
  }

  /// All connections are reset once so many bytes more have come through, of whichever of them.
  void cut_after(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    left_ = bytes;
  }

  /// How many of the bytes that came may pass. If these are not all, cut() is due behind them.
  std::size_t passing(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!left_) return bytes;
    if (*left_ < bytes) return *std::exchange(left_, std::nullopt);
    *left_ -= bytes;
    return bytes;
  }

  void cut() {
    each([](const std::shared_ptr<Pair>& pair) { pair->reset(); });
  }

  void mute() {
    {
      const std::lock_guard lock(mutex_);
      silent_until_ = std::chrono::steady_clock::now() + silence;
    }
    each([this](const std::shared_ptr<Pair>& pair) {
      pair->mute();
      drop_soon(pair, 100);
      const std::lock_guard lock(mutex_);
      silent_.push_back(pair);
    });
  }

 private:
  static constexpr std::chrono::milliseconds silence{500};  // less than the ends need to notice it

  /// Once all has arrived that was sent, or after so many milliseconds.
  static void drop_soon(const std::shared_ptr<Pair>& pair, int patience) {
    if (patience == 0 || pair->sent_all()) return pair->drop();
    const auto timer = std::make_shared<asio::steady_timer>(pair->client.get_executor(), std::chrono::milliseconds(1));
    timer->async_wait([timer, pair, patience](asio::error_code) { drop_soon(pair, patience - 1); });
  }

  template <typename Act>
  void each(Act act) {
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<Pair>& known : pairs_)
      if (const auto pair = known.lock()) asio::post(pair->client.get_executor(), [act, pair] { act(pair); });
    pairs_.clear();
    awaited_ = true;
    tell("broke");
  }

  static void tell(const char* what) {
    std::printf("{\"%s\": %.6f}\n", what,
                std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
    std::fflush(stdout);
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<Pair>> pairs_;
  std::vector<std::shared_ptr<Pair>> silent_;  // kept open: a socket that is closed tells the other end
  std::chrono::steady_clock::time_point silent_until_{};
  std::optional<std::size_t> left_;
  bool awaited_ = false;
};

}  // namespace bench
