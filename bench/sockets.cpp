// What TCP itself does on this machine, without CUDA: the yardstick of the other programs.
//
//   sockets serve                says its port on stdout and serves until stdin ends
//   sockets HOST PORT            told what to do as asked.h says: pingpong and stream
//
// Both ends wait in the same way: blocking in the kernel, or asking again and again.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "asked.h"

namespace bench {
namespace {

// What a client says first.
struct Hello {
  std::uint32_t kind;  // of Kind
  std::uint32_t spin;
  std::uint64_t bytes;  // of a ping, or of a stream
};
enum Kind : std::uint32_t { ping, to_server, to_client, both_ways };
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 40;
constexpr std::size_t piece = std::size_t{4} << 20;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0) throw std::runtime_error(std::string("no socket: ") + std::strerror(errno));
    const int on = 1;
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  Socket(const Socket&) = delete;
  ~Socket() { ::close(descriptor_); }

  /// False at the end of the connection.
  bool receive(void* into, std::size_t bytes, bool spin) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t got = ::recv(descriptor_, static_cast<char*>(into) + done, bytes - done, spin ? MSG_DONTWAIT : 0);
      if (got > 0) done += static_cast<std::size_t>(got);
      else if (got == 0) return false;
      else if (errno != EINTR && errno != EAGAIN)
        throw std::runtime_error(std::string("receiving: ") + std::strerror(errno));
    }
    return true;
  }

  void send(const void* from, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t sent = ::send(descriptor_, static_cast<const char*>(from) + done, bytes - done, MSG_NOSIGNAL);
      if (sent >= 0) done += static_cast<std::size_t>(sent);
      else if (errno != EINTR) throw std::runtime_error(std::string("sending: ") + std::strerror(errno));
    }
  }

 private:
  int descriptor_;
};

