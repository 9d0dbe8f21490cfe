#pragma once
// One way of a network, and what goes over it by one connection.

#include <algorithm>
#include <asio.hpp>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "proxy_breaks.h"

namespace bench {

using Clock = std::chrono::steady_clock;

constexpr std::size_t piece_bytes = 256 << 10;

inline thread_local Clock::time_point last_byte;

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
  Direction(std::shared_ptr<Pair> pair, bool there, Line& line, Breaks& breaks)
      : pair_(std::move(pair)),
        from_(there ? pair_->client : pair_->server),
        to_(there ? pair_->server : pair_->client),
        line_(line),
        breaks_(breaks),
        timer_(from_.get_executor()) {}
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
    from_.async_read_some(
        asio::buffer(reading_),
        [self = shared_from_this()](asio::error_code error, std::size_t bytes) { self->arrived(error ? 0 : bytes); });
  }

 private:
  struct Piece {
    std::vector<char> buffer;
    std::size_t bytes = 0;  // of it; 0: the end
    Clock::time_point due;
    bool breaks = false;  // behind it all connections break
  };

  void arrived(std::size_t bytes) {
    if (pair_->muted) return;
    const auto now = Clock::now();
    last_byte = now;
    const std::size_t passing = breaks_.passing(bytes);
    pieces_.push_back({std::move(reading_), passing, line_.takes(passing, now), passing < bytes});
    held_ += passing;
    line_.held += passing;
    if (!writing_) forward();
    if (bytes && passing == bytes) read();
  }

  void forward() {
    if (pieces_.empty()) return;
    writing_ = true;
    if (pieces_.front().due <= Clock::now()) return write();
    timer_.expires_at(pieces_.front().due);
    timer_.async_wait([self = shared_from_this()](asio::error_code) { self->write(); });
  }

  void write() {
    if (pair_->muted) return;
    if (pieces_.front().breaks && pieces_.front().bytes == 0) return breaks_.cut();
    if (pieces_.front().bytes == 0) {
      asio::error_code ignored;
      to_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      pieces_.clear();
      return;
    }
    asio::async_write(to_, asio::buffer(pieces_.front().buffer, pieces_.front().bytes),
                      [self = shared_from_this()](asio::error_code error, std::size_t) { self->written(error); });
  }

  void written(asio::error_code error) {
    if (pair_->muted) return;
    if (pieces_.front().breaks) return breaks_.cut();
    if (error) {  // nobody takes it: the sender hears of it by the end of the connection
      asio::error_code ignored;
      from_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
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

  const std::shared_ptr<Pair> pair_;
  asio::ip::tcp::socket &from_, &to_;
  Line& line_;
  Breaks& breaks_;
  asio::steady_timer timer_;
  std::vector<char> reading_;
  std::deque<Piece> pieces_;
  std::vector<std::vector<char>> spare_;  // memory that is used again, as new memory costs more than copying
  std::size_t held_ = 0;
  bool writing_ = false, paused_ = false;
};

}  // namespace bench
