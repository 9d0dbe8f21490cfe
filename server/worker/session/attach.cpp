#include "attach.h"

#include <sys/mman.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/exchange.h"
#include "facts.h"
#include "partition.h"
#include "protocol/channel_tls.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"

namespace fargpu::server {
namespace {

bool plausible(wire::Range::Reader range) {
  constexpr std::uint64_t unit = std::uint64_t{1} << 30, least = std::uint64_t{1} << 40, end = std::uint64_t{1} << 47;
  return range.getBytes() >= unit && range.getBytes() < end && range.getBase() >= least && range.getBase() < end - range.getBytes() &&
         range.getBase() % unit == 0 && range.getBytes() % unit == 0;
}

// The first of the client's ranges that can be had here too.
template <class Reserve>
Window choose(capnp::List<wire::Range>::Reader offered, Reserve&& reserve) {
  for (const auto range : offered) {
    if (!plausible(range)) continue;
    const Window window{range.getBase(), range.getBytes()};
    if (reserve(window)) return window;
  }
  return {};
}

void send_answer(Channel& channel, const std::function<void(wire::AttachAnswer::Builder)>& fill) {
  send_control(channel, 1, [&](wire::Control::Builder control) { fill(control.initAttachAnswer()); });
}

std::string refuse(Channel& channel, wire::Failure::Reason reason, const std::string& text) {
  send_answer(channel, [&](wire::AttachAnswer::Builder answer) {
    auto failure = answer.initFailure();
    failure.setReason(reason);
    failure.setText(text);
  });
  return "refused: " + text;
}

// A wish that this version does not know is none.
Compression compression_of(wire::Compression wanted) {
  switch (wanted) {
    case wire::Compression::AUTOMATIC: return Compression::automatic;
    case wire::Compression::ALWAYS: return Compression::always;
    default: return Compression::never;
  }
}

// Between the ends of a socket, whose client has been told so.
std::unique_ptr<Channel> share_memory(Channel& socket) {
  const Descriptor memory(make_ring_memory(limits::ring_bytes));
  if (!socket.send_descriptor(memory.number())) throw ChannelClosed(socket.peer() + " does not take the memory that it asked for");
  return make_shared_channel(std::shared_ptr<Channel>(&socket, [](Channel*) {}), memory.number(), limits::ring_bytes, false);
}

}  // namespace

std::string serve_session(Channel& channel, std::span<const std::byte> attach_message, DriverTable& driver, const AttachOptions& options) {
  try {
    MessageReader reader(attach_message);
    const auto attach = reader.root<wire::Control>().getAttach();
    if (attach.getProtocolVersion() != wire::PROTOCOL_VERSION)
      return refuse(channel, wire::Failure::Reason::VERSION_MISMATCH, "this host speaks another version of the protocol");
    int version = 0;
    driver.cuDriverGetVersion(&version);
    if (static_cast<std::uint32_t>(version) < attach.getDriverVersion()) {
      return refuse(channel, wire::Failure::Reason::VERSION_MISMATCH,
                    "the driver of this host is of CUDA level " + std::to_string(version) + ", the client's of " +
                        std::to_string(attach.getDriverVersion()) + "; set FARGPU_DRIVER_VERSION=" + std::to_string(version) +
                        " there, or update the driver here");
    }
    // The end of a process gives its addresses back; in one process with its client a session does.
    struct Reserved {
      ~Reserved() {
        if (window.bytes > 0) driver.cuMemAddressFree(window.base, window.bytes);
      }
      DriverTable& driver;
      Window window;
    } reserved{driver, {}};
    const Window device_window = choose(attach.getDeviceWindows(), [&](const Window& window) {
      CUdeviceptr got = 0;
      if (driver.cuMemAddressReserve(&got, window.bytes, 0, window.base, 0) != CUDA_SUCCESS) return false;
      if (got == window.base) return true;
      driver.cuMemAddressFree(got, window.bytes);
      return false;
    });
    if (options.one_process) reserved.window = device_window;
    const Window host_window = choose(attach.getHostWindows(), [&](const Window& window) {
      if (options.one_process) return true;
      void* const wish = reinterpret_cast<void*>(window.base);
      void* const got = ::mmap(wish, window.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
      if (got == wish) return true;
      if (got != MAP_FAILED) ::munmap(got, window.bytes);
      return false;
    });
    if (device_window.bytes == 0 || host_window.bytes == 0) {
      return refuse(channel, wire::Failure::Reason::HOST_ERROR,
                    "no address range that the client offers is free in the worker; this is a fault of the host's set-up");
    }

    std::vector<std::uint64_t> memory_limits = options.memory_limits;
    memory_limits.resize(options.devices.size());
    Ledger quota(memory_limits, options.account_place);
    const bool shares_memory = attach.getSharedMemory() && channel.passes_descriptors();
    send_answer(channel, [&](wire::AttachAnswer::Builder answer) {
      if (shares_memory) answer.setRingBytes(limits::ring_bytes);
      answer.setCompression(true);
      answer.setSessionId(options.session_id);
      answer.setSilenceMs(static_cast<std::uint32_t>(options.silence.count()));
      answer.setLaneKey(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(options.lane_key.data()), options.lane_key.size()));
      const auto write = [](const Window& window, wire::Range::Builder range) {
        range.setBase(window.base);
        range.setBytes(window.bytes);
      };
      write(device_window, answer.initDeviceWindow());
      write(host_window, answer.initHostWindow());
      write(options.driver_band, answer.initDriverBand());
      write_facts(driver, options.devices, answer.initFacts());
      // What the session may have is the device, as far as programs are concerned.
      int number = 0;
      for (auto device : answer.getFacts().getDevices())
        device.setMemoryBytes(std::min(device.getMemoryBytes(), quota.share(number++).limit));
      for (unsigned i = 0; i < options.parts.size(); ++i)
        for (auto attribute : answer.getFacts().getDevices()[i].getAttributes())
          if (attribute.getAttribute() == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            attribute.setValue(static_cast<int>(processors_of(options.parts[i])));
      auto opcodes = answer.initOpcodes(opcode_max / 8 + 1);
      for (unsigned opcode = 1; opcode <= opcode_max; ++opcode)
        if (service_of(static_cast<std::uint16_t>(opcode))) opcodes[opcode / 8] |= static_cast<kj::byte>(1u << opcode % 8);
    });

    SessionOptions session_options;
    session_options.id = options.session_id;
    session_options.device_window = device_window;
    session_options.host_window = host_window;
    session_options.devices = options.devices;
    session_options.memory_limits = memory_limits;
    session_options.account_place = options.account_place;
    session_options.image_folder = options.image_folder;
    session_options.image_bytes_max = options.image_bytes_max;
    session_options.host_bytes_max = options.host_bytes_max;
    session_options.output_bytes_max = options.output_bytes_max;
    session_options.spin = options.spin;
    session_options.launch_threads = options.launch_threads;
    session_options.printed = options.printed;
    session_options.exchange = options.exchange;
    session_options.silence = options.silence;
    session_options.report = options.report;
    session_options.turns = options.turns;
    if (!shares_memory) session_options.compression = compression_of(attach.getCompression());
    session_options.scrub = options.scrub;
    session_options.parts = options.parts;
    session_options.one_process = options.one_process;
    const std::unique_ptr<Channel> shared = shares_memory ? share_memory(channel) : nullptr;
    std::string why;
    {
      auto session = std::make_unique<Session>(shared ? *shared : channel, driver, session_options);
      if (options.running) options.running(session.get());
      try {
        why = session->run();
      } catch (const kj::Exception& error) {
        why = std::string("protocol error: ") + error.getDescription().cStr();
      } catch (const ProtocolError& error) {
        why = std::string("protocol error: ") + error.what();
      } catch (const std::exception& error) {  // for the want of memory, most likely
        why = std::string("the worker cannot go on: ") + error.what();
      }
      if (options.running) options.running(nullptr);
      channel.close();
      // A process of its own frees everything by its end, which nothing can hold up. The driver could: a kernel may never end.
      if (!options.one_process) (void)session.release();
    }
    return why;
  } catch (const kj::Exception& error) {
    return std::string("malformed attach message: ") + error.getDescription().cStr();
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool asks_for_lane(std::span<const std::byte> lane_message, std::span<const std::byte> key) noexcept {
  try {
    MessageReader reader(lane_message);
    const auto control = reader.root<wire::Control>();
    if (!control.isLane()) return false;
    const auto theirs = control.getLane().getKey();
    unsigned difference = key.empty() || theirs.size() != key.size();
    // All of it, so that the time tells nothing.
    for (std::size_t i = 0; i < key.size() && i < theirs.size(); ++i) difference |= unsigned{theirs[i]} ^ std::to_integer<unsigned>(key[i]);
    return difference == 0;
  } catch (const kj::Exception&) {  // nonsense
    return false;
  }
}

void take_lane(Session* session, std::unique_ptr<Channel> channel, bool known) noexcept {
  try {
    const bool taken = known && session && !session->lanes_full();
    send_control(*channel, 1, [&](wire::Control::Builder answer) {
      auto failure = answer.initLaneAnswer();
      if (taken) return;
      failure.setReason(wire::Failure::Reason::DENIED);
      failure.setText("the session takes no bulk lane with this key, or has enough of them");
    });
    if (taken) session->add_lane(std::move(channel));
  } catch (const std::exception&) {  // it is gone
  }
}

std::unique_ptr<Channel> accept_by_key(int descriptor, const std::string& peer, std::span<const std::byte> name,
                                       std::span<const std::byte> secret) {
  const std::string identity(reinterpret_cast<const char*>(name.data()), name.size());
  TlsService service;
  service.find_key = [identity, key = std::vector<std::byte>(secret.begin(), secret.end())](const std::string& asked) {
    return asked == identity ? std::optional(key) : std::nullopt;
  };
  return accept_tls(descriptor, peer, make_server_context(std::move(service)), limits::connect_timeout);
}

// The displaced base is well below where it would be otherwise; see main.cpp.
Window displaced_band() {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t top = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    if (end < 0x7000'0000'0000 && begin >= 0x4000'0000'0000 && line.find("[heap]") == std::string::npos && begin < 0x5400'0000'0000)
      top = std::max(top, end);
  }
  if (top == 0) return {};
  constexpr std::uint64_t bytes = std::uint64_t{1} << 40;
  constexpr std::uint64_t unit = std::uint64_t{1} << 30;
  const std::uint64_t end = (top + unit - 1) / unit * unit;
  return {end - bytes, bytes};
}

}  // namespace fargpu::server