/// A random piece, again and again.
std::vector<char> random_bytes(std::size_t size) {
  std::vector<char> bytes(size);
  std::mt19937_64 random(size);
  for (std::size_t i = 0; i + 8 <= std::min(size, piece); i += 8) {
    const std::uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  for (std::size_t i = piece; i < size; i += piece)
    std::memcpy(bytes.data() + i, bytes.data(), std::min(piece, size - i));
  return bytes;
}

void send_stream(Socket& socket, const std::vector<char>& from, std::uint64_t bytes) {
  for (std::uint64_t left = bytes; left > 0;) {
    const std::size_t part = std::min<std::uint64_t>(left, from.size());
    socket.send(from.data(), part);
    left -= part;
  }
}

void receive_stream(Socket& socket, std::vector<char>& into, std::uint64_t bytes) {
  for (std::uint64_t left = bytes; left > 0;) {
    const std::size_t part = std::min<std::uint64_t>(left, into.size());
    if (!socket.receive(into.data(), part, false)) throw std::runtime_error("the stream broke off");
    left -= part;
  }
}

/// Both ways at once, so many bytes each.
void exchange(Socket& socket, const std::vector<char>& from, std::vector<char>& into, std::uint64_t bytes) {
  std::string failure;
  std::thread sender([&] {
    try {
      send_stream(socket, from, bytes);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  });
  try {
    receive_stream(socket, into, bytes);
  } catch (...) {
    sender.join();
    throw;
  }
  sender.join();
  if (!failure.empty()) throw std::runtime_error(failure);
}

// Requests follow each other on a connection: a byte says that the buffer of a stream is ready, another asks for the
// next, so that nothing is still to be prepared when time is taken.
void serve(int descriptor) {
  try {
    Socket socket(descriptor);
    Hello hello{};
    if (!socket.receive(&hello, sizeof hello, false) || hello.bytes == 0 || hello.bytes > most_bytes ||
        hello.kind > both_ways)
      return;
    if (hello.kind == ping) {
      std::vector<char> message(std::min<std::uint64_t>(hello.bytes, piece));
      while (socket.receive(message.data(), message.size(), hello.spin != 0))
        socket.send(message.data(), message.size());
      return;
    }
    std::vector<char> buffer = random_bytes(piece);
    const std::vector<char> sent = hello.kind == both_ways ? buffer : std::vector<char>();
    char go = 0;
    socket.send(&go, 1);
    while (socket.receive(&go, 1, false)) {
      if (hello.kind == to_client) {
        send_stream(socket, buffer, hello.bytes);
      } else if (hello.kind == both_ways) {
        exchange(socket, sent, buffer, hello.bytes);
        socket.send(&go, 1);
      } else {
        receive_stream(socket, buffer, hello.bytes);
        socket.send(&go, 1);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sockets: %s\n", error.what());
  }
}

int serve_all() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, 64) != 0 || ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error(std::string("listening: ") + std::strerror(errno));
  std::printf("port %d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  while (true) {
    pollfd polled[] = {{listener, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno != EINTR) throw std::runtime_error(std::strerror(errno));
    if (polled[1].revents) ::_exit(0);  // the starter is gone; threads may be in the middle of something
    if (!polled[0].revents) continue;
    const int client = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) std::thread(serve, client).detach();
  }
}

class Client {
 public:
  Client(const std::string& host, const std::string& port) {
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<std::uint16_t>(std::stoul(port)));
    if (::inet_pton(AF_INET, host.c_str(), &address_.sin_addr) != 1)
      throw std::invalid_argument("'" + host + "' is no IPv4 address");
  }

  void pingpong(const Request& request, Answer& answer) {
    const bool spin = request.number("spin") != 0;
    std::vector<char> message(request.number("bytes"));
    const auto socket = connect({ping, spin, message.size()});
    std::vector<double> samples(request.number("count") + 20);
    for (double& sample : samples) {
      const double begin = now();
      socket->send(message.data(), message.size());
      if (!socket->receive(message.data(), message.size(), spin)) throw std::runtime_error("the server has gone");
      sample = now() - begin;
    }
    answer.add_samples("seconds", std::vector<double>(samples.begin() + 20, samples.end()));  // the first ones warm up
  }

  /// `bytes` over `streams` connections at once, `count` times, and until so many `milliseconds` are over; with
  /// direction=both as many each way. The memory of this end is a piece again and again, which caches hold, or with
  /// `memory=whole` as large as what is sent or received, as a program's is.
  void stream(const Request& request, Answer& answer) {
    const std::uint64_t streams = request.number("streams"), bytes = request.number("bytes") / streams;
    const std::string memory = request.text("memory", "piece");
    if (memory != "piece" && memory != "whole")
      throw std::invalid_argument("memory is piece or whole, not '" + memory + "'");
    const std::size_t buffer_bytes = memory == "piece" ? piece : std::max<std::size_t>(bytes, 1);
    const Kind kind = kind_of(request.text("direction"));
    std::vector<std::unique_ptr<Socket>> sockets;
    std::vector<std::vector<char>> sent, received;
    for (std::uint64_t i = 0; i < streams; ++i) {
      sockets.push_back(connect({kind, 0, bytes}));
      sent.push_back(kind == to_client ? std::vector<char>() : random_bytes(buffer_bytes));
      received.push_back(kind == to_server ? std::vector<char>() : random_bytes(buffer_bytes));
    }
    for (const auto& socket : sockets) {
      char ready = 0;
      if (!socket->receive(&ready, 1, false)) throw std::runtime_error("the server has gone");
    }
    std::vector<std::string> failures(streams);
    bool more = true;  // written while all threads are at the barrier
    std::barrier all(static_cast<std::ptrdiff_t>(streams) + 1);
    std::vector<std::thread> threads;  // for all rounds: starting them takes as long as some of what is measured
    for (std::uint64_t i = 0; i < streams; ++i)
      threads.emplace_back([&, i] {
        while (true) {
          all.arrive_and_wait();
          if (!more) return;
          try {
            if (failures[i].empty()) carry(*sockets[i], kind, sent[i], received[i], bytes);
          } catch (const std::exception& error) {
            failures[i] = error.what();
          }
          all.arrive_and_wait();
        }
      });
    std::vector<double> samples;
    const std::uint64_t count = request.number("count");
    const double least = 1e-3 * static_cast<double>(request.number("milliseconds", 0)), cpu = process_cpu(),
                 start = now();
    const auto failed = [&] {
      return std::any_of(failures.begin(), failures.end(), [](const std::string& one) { return !one.empty(); });
    };
    while (!failed() && (samples.size() < count || now() - start < least)) {
      const double begin = now();
      all.arrive_and_wait();
      all.arrive_and_wait();
      samples.push_back(now() - begin);
    }
    const double seconds = now() - start, made = static_cast<double>(samples.size());
    const double cpu_seconds = process_cpu() - cpu;
    more = false;
    all.arrive_and_wait();
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures)
      if (!failure.empty()) throw std::runtime_error(failure);
    answer.add_samples("copy", samples);
    answer.add("made", made);
    answer.add("seconds", seconds / made);
    answer.add("copy_cpu", cpu_seconds / made);
  }

 private:
  static Kind kind_of(const std::string& direction) {
    if (direction == "htod") return to_server;
    if (direction == "dtoh") return to_client;
    if (direction == "both") return both_ways;
    throw std::invalid_argument("direction is htod, dtoh or both, not '" + direction + "'");
  }

  /// One turn of a stream, to the server's word that it has everything.
  static void carry(Socket& socket, Kind kind, const std::vector<char>& sent, std::vector<char>& received,
                    std::uint64_t bytes) {
    char go = 1;
    socket.send(&go, 1);
    if (kind == to_server) send_stream(socket, sent, bytes);
    else if (kind == to_client) receive_stream(socket, received, bytes);
    else exchange(socket, sent, received, bytes);
    if (kind != to_client && !socket.receive(&go, 1, false)) throw std::runtime_error("the server has gone");
  }

  std::unique_ptr<Socket> connect(const Hello& hello) const {
    auto socket = std::make_unique<Socket>(connected());
    socket->send(&hello, sizeof hello);
    return socket;
  }

  int connected() const {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0) return descriptor;
    const int error = errno;
    ::close(descriptor);
    throw std::runtime_error(std::string("connecting: ") + std::strerror(error));
  }

  sockaddr_in address_{};
};

}  // namespace
}  // namespace bench

int main(int count, char** words) {
  try {
    if (count == 2 && std::string(words[1]) == "serve") return bench::serve_all();
    if (count == 3) {
      bench::Client client(words[1], words[2]);
      return bench::answer_requests({
          {"pingpong", [&](const bench::Request& r, bench::Answer& a) { client.pingpong(r, a); }},
          {"stream", [&](const bench::Request& r, bench::Answer& a) { client.stream(r, a); }},
      });
    }
    std::fprintf(stderr, "usage: sockets serve | sockets HOST PORT\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sockets: %s\n", error.what());
  }
  return 2;
}
