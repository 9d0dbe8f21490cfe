#include "channel_tls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "connection_end.h"
#include "errors.h"
#include "program_memory.h"
#include "socket_options.h"

namespace fargpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t record_bytes = 16u << 10;      // the most that one record of TLS holds
constexpr std::size_t batch_bytes_max = 256u << 10;  // encrypted ahead of what the socket takes

class TlsChannel final : public Channel {
 public:
  TlsChannel(int descriptor, std::string peer, const TlsContext& context)
      : socket_(descriptor), peer_(std::move(peer)), context_(context) {
    prepare_socket(socket_);
    ssl_ = SSL_new(context.get());
    BIO* const in = BIO_new_socket(socket_, BIO_NOCLOSE);
    out_ = BIO_new(BIO_s_mem());
    if (!ssl_ || !in || !out_) throw TlsError("no memory for a connection");
    SSL_set_bio(ssl_, in, out_);
  }

  ~TlsChannel() override {
    SSL_free(ssl_);
    ::close(socket_);
  }

  void expect(const std::string& server_name) {
    if (server_name.empty()) return;
    X509_VERIFY_PARAM* const parameters = SSL_get0_param(ssl_);
    unsigned char address[16];
    const bool numeric = ::inet_pton(AF_INET, server_name.c_str(), address) == 1 ||
                         ::inet_pton(AF_INET6, server_name.c_str(), address) == 1;
    if (numeric) {
      X509_VERIFY_PARAM_set1_ip_asc(parameters, server_name.c_str());
    } else {
      X509_VERIFY_PARAM_set1_host(parameters, server_name.c_str(), server_name.size());
      SSL_set_tlsext_host_name(ssl_, server_name.c_str());
    }
  }

