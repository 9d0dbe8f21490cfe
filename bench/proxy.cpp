// A proxy that stands for a network: what comes in on one side leaves on the other after a fixed time, and not faster
// than a fixed rate. With --cut-ms it is a bad network: each connection is reset after that time, and what it holds of
// it is lost. At its end it says how many were.
//
//   proxy --to HOST:PORT [--delay-us ONE_WAY] [--megabytes-per-second RATE] [--cut-ms LIFE] [--threads COUNT]
//
// Says its port on stdout and serves until stdin ends. Delay and rate are apart: a byte leaves when the line has been
// free for all before it, of whatever connection, plus the delay. A line of a rate holds what is under way and a short
// queue, as networks do, for all its connections together, so that senders come to feel it. What the proxy itself adds
// is measured by a ping-pong through one without delay, as `run` does, and what it loses of a rate by plain sockets
// through it. A thread carries so many bytes in a second as it can copy twice; several share the connections of a
// faster line.

#include <sys/prctl.h>

#include <array>
#include <asio.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::size_t piece_bytes = 256 << 10;

thread_local Clock::time_point last_byte;

/// One way of the line, which all connections share. Threads: any.
struct Line {
  Clock::duration delay{};
  double bytes_per_second = 0;  // 0: unlimited
  std::mutex mutex{};
  Clock::time_point free_at{};  // under the mutex

  Line(Clock::duration delay, double bytes_per_second) : delay(delay), bytes_per_second(bytes_per_second) {}

  /// When bytes that came now leave.
  Clock::time_point takes(std::size_t bytes, Clock::time_point now) {
    const std::lock_guard lock(mutex);
    free_at = std::max(free_at, now);
    if (bytes_per_second > 0)
      free_at += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second));
    return free_at + delay;
  }

  /// Whether it holds all that it can. A connection of which it holds nothing may give it a piece nevertheless.
  bool full(std::size_t of_connection) const {
    constexpr auto queue = std::chrono::milliseconds(10);
    if (bytes_per_second <= 0) return of_connection > std::size_t{256} << 20;
    const double most = bytes_per_second * std::chrono::duration<double>(delay + queue).count();
    return of_connection > 0 && static_cast<double>(held.load()) > most;
  }

  std::atomic<std::size_t> held{0};  // of all connections
};

/// One direction of a connection.
class Direction : public std::enable_shared_from_this<Direction> {
 public:
  Direction(std::shared_ptr<tcp::socket> from, std::shared_ptr<tcp::socket> to, Line& line)
      : from_(std::move(from)), to_(std::move(to)), line_(line), timer_(from_->get_executor()) {}
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;
  ~Direction() { line_.held -= held_; }

  void read() {
    if (line_.full(held_)) {
      paused_ = true;
      return;
    }
    if (spare_.empty()) spare_.emplace_back(piece_bytes);
    reading_ = std::move(spare_.back());
    spare_.pop_back();
    from_->async_read_some(
        asio::buffer(reading_),
        [self = shared_from_this()](asio::error_code error, std::size_t bytes) { self->arrived(error ? 0 : bytes); });
  }

 private:
  struct Piece {
    std::vector<char> buffer;
    std::size_t bytes = 0;  // of it; 0: the end
    Clock::time_point due;
  };

  void arrived(std::size_t bytes) {
    const auto now = Clock::now();
    last_byte = now;
    pieces_.push_back({std::move(reading_), bytes, line_.takes(bytes, now)});
    held_ += bytes;
    line_.held += bytes;
    if (!writing_) forward();
    if (bytes) read();
  }

  void forward() {
    if (pieces_.empty()) return;
    writing_ = true;
    if (pieces_.front().due <= Clock::now()) return write();
    timer_.expires_at(pieces_.front().due);
    timer_.async_wait([self = shared_from_this()](asio::error_code) { self->write(); });
  }

  void write() {
    if (pieces_.front().bytes == 0) {
      asio::error_code ignored;
      to_->shutdown(tcp::socket::shutdown_send, ignored);
      pieces_.clear();
      return;
    }
    asio::async_write(*to_, asio::buffer(pieces_.front().buffer, pieces_.front().bytes),
                      [self = shared_from_this()](asio::error_code error, std::size_t) { self->written(error); });
  }

  void written(asio::error_code error) {
    if (error) {  // nobody takes it: the sender hears of it by the end of the connection
      asio::error_code ignored;
      from_->shutdown(tcp::socket::shutdown_both, ignored);
      pieces_.clear();
      return;
    }
    held_ -= pieces_.front().bytes;
    line_.held -= pieces_.front().bytes;
    spare_.push_back(std::move(pieces_.front().buffer));
    pieces_.pop_front();
    writing_ = false;
    forward();
    if (paused_ && !line_.full(held_)) {
      paused_ = false;
      read();
    }
  }

  const std::shared_ptr<tcp::socket> from_, to_;
  Line& line_;
  asio::steady_timer timer_;
  std::vector<char> reading_;
  std::deque<Piece> pieces_;
  std::vector<std::vector<char>> spare_;  // memory that is used again, as new memory costs more than copying
  std::size_t held_ = 0;
  bool writing_ = false, paused_ = false;
};

