// A proxy that stands for a network: what comes in on one side leaves on the other after a fixed time, and not faster
// than a fixed rate. With --cut-ms it is a bad network: each connection is reset after that time, and what it holds of
// it is lost. At its end it says how many were. Lines on stdin break connections too (proxy_breaks.h):
//
//   cut bytes=COUNT       all of them are reset when so many bytes more have come through
//   mute                  nothing comes through those of now any more, nor those of the next half second, and nobody
//                         is told
//   from address=ADDRESS  connections from now on come to the server from this address of the loopback
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

#include <asio.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <istream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "asked.h"
#include "proxy_line.h"

namespace {

using namespace bench;
using asio::ip::tcp;

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
        input_(contexts.front(), ::dup(STDIN_FILENO)),
        to_(std::move(to)),
        there_(there),
        back_(back),
        life_(life) {}

  std::size_t cuts() const { return cuts_; }
  unsigned port() const { return acceptor_.local_endpoint().port(); }

  void accept() {
    acceptor_.async_accept(contexts_[next_++ % contexts_.size()], [this](asio::error_code error, tcp::socket accepted) {
      if (!error) {
        const auto pair = std::make_shared<Pair>(std::move(accepted));
        if (breaks_.came(pair))
          asio::post(pair->client.get_executor(), [this, pair, from = from_] { connect(pair, from); });
      }
      accept();
    });
  }

  /// Until stdin ends.
  void obey() {
    asio::async_read_until(input_, said_, '\n', [this](asio::error_code error, std::size_t) {
      if (error) {
        for (asio::io_context& context : contexts_) context.stop();
        return;
      }
      std::istream words(&said_);
      std::string line;
      std::getline(words, line);
      const Request request(line);
      if (request.name == "cut") breaks_.cut_after(request.number("bytes"));
      else if (request.name == "mute") breaks_.mute();
      else if (request.name == "from") from_ = asio::ip::make_address(request.text("address"));
      else throw std::invalid_argument("there is no '" + line + "'");
      obey();
    });
  }

 private:
  void connect(const std::shared_ptr<Pair>& pair, const asio::ip::address& from) {
    asio::error_code error;
    pair->server.open(tcp::v4(), error);
    if (!error && !from.is_unspecified()) pair->server.bind({from, 0}, error);
    if (error) {
      std::fprintf(stderr, "proxy: %s: %s\n", from.to_string().c_str(), error.message().c_str());
      return;
    }
    pair->server.async_connect(to_, [this, pair](asio::error_code failed) {
      if (failed) {
        std::fprintf(stderr, "proxy: connecting: %s\n", failed.message().c_str());
        return;
      }
      for (auto* const socket : {&pair->client, &pair->server}) {
        asio::error_code ignored;
        socket->set_option(tcp::no_delay(true), ignored);
        if (there_.bytes_per_second > 0)  // the system's buffers are not the line's
          socket->set_option(asio::socket_base::receive_buffer_size(static_cast<int>(piece_bytes)), ignored);
      }
      std::make_shared<Direction>(pair, true, there_, breaks_)->read();
      std::make_shared<Direction>(pair, false, back_, breaks_)->read();
      if (life_ > Clock::duration()) cut_later(pair);
    });
  }

  void cut_later(const std::shared_ptr<Pair>& pair) {
    const auto timer = std::make_shared<asio::steady_timer>(pair->client.get_executor(), life_);
    timer->async_wait([this, timer, known = std::weak_ptr(pair)](asio::error_code) {
      const auto still = known.lock();
      cuts_ += still && still->reset();
    });
  }

  std::deque<asio::io_context>& contexts_;
  std::size_t next_ = 0;
  tcp::acceptor acceptor_;
  asio::posix::stream_descriptor input_;
  asio::streambuf said_;
  const tcp::endpoint to_;
  asio::ip::address from_ = asio::ip::address_v4::any();
  Line &there_, &back_;
  const Clock::duration life_;  // of a connection; 0: as long as its ends like
  Breaks breaks_;
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
    proxy.obey();
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
