#include "lone_session.h"

#include "client/session/process.h"
#include "client/objects/thread.h"
#include "protocol/handshake.h"

namespace fargpu::test {
namespace {

client::Terms terms(Window host_window, std::chrono::milliseconds silence) {
  client::Terms terms;
  terms.session_id = 1;
  terms.host = "the test";
  terms.worker_opcodes.set();
  terms.host_window = host_window;
  terms.silence = silence;
  return terms;
}

}  // namespace

LoneSession::LoneSession(Window host_window, std::chrono::milliseconds silence) {
  auto [near, far] = make_memory_channel();
  worker_ = std::move(far);
  session_ = new client::Session(std::move(near), terms(host_window, silence), std::chrono::nanoseconds(0));
  session_->start();
  client::process().adopt(session_);
}

LoneSession::~LoneSession() {
  (void)client::Thread::current().take_late_error();
  client::process().give_up();
}

LoneSession::Sent LoneSession::next_call() {
  const auto receive = [&](std::span<std::byte> into) {
    while (!into.empty()) {
      const std::size_t got = worker_->receive_some(into);
      into = into.subspan(got);
      if (got == 0) worker_->wait({.readable = true}, Channel::forever);
    }
  };
  while (true) {
    Sent sent;
    receive(std::as_writable_bytes(std::span(&sent.header, 1)));
    sent.message.resize(sent.header.message_bytes);
    receive(sent.message);
    Bytes bulk(padded(sent.header.bulk_bytes));
    receive(bulk);
    if (sent.header.kind == FrameKind::call) return sent;
  }
}

void LoneSession::reply(const Sent& call) {
  FrameHeader header = numbered(++sent_, FrameKind::reply);
  header.opcode = call.header.opcode;
  header.subject = call.header.sequence;
  send(*worker_, frame(header));
}

void LoneSession::push(const std::function<void(wire::Control::Builder)>& fill, const Bytes& bulk) {
  MessageWriter writer;
  fill(writer.root<wire::Control>());
  const auto message = writer.finish();
  send(*worker_, frame(numbered(++sent_, FrameKind::control), {message.begin(), message.end()}, bulk));
}

}  // namespace fargpu::test
