#include "keys.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace fargpu::client::cli {
namespace {

constexpr int passing[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};

termios before, during;  // for the handler

// The signal does what it does otherwise, with the terminal as it was. A stopped process goes on behind that. Only
// calls
// that are allowed in handlers.
void pass(int signal) {
  const int error = errno;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
  struct sigaction ours, theirs{};
  theirs.sa_handler = SIG_DFL;
  ::sigaction(signal, &theirs, &ours);
  sigset_t one, blocked;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::raise(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, &blocked);
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  ::sigaction(signal, &ours, nullptr);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &during);
  errno = error;
}

}  // namespace

Keys::Keys() {
  if (::tcgetpgrp(STDIN_FILENO) != ::getpgrp() || ::tcgetattr(STDIN_FILENO, &before) != 0) return;
  during = before;
  during.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  during.c_cc[VMIN] = 1;
  during.c_cc[VTIME] = 0;
  there_ = true;
  for (const int signal : passing) {
    struct sigaction now, ours{};
    ours.sa_handler = pass;
    ours.sa_flags = SA_RESTART;
    // A signal that the starting process had ignored stays ignored.
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::sigaction(signal, &ours, nullptr);
  }
  ::tcsetattr(STDIN_FILENO, TCSANOW, &during);
}

Keys::~Keys() {
  if (!there_) return;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
  for (const int signal : passing) {
    struct sigaction now;
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == pass) ::signal(signal, SIG_DFL);
  }
}

std::optional<char> Keys::next(std::chrono::duration<double> time) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  while (there_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return std::nullopt;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, static_cast<int>(left)) <= 0) continue;
    char key;
    const ssize_t bytes = ::read(STDIN_FILENO, &key, 1);
    if (bytes == 1) return key;
    if (bytes == 0 || errno != EINTR) break;  // the terminal has gone
  }
  std::this_thread::sleep_until(end);
  return std::nullopt;
}

}  // namespace fargpu::client::cli
