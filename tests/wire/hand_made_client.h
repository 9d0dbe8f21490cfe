#pragma once
// A client that need not keep to the protocol, before a worker in this process.

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <thread>
#include <utility>

#include "calls_graph.capnp.h"
#include "fixture.h"
#include "opcodes.h"
#include "operations.capnp.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/handle.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "server/worker/session/attach.h"

namespace fargpu::test {

/// Sends what the other end may not want to hear to the end.
inline void send_until_cut(Channel& channel, std::span<const Channel::Bytes> pieces) {
  try {
    send_all(channel, pieces);
  } catch (const ChannelClosed&) {}
}

/// A worker in this process with a hand-made client before it.
class HandMadeClient {
 public:
  /// Where kernels see host memory; ThreadSanitizer has the usual place. Not where the client would have it: it is in
  /// this process too.
#if defined(__SANITIZE_THREAD__)
  static constexpr std::uint64_t host_window = 0x7e90'4000'0000;
#else
  static constexpr std::uint64_t host_window = 0x2b5d'4000'0000;
#endif

  explicit HandMadeClient(std::uint64_t host_bytes_max = 0, bool shares_memory = false, bool scrub = false,
                          std::size_t output_bytes_max = server::SessionOptions().output_bytes_max,
                          std::vector<unsigned> sm_groups = {}) {
    auto [near, far] = shares_memory ? make_sockets() : make_memory_channel();
    channel_ = std::move(near);
    worker_ = std::thread([this, host_bytes_max, scrub, output_bytes_max, sm_groups, far = std::move(far)] {
      server::AttachOptions options;
      options.session.id = 5;
      options.session.devices = {0};
      options.session.one_process = true;
      options.session.host_bytes_max = host_bytes_max;
      options.session.scrub = scrub;
      options.session.output_bytes_max = output_bytes_max;
      if (!sm_groups.empty())
        options.session.parts = {server::choose_sm_groups(fake::FakeDriver::instance().table(), 0, sm_groups)};
      const auto attach = receive_control(*far, limits::lease_timeout);
      why_ = server::serve_session(*far, attach, fake::FakeDriver::instance().table(), options);
    });
    send_control(*channel_, 1, [&](wire::Control::Builder control) {
      auto attach = control.initAttach();
      attach.setSharedMemory(shares_memory);
      attach.setProtocolVersion(wire::PROTOCOL_VERSION);
      attach.setDriverVersion(13000);
      const auto range = [](wire::Range::Builder r, std::uint64_t base) {
        r.setBase(base);
        r.setBytes(std::uint64_t{64} << 30);
      };
      range(attach.initDeviceWindows(1)[0], 0x1000'0000'0000);
      range(attach.initHostWindows(1)[0], host_window);
    });
    const auto answer = receive_control(*channel_, limits::lease_timeout);
    MessageReader reader(answer);
    REQUIRE(reader.root<wire::Control>().getAttachAnswer().getFailure().getReason() == wire::Failure::Reason::NONE);
    credit_bytes_ = reader.root<wire::Control>().getAttachAnswer().getCreditBytes();
    const std::uint64_t ring_bytes = reader.root<wire::Control>().getAttachAnswer().getRingBytes();
    REQUIRE((ring_bytes > 0) == shares_memory);
    if (!shares_memory) return;
    const int memory = next_descriptor();
    channel_ = make_shared_channel(std::move(channel_), memory, ring_bytes, true);
    ::close(memory);
  }
  /// The next descriptor that the worker sends.
  int next_descriptor() {
    while (true) {
      if (const int descriptor = channel_->receive_descriptor(); descriptor >= 0) return descriptor;
      std::array<std::byte, 1> word;
      channel_->wait({.readable = true}, Channel::forever);
      if (!channel_->shares_memory()) channel_->receive_some(word);
    }
  }
  Channel& channel() { return *channel_; }
  ~HandMadeClient() {
    if (worker_.joinable()) {
      channel_->close();
      worker_.join();
    }
  }

