#include "launch_codec.h"

#include <cstring>

#include "cuda_facts.h"
#include "client/api/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"

namespace fargpu::client {

CUresult gather_arguments(const Function& function, void** params, void** extra, std::span<const std::byte>& block) {
  if (params && extra && *extra == CU_LAUNCH_PARAM_END) extra = nullptr;  // which says nothing
  if (params && extra) return CUDA_ERROR_INVALID_VALUE;
  if (extra) {
    const void* bytes = nullptr;
    const std::size_t* size = nullptr;
    for (void** item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
      if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) bytes = item[1];
      else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) size = static_cast<const std::size_t*>(item[1]);
      else return CUDA_ERROR_INVALID_VALUE;
    }
    if (!bytes || !size || *size > limits::kernel_parameter_bytes_max) return CUDA_ERROR_INVALID_VALUE;
    block = {static_cast<const std::byte*>(bytes), *size};
    return CUDA_SUCCESS;
  }
  std::vector<std::byte>& buffer = Thread::current().launch_arguments;
  if (buffer.empty()) buffer.resize(limits::kernel_parameter_bytes_max);
  block = std::span(buffer).first(function.parameter_bytes);
  if (!params) return function.parameters.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  // Gaps are zero, so that no bytes of an earlier launch travel.
  if (function.gaps) std::memset(buffer.data(), 0, function.parameter_bytes);
  for (const Parameter& parameter : function.parameters) {
    std::byte* const to = buffer.data() + parameter.offset;
    const void* const from = *params++;
    // Nearly all are of one of two sizes, for which no function need be called.
    if (parameter.bytes == 8) std::memcpy(to, from, 8);
    else if (parameter.bytes == 4) std::memcpy(to, from, 4);
    else std::memcpy(to, from, parameter.bytes);
  }
  return CUDA_SUCCESS;
}

CUresult map_argument_blocks(Thread& thread, std::span<const std::byte> arguments) {
  Session& session = thread.session();
  const Window window = session.terms().host_window;
  for (std::size_t at = 0; at + 8 <= arguments.size(); at += 8) {
    std::uint64_t value;
    std::memcpy(&value, arguments.data() + at, sizeof(value));
    if (!window.contains(value)) continue;
    const auto region = session.map().find(value);
    if (!region || region->kind != Region::Kind::host) continue;
    std::uint64_t ignored;
    if (const CUresult result = session.host_memory().map(thread, value, ignored); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult write_attribute(Thread& thread, const CUlaunchAttribute& attribute, wire::LaunchAttribute::Builder out) {
  const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
  out.setAttribute(attribute.id);
  std::array<std::uint64_t, sizeof(CUlaunchAttributeValue) / 8> words{};
  std::memcpy(words.data(), &attribute.value, facts->bytes);
  if (facts->holds_event) {
    const Handle event(words[0]);
    if (event) {
      Event* const found = thread.session().events().find(event);
      if (!found) return CUDA_ERROR_INVALID_HANDLE;
      found->recorded_by_work = true;
    }
    out.setHandle(words[0]);
    words[0] = 0;
  }
  const auto used = static_cast<unsigned>((facts->bytes + 7) / 8);
  auto list = out.initWords(used);
  for (unsigned w = 0; w < used; ++w) list.set(w, words[w]);
  return CUDA_SUCCESS;
}

void read_attribute(wire::LaunchAttribute::Reader in, CUlaunchAttributeValue& value) {
  std::memset(&value, 0, sizeof(value));
  const LaunchAttributeFacts* const facts = launch_attribute_facts(static_cast<CUlaunchAttributeID>(in.getAttribute()));
  if (!facts) return;
  std::array<std::uint64_t, sizeof(CUlaunchAttributeValue) / 8> words{};
  const auto list = in.getWords();
  for (unsigned w = 0; w < std::min<std::size_t>(list.size(), words.size()); ++w) words[w] = list[w];
  if (facts->holds_event) words[0] = in.getHandle();
  std::memcpy(&value, words.data(), facts->bytes);
}

CUresult write_attributes(Thread& thread, const CUlaunchAttribute* attributes, unsigned count,
                          capnp::List<wire::LaunchAttribute>::Builder list) {
  for (unsigned i = 0; i < count; ++i) {
    const CUlaunchAttribute& attribute = attributes[i];
    const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
    if (!facts) {
      refuse_use(("launch attribute " + std::to_string(attribute.id)).c_str());
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (const CUresult bad = write_attribute(thread, attribute, list[i]); bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

void LaunchClass::add(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    add(word);
  }
}

std::uint64_t fit_of(const Context& context, const unsigned (&block)[3], unsigned shared_bytes, const unsigned (&cluster)[3]) {
  LaunchClass fingerprint;
  fingerprint.add(context.id());
  fingerprint.add(shared_bytes);
  for (std::size_t d = 0; d < 3; ++d) fingerprint.add(std::uint64_t{block[d]} << 32 | cluster[d]);
  return fingerprint.value();
}

}  // namespace fargpu::client
