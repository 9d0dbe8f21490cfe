// A worker's session before a client that sends anything, over the fake driver, which believes what it is told: what
// the worker lets through to it that it should not ends the process. An input is a session's frames as they travel;
// their numbers are put right here, so that what is in them counts.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "calls_stream.capnp.h"
#include "fuzz.h"
#include "opcodes.h"
#include "operations.capnp.h"
#include "protocol/errors.h"
#include "protocol/handle.h"
#include "protocol/message.h"
#include "server/worker/session/session.h"
#include "tests/fake_driver/fake.h"

namespace fargpu {
namespace {

// Where the client's tests have their windows while they are recorded (wire/main.cpp), whose calls are inputs here.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t device_base = 0x5500'0000'0000, host_base = 0x7e80'4000'0000;
#else
constexpr std::uint64_t device_base = 0x1100'0000'0000, host_base = 0x2b5d'4000'0000;
#endif
constexpr Window device_window{device_base, std::uint64_t{64} << 30}, host_window{host_base, std::uint64_t{64} << 30};
constexpr std::uint64_t device_bytes_max = 8u << 20,
                        host_bytes_max = 16u << 20;  // what there is of it is filled and copied

/// A client that sends its frames and leaves. What it is sent must be frames too.
class Client final : public Channel {
 public:
  explicit Client(std::vector<std::byte> frames) : frames_(std::move(frames)) {}
  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::size_t sent = 0;
    for (const Bytes& piece : pieces) {
      answers_.insert(answers_.end(), piece.begin(), piece.end());
      sent += piece.size();
    }
    take_answers();
    return sent;
  }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (place_ == frames_.size()) throw ChannelClosed("the client has left");
    const std::size_t bytes = std::min(buffer.size(), frames_.size() - place_);
    std::copy_n(frames_.begin() + static_cast<std::ptrdiff_t>(place_), bytes, buffer.begin());
    place_ += bytes;
    return bytes;
  }
  Interest wait(Interest interest, Timeout, Waker* waker) override {
    if (waker) waker->drain();
    return interest;
  }
  void close() noexcept override { place_ = frames_.size(); }
  std::string peer() const override { return "a client that sends anything"; }

 private:
  void take_answers() {
    std::size_t at = 0;
    while (answers_.size() - at >= sizeof(FrameHeader)) {
      FrameHeader header;
      std::memcpy(&header, answers_.data() + at, sizeof(header));
      check_frame_header(header);
      const std::size_t whole = sizeof(header) + header.message_bytes + padded(header.bulk_bytes);
      if (answers_.size() - at < whole) break;
      fuzz::expect(header.sequence == ++answered_, "a frame of the worker out of its order");
      at += whole;
    }
    answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  const std::vector<std::byte> frames_;
  std::size_t place_ = 0;
  std::vector<std::byte> answers_;
  std::uint32_t answered_ = 1;  // attach
};

// The input's frames with lengths and numbers that fit.
std::vector<std::byte> frames_of(fuzz::Bytes input) {
  std::vector<std::byte> frames;
  for (std::uint32_t sequence = 2; !input.empty(); ++sequence) {  // behind attach
    auto header = input.take<FrameHeader>();
    const auto message = input.take(header.message_bytes % limits::message_bytes_max / 8 * 8);
    const auto bulk = input.take(padded(header.bulk_bytes % limits::bulk_bytes_max));
    header.kind = header.kind == FrameKind::control ? FrameKind::control : FrameKind::call;
    header.message_bytes = static_cast<std::uint32_t>(message.size() / 8 * 8);
    header.bulk_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(header.bulk_bytes, bulk.size()));
    header.sequence = sequence;
    const auto add = [&](std::span<const std::byte> bytes) { frames.insert(frames.end(), bytes.begin(), bytes.end()); };
    add(std::as_bytes(std::span(&header, 1)));
    add(std::as_bytes(message.first(header.message_bytes)));
    add(std::as_bytes(bulk.first(header.bulk_bytes)));
    frames.resize(frames.size() + padded(header.bulk_bytes) - header.bulk_bytes);
  }
  return frames;
}

void reserve_windows(server::DriverTable& driver) {
  CUdeviceptr got = 0;
  fuzz::expect(driver.cuMemAddressReserve(&got, device_window.bytes, 0, device_window.base, 0) == CUDA_SUCCESS &&
                   got == device_window.base,
               "no room for the device window");
  void* const wish = reinterpret_cast<void*>(host_window.base);
  fuzz::expect(::mmap(wish, host_window.bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == wish,
               "no room for the host window");
}

}  // namespace

namespace fuzz {

std::vector<Input> seeds() {
  std::vector<Input> all;
  Input session;
  const auto add = [&](Opcode opcode, std::uint32_t context, MessageWriter& writer) {
    FrameHeader header;
    header.kind = FrameKind::call;
    header.opcode = static_cast<std::uint16_t>(opcode);
    header.thread = 1;
    header.subject = context;
    header.detail = call_wants_reply;
    const auto message = writer.finish();
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    append_value(session, header);
    append(session, message);
  };
  const Handle context(HandleKind::context, 1, 1);
  MessageWriter open;
  open.root<wire::OpenContext>().setContext(context.value());
  open.root<wire::OpenContext>().setPrimary(true);
  add(Opcode::openContext, 0, open);
  MessageWriter back;
  back.root<wire::BackMemory>().setAddress(device_window.base);
  back.root<wire::BackMemory>().setBytes(2u << 20);
  add(Opcode::backMemory, context.id(), back);
  MessageWriter wait;
  wait.root<wire::CuStreamSynchronize>().setHStream(1);
  add(Opcode::cuStreamSynchronize, context.id(), wait);
  const Input begun = session;
  all.push_back(session);
  // Every call once, with nothing in it.
  for (unsigned opcode = 1; opcode <= opcode_max; ++opcode) {
    session = begun;
    MessageWriter nothing;
    add(static_cast<Opcode>(opcode), context.id(), nothing);
    all.push_back(session);
  }
  return all;
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  static fake::FakeDriver& driver = []() -> fake::FakeDriver& {
    fake::FakeDriver& loaded = fake::FakeDriver::instance();
    reserve_windows(loaded.table());
    return loaded;
  }();
  driver->reset();
  Client client(frames_of(fuzz::Bytes({data, size})));
  server::SessionOptions options;
  options.id = 1;
  options.device_window = device_window;
  options.host_window = host_window;
  options.devices = {0, 1};
  options.memory_limits = {device_bytes_max, device_bytes_max};
  options.host_bytes_max = host_bytes_max;
  options.scrub = size % 4 == 1;  // now and then: its memory is made aside
  {
    server::Session session(client, driver.table(), options);
    try {
      (void)session.run();
    } catch (const ProtocolError&) {
    } catch (const kj::Exception&) {}
  }
  fuzz::expect(driver->memory_bytes() == 0, "memory of the device that outlives its session");
  return 0;
}