  /// Header as a proper client would fill it, to be spoilt.
  FrameHeader call(Opcode opcode, bool wants_reply = true) {
    FrameHeader h;
    h.kind = FrameKind::call;
    h.opcode = static_cast<std::uint16_t>(opcode);
    h.sequence = ++sequence_;
    h.thread = 1;
    h.subject = context_;
    h.detail = wants_reply ? std::uint32_t{call_wants_reply} : 0;
    return h;
  }
  void send(FrameHeader header, std::span<const std::byte> message = {}, std::span<const std::byte> bulk = {}) {
    if (header.message_bytes == 0) header.message_bytes = static_cast<std::uint32_t>(message.size());
    if (header.bulk_bytes == 0) header.bulk_bytes = static_cast<std::uint32_t>(bulk.size());
    const std::byte zeros[8] = {};
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(&header, 1)), message, bulk,
                                                 std::span(zeros).first(padded(bulk.size()) - bulk.size())};
    send_until_cut(*channel_, pieces);
  }
  template <class Request, class Fill>
  void send_call(Opcode opcode, Fill&& fill, std::span<const std::byte> bulk = {}, bool wants_reply = true) {
    MessageWriter writer;
    fill(writer.root<Request>());
    send(call(opcode, wants_reply), writer.finish(), bulk);
  }
  void tell(std::span<const std::byte> message, std::span<const std::byte> bulk = {}) {
    FrameHeader header = call({});
    header.kind = FrameKind::control;
    send(header, message, bulk);
  }
  /// The result of the next reply frame; other frames are passed over.
  CUresult reply() {
    for (;;) {
      const FrameHeader header = next_frame([](wire::Control::Reader) {});
      if (header.kind == FrameKind::reply) return static_cast<CUresult>(header.detail);
    }
  }
  /// Until a control message comes that is `wanted`; other frames are passed over.
  template <class Wanted>
  void await(Wanted&& wanted) {
    for (bool found = false; !found;) next_frame([&](wire::Control::Reader control) { found = wanted(control); });
  }
  void open_context() {
    send_call<wire::OpenContext>(Opcode::openContext, [](wire::OpenContext::Builder in) {
      in.setContext(Handle(HandleKind::context, 1, 1).value());
      in.setPrimary(true);
    });
    REQUIRE(reply() == CUDA_SUCCESS);
    context_ = Handle(HandleKind::context, 1, 1).id();
  }
  /// That the worker has granted.
  std::uint64_t credit_bytes() const { return credit_bytes_; }
  /// That was taken, and is settled as far as is known.
  std::uint64_t settled() const { return settled_; }
  /// How many calls that nobody waited for are known to have failed.
  unsigned late_errors() const { return late_errors_; }
  /// The last word that is known to have been changed by the GPU too, since this was asked; 0 for none.
  std::uint64_t lost_word() { return std::exchange(lost_word_, 0); }
  /// What the program would have found on its standard output and error by now.
  const std::string& printed() const { return printed_; }
  /// The next graph of those that are created, and a node of it.
  std::uint64_t create_graph() {
    send_call<wire::CuGraphCreate>(Opcode::cuGraphCreate, [](auto) {});
    REQUIRE(reply() == CUDA_SUCCESS);
    return Handle(HandleKind::graph, Handle::worker_index_first + graphs_++, 1).value();
  }
  template <class Fill>
  CUresult add_node(std::uint64_t graph, Fill&& fill) {
    send_call<wire::AddNode>(Opcode::addNode, [&](wire::AddNode::Builder in) {
      in.setGraph(graph);
      fill(in.initParameters());
    });
    return reply();
  }
  /// Why the worker ended.
  std::string worker_end() {
    worker_.join();
    return why_;
  }

 private:
  template <class Heard>
  FrameHeader next_frame(Heard&& heard) {
    FrameHeader header;
    read(std::as_writable_bytes(std::span(&header, 1)));
    std::vector<std::byte> rest(header.message_bytes + padded(header.bulk_bytes));
    read(rest);
    if (header.kind != FrameKind::control) return header;
    MessageReader reader({rest.data(), header.message_bytes});
    const auto control = reader.root<wire::Control>();
    if (control.isPrinted())
      printed_.append(control.getPrinted().getText().asChars().begin(), control.getPrinted().getText().size());
    if (control.isLateError()) {
      ++late_errors_;
      lost_word_ = control.getLateError().getAddress();
    }
    if (control.isSettled()) settled_ = control.getSettled().getBytes();
    heard(control);
    return header;
  }
  void read(std::span<std::byte> into) {
    while (!into.empty()) {
      const std::size_t n = channel_->receive_some(into);
      into = into.subspan(n);
      if (n == 0) channel_->wait({.readable = true}, std::chrono::seconds(10));
    }
  }

  std::unique_ptr<Channel> channel_;
  std::thread worker_;
  std::string why_;
  std::uint32_t sequence_ = 1;
  std::uint32_t context_ = 0;
  std::uint32_t graphs_ = 0;
  std::uint64_t credit_bytes_ = 0;
  unsigned late_errors_ = 0;
  std::uint64_t lost_word_ = 0;
  std::uint64_t settled_ = 0;
  std::string printed_;
};

}  // namespace fargpu::test
