// The first messages of strangers: hello, attach and its ticket, and whatever else a control message can be. A worker
// that is given one answers or leaves, and every part of it can be read or is refused as malformed.

#include <sys/mman.h>

#include <algorithm>

#include "control.capnp.h"
#include "fuzz.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "server/worker/session/attach.h"
#include "tests/fake_driver/fake.h"

namespace fargpu {
namespace {

/// Sends its bytes, then leaves.
class Stranger final : public Channel {
 public:
  explicit Stranger(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::size_t sent = 0;
    for (const Bytes& piece : pieces) sent += piece.size();
    return sent;
  }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (rest_.empty()) throw ChannelClosed("the stranger has left");
    const std::size_t bytes = std::min(buffer.size(), rest_.size());
    std::copy_n(rest_.begin(), bytes, buffer.begin());
    rest_ = rest_.subspan(bytes);
    return bytes;
  }
  Interest wait(Interest interest, Timeout, Waker* waker) override {
    if (waker) waker->drain();
    return interest;
  }
  void close() noexcept override { rest_ = {}; }
  std::string peer() const override { return "a stranger"; }

 private:
  std::span<const std::byte> rest_;
};

fuzz::Input framed(const std::function<void(wire::Control::Builder)>& fill) {
  MessageWriter writer;
  fill(writer.root<wire::Control>());
  const auto message = writer.finish();
  FrameHeader header;
  header.sequence = 1;
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  fuzz::Input input;
  fuzz::append_value(input, header);
  fuzz::append(input, message);
  return input;
}

}  // namespace

namespace fuzz {

std::vector<Input> seeds() {
  const Input attach = framed([](wire::Control::Builder control) {
    auto message = control.initAttach();
    message.setProtocolVersion(wire::PROTOCOL_VERSION);
    message.setDriverVersion(13000);
    const kj::byte ticket[32] = {1, 2, 3};
    message.setTicket(capnp::Data::Reader(ticket, sizeof(ticket)));
    const auto range = [](wire::Range::Builder r, std::uint64_t base) {
      r.setBase(base);
      r.setBytes(std::uint64_t{1} << 30);
    };
    range(message.initDeviceWindows(2)[0], 0x1000'0000'0000);
    range(message.getDeviceWindows()[1], 0x3000'0000'0000);
    range(message.initHostWindows(1)[0], 0x2000'0000'0000);
  });
  const Input hello = framed([](wire::Control::Builder control) {
    auto message = control.initHello();
    message.setProtocolVersion(wire::PROTOCOL_VERSION);
  });
  const Input goodbye = framed([](wire::Control::Builder control) { control.initGoodbye().setText("that was all"); });
  return {attach, hello, goodbye};
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  Stranger channel(std::as_bytes(std::span(data, size)));
  try {
    const std::vector<std::byte> message = receive_control(channel, std::chrono::seconds(1));
    try {
      MessageReader reader(message);
      capnp::MallocMessageBuilder copy;
      copy.setRoot(reader.root<wire::Control>());
    } catch (const kj::Exception&) {}
    server::AttachOptions options;
    options.session.id = 1;
    options.session.devices = {0};
    options.session.one_process = true;
    (void)server::serve_session(channel, message, fake::FakeDriver::instance().table(), options);
  } catch (const ChannelClosed&) {
  } catch (const ProtocolError&) {}
  return 0;
}
