#include "trace_details.h"

#include <fmt/format.h>

#include "operations.capnp.h"
#include "protocol/message.h"
#include "protocol/text.h"

namespace fargpu::client::trace {
namespace {

// Names of C++ templates are long: what is behind this many characters tells no more.
constexpr std::size_t name_bytes_max = 512;

std::uint64_t bytes_of(wire::Copy::Reader copy) { return copy.getWidth() * copy.getHeight() * copy.getDepth(); }

}  // namespace

void Details::add(Opcode opcode, std::span<const std::byte> message,
                  const std::function<std::string(Handle)>& name_of) {
  const auto add_copy = [&](const char* kind, wire::Copy::Reader what) {
    copy = kind;
    copied_bytes += bytes_of(what);
  };
  MessageReader reader(message);
  switch (opcode) {
    case Opcode::launch: {
      const auto launch = reader.root<wire::Launch>();
      kernel = name_of(Handle(launch.getFunction()));
      grid = fmt::format("{},{},{}", launch.getGridX(), launch.getGridY(), launch.getGridZ());
      block = fmt::format("{},{},{}", launch.getBlockX(), launch.getBlockY(), launch.getBlockZ());
      shared_bytes = launch.getSharedBytes();
      break;
    }
    case Opcode::copyIn: add_copy("host to device", reader.root<wire::CopyIn>().getCopy()); break;
    case Opcode::copyOut: add_copy("device to host", reader.root<wire::CopyOut>().getCopy()); break;
    case Opcode::copyDevice: add_copy("device to device", reader.root<wire::CopyDevice>().getCopy()); break;
    default: break;
  }
}

std::string Details::text() const {
  return copy.empty() ? "" : fmt::format(": {}, {}", copy, so_many(copied_bytes, "byte"));
}

std::string Details::json() const {
  std::string text;
  if (kernel) {
    text += fmt::format(R"("kernel":"{}","grid":[{}],"block":[{}],"shared_bytes":{},)",
                        escaped(kernel->empty() ? "?" : *kernel), grid, block, shared_bytes);
  }
  if (!copy.empty()) text += fmt::format(R"("copy":"{}","bytes":{},)", copy, copied_bytes);
  if (!stream.empty()) text += fmt::format(R"("stream":"{}",)", stream);
  return text;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : printable(text, name_bytes_max)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace fargpu::client::trace
