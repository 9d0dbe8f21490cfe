#include "passed_descriptors.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace fargpu::server {
namespace {

#ifndef SO_PASSRIGHTS
constexpr int SO_PASSRIGHTS = 83;  // of Linux 6.16
#endif

/// While it is armed, signals come to the thread that made it: the kernel waits for none of what a socket has to send
/// (SO_LINGER) with a signal there.
class Hurry {
 public:
  Hurry() {
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &nothing, nullptr);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGALRM;
    event._sigev_un._tid = ::gettid();  // older headers have no other name for it
    made_ = ::timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  void set(std::chrono::nanoseconds interval) {
    const timespec time{0, interval.count()};
    const itimerspec often{time, time};
    if (made_) ::timer_settime(timer_, 0, &often, nullptr);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

/// Its thread is started for the first descriptor, and ends with the process.
class Closer {
 public:
  void add(int descriptor) {
    const std::lock_guard lock(mutex_);
    if (!started_) std::thread([this] { loop(); }).detach();
    started_ = true;
    descriptors_.push_back(descriptor);
    changed_.notify_one();
  }

 private:
  [[noreturn]] void loop() {
    constexpr auto patience = std::chrono::milliseconds(1);
    Hurry hurry;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !descriptors_.empty(); });
      const std::vector<int> some = std::exchange(descriptors_, {});
      lock.unlock();
      hurry.set(patience);
      for (const int descriptor : some) ::close(descriptor);
      hurry.set({});
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> descriptors_;
  bool started_ = false;
};

}  // namespace

void keep_in_order(int socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_OOBINLINE, &yes, sizeof(yes));
}

void refuse_descriptors(int socket) {
  const int no = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
}

// A look takes nothing out of the socket, and shows whether there are descriptors.
ssize_t receive_without_descriptors(int socket, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const ssize_t seen = ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  if (seen <= 0) return seen;
  if (message.msg_flags & MSG_CTRUNC) {
    errno = EBADMSG;
    return -1;
  }
  return ::recv(socket, buffer.data(), static_cast<std::size_t>(seen), MSG_DONTWAIT);
}

std::optional<LinkPacket> receive_from_worker(int link) {
  std::vector<int> others;
  auto packet = receive_link(link, &others);
  for (const int descriptor : others) close_aside(descriptor);
  if (packet) packet->had_more = !others.empty();
  return packet;
}

void hang_up_aside(int connection) noexcept {
  if (connection >= 0) ::shutdown(connection, SHUT_RDWR);
  close_aside(connection);
}

// Without memory or a thread for it, it is closed here.
void close_aside(int descriptor) noexcept {
  static Closer& closer = *new Closer;  // its thread may outlive main()
  if (descriptor < 0) return;
  try {
    closer.add(descriptor);
  } catch (const std::exception&) {
    ::close(descriptor);
  }
}

}  // namespace fargpu::server
