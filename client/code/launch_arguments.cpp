#include "launch_arguments.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "calls_module.capnp.h"
#include "client/call/remote_call.h"
#include "client/memory/host_memory.h"
#include "client/memory/managed_memory.h"
#include "client/objects/thread.h"
#include "client/stream/whole_system_work.h"
#include "protocol/limits.h"

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

namespace {

// Another thread that launches the kernel meanwhile may ask too, and then knows as well.
[[gnu::noinline, gnu::cold]] void look_at_code(const MemoryParts& parts, Thread& thread, Function& function) {
  if (parts.calls.serves(Opcode::examineKernel)) {
    RemoteCall<wire::ExamineKernel> call(parts.calls, thread);
    call.in().setOwner(function.owner.value());
    call.in().setName(function.name);
    const Thread::AnswersOnly answers_only(thread);
    if (call.wait() == CUDA_SUCCESS && call.out().getWholeSystem()) {
      parts.whole_system.found();
      parts.host.compare_no_more();
      function.whole_system = true;
    }
  }
  function.looked_at = true;
}

}  // namespace

CUresult prepare_memory(const MemoryParts& parts, Thread& thread, Function& function,
                        std::span<const std::byte>& arguments) {
  bool copied = parts.managed.exists() || parts.host.any_registered_mapped();
  if (!copied && !parts.host.exists() && !parts.host.registers()) return CUDA_SUCCESS;
  const auto map_registered = [&] {
    for (const Parameter& parameter : function.parameters) {
      std::uint64_t value = 0;
      if (parameter.bytes != sizeof(value) || parameter.offset + sizeof(value) > arguments.size()) continue;
      std::memcpy(&value, arguments.data() + parameter.offset, sizeof(value));
      const std::uint64_t given = value;
      if (const CUresult bad = parts.host.map_if_registered(thread, function.name, value); bad != CUDA_SUCCESS)
        return bad;
      if (value == given) continue;
      copied = true;
      std::vector<std::byte>& own = thread.launch_arguments;
      if (arguments.data() != own.data()) {  // the program's own block of them
        if (own.empty()) own.resize(limits::kernel_parameter_bytes_max);
        std::memcpy(own.data(), arguments.data(), arguments.size());
        arguments = std::span(own).first(arguments.size());
      }
      std::memcpy(own.data() + parameter.offset, &value, sizeof(value));
    }
    return CUDA_SUCCESS;
  };
  if (parts.host.registers())
    if (const CUresult bad = map_registered(); bad != CUDA_SUCCESS) return bad;
  const auto map_named = [&] {
    for (const Parameter& run : function.evidence) {
      const std::size_t begin = std::min<std::size_t>(run.offset, arguments.size());
      const auto some = arguments.subspan(begin, std::min<std::size_t>(run.bytes, arguments.size() - begin));
      if (const CUresult bad = parts.host.map_named_in(thread, function.name, some, copied); bad != CUDA_SUCCESS)
        return bad;
    }
    return CUDA_SUCCESS;
  };
  if (const CUresult bad = map_named(); bad != CUDA_SUCCESS) return bad;
  if (!copied || function.looked_at.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  look_at_code(parts, thread, function);
  return function.whole_system ? map_named() : CUDA_SUCCESS;  // what is compared is paged now
}

}  // namespace fargpu::client