  void handshake(bool server, std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    if (server) SSL_set_accept_state(ssl_);
    else SSL_set_connect_state(ssl_);
    while (true) {
      ERR_clear_error();
      errno = 0;
      const int done = SSL_do_handshake(ssl_);
      const int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, done);
      if (error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ) {
        bool known = false;
        auto cause = TlsError::Cause::other;
        const std::string why = reason(error, known, cause);
        try {
          flush();  // the alert that tells the other end
        } catch (const ChannelClosed&) {}
        if (known) throw TlsKnownError(why);
        throw TlsError(why, cause);
      }
      while (!flush()) await(POLLOUT, deadline);
      if (done == 1) return;
      await(POLLIN, deadline);
    }
  }

  // What was encrypted must leave as it is, so bytes count as taken only once the socket has all of what they became:
  // until then the caller shows them again, as it does with bytes that were not taken, and they are passed over.
  std::size_t send_some(std::span<const Bytes> pieces) override {
    const std::lock_guard lock(mutex_);
    if (!flush()) {
      if (hung_up_.load(std::memory_order_relaxed)) end_.tell(peer_, 0);
      return 0;
    }
    const std::size_t done = std::exchange(owed_, 0);
    std::size_t skip = done, encrypted = 0;
    std::array<std::byte, record_bytes> plain;
    for (Bytes piece : pieces) {
      const std::size_t known = std::min(skip, piece.size());
      piece = piece.subspan(known);
      skip -= known;
      while (!piece.empty() && encrypted < batch_bytes_max) {
        const std::size_t part = std::min(piece.size(), plain.size());
        if (!read_program_memory(piece.data(), plain.data(), part)) {
          if (done + encrypted == 0) throw SystemError("memory to be sent cannot be read");
          return settle(done, encrypted);
        }
        ERR_clear_error();
        const int written = SSL_write(ssl_, plain.data(), static_cast<int>(part));
        if (written != static_cast<int>(part))
          throw ChannelClosed("connection to " + peer_ + " lost: " + tls_complaint());
        encrypted += part;
        piece = piece.subspan(part);
      }
    }
    // The caller shows less than before, as one does that may send only so much at a time.
    if (skip > 0) {
      owed_ = skip;
      return done - skip;
    }
    return settle(done, encrypted);
  }

  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (buffer.empty()) return 0;
    const std::lock_guard lock(mutex_);
    std::size_t got = 0;
    while (got < buffer.size()) {
      if (held_begin_ == held_end_ && !receive_record(/*alone=*/got == 0)) break;
      const std::size_t part = std::min(buffer.size() - got, held_end_ - held_begin_);
      if (!write_program_memory(held_.data() + held_begin_, buffer.data() + got, part)) {
        if (got == 0) throw SystemError("memory to receive into cannot be written");
        break;
      }
      held_begin_ += part;
      got += part;
    }
    // The socket does not know of bytes that are kept here. Without them the answer must be no: a reader would wait
    // here for what comes later, and has other things to do.
    more_ = got == buffer.size() && (held_begin_ != held_end_ || SSL_has_pending(ssl_) == 1);
    return got;
  }

  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    const auto deadline = Clock::now() + std::max(timeout, Timeout::zero());
    while (true) {
      const bool more = interest.readable && more_;
      std::array<pollfd, 2> polled{};
      polled[0].fd = socket_;
      polled[0].events =
          static_cast<short>((interest.readable ? POLLIN : 0) | (interest.writable ? POLLOUT | POLLRDHUP : 0));
      polled[1] = {waker ? waker->descriptor() : -1, POLLIN, 0};
      timespec time{};
      if (timeout >= Timeout::zero() && !more) {
        const auto left = std::max<Timeout>(deadline - Clock::now(), Timeout::zero());
        time.tv_sec = left.count() / 1'000'000'000;
        time.tv_nsec = left.count() % 1'000'000'000;
      }
      if (::ppoll(polled.data(), polled.size(), timeout < Timeout::zero() && !more ? nullptr : &time, nullptr) < 0)
        return {};
      if (waker && polled[1].revents) waker->drain();
      if (polled[0].revents & POLLRDHUP) hung_up_ = true;
      const bool closed = polled[0].revents & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP);
      const Interest result{.readable = interest.readable && (more || closed || (polled[0].revents & POLLIN)),
                            .writable = interest.writable && (closed || ((polled[0].revents & POLLOUT) && flushed()))};
      const bool woken = waker && polled[1].revents;
      const bool late = timeout >= Timeout::zero() && Clock::now() >= deadline;
      if (result.readable || result.writable || closed || woken || late) return result;
    }
  }

  void close() noexcept override { ::shutdown(socket_, SHUT_RDWR); }

  int descriptor() const override { return socket_; }

  std::string peer() const override { return peer_; }

 private:
  void await(short events, Clock::time_point deadline) {
    pollfd polled{socket_, events, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) == 0)
      throw ChannelSilent(peer_ + " does not answer");
  }

  // Why a handshake failed, for people; `known`: and what would help.
  std::string reason(int error, bool& known, TlsError::Cause& cause) {
    const long verified = SSL_get_verify_result(ssl_);
    known = verified != X509_V_OK;
    if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH)
      return "its certificate is for other names; reach it by one of those, or have one issued for this one (`fargpu "
             "pki issue --host`)";
    if (verified == X509_V_ERR_CERT_REJECTED)
      return "its certificate is not trusted: it is not the one of this fingerprint";
    if (verified == X509_V_ERR_CERT_HAS_EXPIRED)
      return "its certificate is not trusted: it has expired; the operator of that host has to issue another";
    if (verified == X509_V_ERR_CERT_NOT_YET_VALID)
      return "its certificate is not trusted: it is not valid yet; is this machine's clock right?";
    if (verified != X509_V_OK)
      return std::string("its certificate is not trusted by the authorities known here (") +
             X509_verify_cert_error_string(verified) + ")";
    const unsigned long last = ERR_peek_error();
    if (error == SSL_ERROR_SYSCALL || ERR_GET_REASON(last) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
      cause = TlsError::Cause::closed;
      return "it closed the connection";
    }
    if (ERR_GET_REASON(last) == SSL_R_WRONG_VERSION_NUMBER) {
      cause = TlsError::Cause::not_tls;
      return "what it sends is not TLS";
    }
    return tls_complaint();
  }

  // Whether an error is an alert by which the other end refuses this one's certificate.
  static bool of_certificate(unsigned long error) {
    if (ERR_GET_LIB(error) != ERR_LIB_SSL) return false;
    switch (ERR_GET_REASON(error)) {
      case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:  // a signature is wrong
        return true;
      default: return false;
    }
  }

  // How many of the bytes that are shown for sending the socket has now. Under the lock.
  std::size_t settle(std::size_t done, std::size_t encrypted) {
    if (flush()) return done + encrypted;
    owed_ = encrypted;
    return done;
  }

  bool flushed() {
    const std::lock_guard lock(mutex_);
    try {
      return flush();
    } catch (const ChannelClosed&) {  // as the next sending says
      return true;
    }
  }

  // Gives the socket what was encrypted; true once all of it is gone. Under the lock.
  bool flush() {
    char* data = nullptr;
    auto bytes = static_cast<std::size_t>(BIO_get_mem_data(out_, &data));
    std::size_t sent = 0;
    while (sent < bytes) {
      const ssize_t now = ::send(socket_, data + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now >= 0) {
        sent += static_cast<std::size_t>(now);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR) {
        end_.tell(peer_, errno);
      }
    }
    drop(sent);
    return sent == bytes;
  }

  // Takes what was sent out of the buffer, which cannot be read to nowhere.
  void drop(std::size_t bytes) {
    std::array<char, 16u << 10> nowhere;
    while (bytes > 0)
      bytes -=
          static_cast<std::size_t>(BIO_read(out_, nowhere.data(), static_cast<int>(std::min(bytes, nowhere.size()))));
  }

  // False if none is there yet. `alone`: nothing else is to be told of, so the end may be.
  bool receive_record(bool alone) {
    ERR_clear_error();
    errno = 0;
    const int got = SSL_read(ssl_, held_.data(), static_cast<int>(held_.size()));
    // Before anything is sent, which fails when the other end has closed.
    if (got <= 0 && of_certificate(ERR_peek_error())) throw CertificateRefused(tls_complaint());
    if (BIO_ctrl_pending(out_) > 0) flush();  // what the protocol itself had to answer
    if (got > 0) {
      held_begin_ = 0;
      held_end_ = static_cast<std::size_t>(got);
      return true;
    }
    const int error = SSL_get_error(ssl_, got);
    if (error == SSL_ERROR_WANT_READ) return false;
    if (!alone) return false;  // next time
    if (error == SSL_ERROR_ZERO_RETURN || ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
      end_.tell(peer_, 0);
    if (const int number = errno; error == SSL_ERROR_SYSCALL && number != 0) end_.tell(peer_, number);
    throw ChannelClosed("connection to " + peer_ + " lost: " + tls_complaint());
  }

  int socket_;
  std::string peer_;
  TlsContext context_;
  std::mutex mutex_;  // over all below, up to the atomics
  SSL* ssl_ = nullptr;
  BIO* out_ = nullptr;  // what was encrypted and not sent yet; ssl_ owns it
  std::array<std::byte, record_bytes> held_;
  std::size_t owed_ = 0;                       // bytes that were encrypted, and not reported as taken
  std::size_t held_begin_ = 0, held_end_ = 0;  // decrypted, and not asked for yet
  std::atomic<bool> more_{false};              // something is there without the socket's knowing
  std::atomic<bool> hung_up_{false};
  ConnectionEnd end_;
};

}  // namespace

std::unique_ptr<Channel> connect_tls(int descriptor, std::string peer, const TlsContext& context,
                                     const std::string& server_name, std::chrono::milliseconds timeout) {
  auto channel = std::make_unique<TlsChannel>(descriptor, std::move(peer), context);
  channel->expect(server_name);
  channel->handshake(/*server=*/false, timeout);
  return channel;
}

std::unique_ptr<Channel> accept_tls(int descriptor, std::string peer, const TlsContext& context,
                                    std::chrono::milliseconds timeout) {
  auto channel = std::make_unique<TlsChannel>(descriptor, std::move(peer), context);
  channel->handshake(/*server=*/true, timeout);
  return channel;
}

}  // namespace fargpu