// A line does not sleep. A processor that did for milliseconds comes back tenths of one late, which would be the
// proxy's and not the network's: where there are processors for it, it looks all the time while something is under way.
// Of several threads each does so for a shorter time, for the programs that are measured need processors too.
void serve(asio::io_context& context, bool alone) {
  const bool spins = std::thread::hardware_concurrency() >= 8;
  const auto awake = std::chrono::milliseconds(alone ? 200 : 5);  // after the last byte
  while (!context.stopped()) {
    if (spins && Clock::now() - last_byte < awake) context.poll();
    else context.run_one();
  }
}

class Proxy {
 public:
  /// Each connection is one context's, in turn. The lines outlive the contexts, which have connections to the last.
  Proxy(std::deque<asio::io_context>& contexts, tcp::endpoint to, Line& there, Line& back, Clock::duration life)
      : contexts_(contexts),
        acceptor_(contexts.front(), tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        to_(std::move(to)),
        there_(there),
        back_(back),
        life_(life) {}

  std::size_t cuts() const { return cuts_; }
  unsigned port() const { return acceptor_.local_endpoint().port(); }

  void accept() {
    acceptor_.async_accept(contexts_[next_++ % contexts_.size()], [this](asio::error_code error, tcp::socket accepted) {
      if (!error) {
        const auto client = std::make_shared<tcp::socket>(std::move(accepted));
        asio::post(client->get_executor(), [this, client] { connect(client); });
      }
      accept();
    });
  }

 private:
  void connect(const std::shared_ptr<tcp::socket>& client) {
    auto server = std::make_shared<tcp::socket>(client->get_executor());
    server->async_connect(to_, [this, client, server](asio::error_code error) {
      if (error) {
        std::fprintf(stderr, "proxy: connecting: %s\n", error.message().c_str());
        return;
      }
      for (const auto& socket : {client, server}) {
        asio::error_code ignored;
        socket->set_option(tcp::no_delay(true), ignored);
        if (there_.bytes_per_second > 0)  // the system's buffers are not the line's
          socket->set_option(asio::socket_base::receive_buffer_size(static_cast<int>(piece_bytes)), ignored);
      }
      std::make_shared<Direction>(client, server, there_)->read();
      std::make_shared<Direction>(server, client, back_)->read();
      if (life_ > Clock::duration()) cut_later(client, server);
    });
  }

  void cut_later(const std::weak_ptr<tcp::socket>& client, const std::weak_ptr<tcp::socket>& server) {
    const auto timer = std::make_shared<asio::steady_timer>(client.lock()->get_executor(), life_);
    timer->async_wait([this, timer, client, server](asio::error_code) {
      bool lives = false;
      for (const auto& end : {client, server}) {
        const auto socket = end.lock();
        if (!socket) continue;
        asio::error_code ignored;
        socket->set_option(asio::socket_base::linger(true, 0), ignored);
        socket->close(ignored);
        lives = true;
      }
      cuts_ += lives;
    });
  }

  std::deque<asio::io_context>& contexts_;
  std::size_t next_ = 0;
  tcp::acceptor acceptor_;
  const tcp::endpoint to_;
  Line &there_, &back_;
  const Clock::duration life_;  // of a connection; 0: as long as its ends like
  std::atomic<std::size_t> cuts_{0};
};

}  // namespace

int main(int count, char** words) {
  try {
    Clock::duration delay{}, life{};
    double bytes_per_second = 0;
    std::size_t threads = 1;
    std::string to;
    for (int i = 1; i + 1 < count; i += 2) {
      const std::string option = words[i];
      if (option == "--to") to = words[i + 1];
      else if (option == "--delay-us") delay = std::chrono::microseconds(std::stoul(words[i + 1]));
      else if (option == "--megabytes-per-second") bytes_per_second = 1e6 * std::stod(words[i + 1]);
      else if (option == "--cut-ms") life = std::chrono::milliseconds(std::stoul(words[i + 1]));
      else if (option == "--threads") threads = std::stoul(words[i + 1]);
      else to = "", i = count;
    }
    const std::size_t colon = to.rfind(':');
    if (colon == std::string::npos || count % 2 == 0 || threads == 0 || threads > 64) {
      std::fprintf(stderr,
                   "usage: proxy --to HOST:PORT [--delay-us ONE_WAY] [--megabytes-per-second RATE] [--cut-ms LIFE] "
                   "[--threads 1-64]\n");
      return 2;
    }
    ::prctl(PR_SET_TIMERSLACK, 1);  // of threads that start later too
    Line there(delay, bytes_per_second), back(delay, bytes_per_second);
    std::deque<asio::io_context> contexts;
    std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards;
    for (std::size_t i = 0; i < threads; ++i) guards.push_back(asio::make_work_guard(contexts.emplace_back(1)));
    const auto port = static_cast<unsigned short>(std::stoul(to.substr(colon + 1)));
    Proxy proxy(contexts, {asio::ip::make_address(to.substr(0, colon)), port}, there, back, life);
    proxy.accept();
    asio::posix::stream_descriptor input(contexts.front(), ::dup(STDIN_FILENO));
    std::array<char, 64> ignored;
    input.async_read_some(asio::buffer(ignored), [&](asio::error_code, std::size_t) {
      for (asio::io_context& context : contexts) context.stop();
    });
    std::printf("port %u\n", proxy.port());
    std::fflush(stdout);
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&contexts, i] { serve(contexts[i], false); });
    serve(contexts.front(), threads == 1);
    for (std::thread& other : others) other.join();
    if (life > Clock::duration()) std::printf("cut %zu\n", proxy.cuts());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "proxy: %s\n", error.what());
    return 2;
  }
}
