#include "jit_options.h"

#include <algorithm>
#include <cstring>

#include "protocol/data.h"

namespace fargpu::server {
namespace {

constexpr std::size_t log_bytes_max = 1u << 20;
constexpr unsigned options_max = 64;

}  // namespace

void JitOptions::add_log(std::vector<char>& log, std::size_t bytes, CUjit_option buffer, CUjit_option size,
                         std::size_t& size_at) {
  log.assign(bytes + 1, '\0');  // also without room there is a buffer: the driver refuses a null one
  kinds_.push_back(buffer);
  values_.push_back(log.data());
  kinds_.push_back(size);
  values_.push_back(reinterpret_cast<void*>(bytes));
  size_at = kinds_.size();
}

CUresult JitOptions::read(capnp::List<wire::Option>::Reader options, HostBudget& budget) {
  if (options.size() > options_max) return CUDA_ERROR_INVALID_VALUE;
  std::size_t info_bytes = 0, error_bytes = 0;
  bool wants_info = false, wants_error = false;
  for (const auto option : options) {
    const auto kind = static_cast<CUjit_option>(option.getOption());
    switch (kind) {
      case CU_JIT_INFO_LOG_BUFFER: wants_info = true; break;
      case CU_JIT_ERROR_LOG_BUFFER: wants_error = true; break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: info_bytes = option.getValue(); break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: error_bytes = option.getValue(); break;
      // These point into the program's memory, of which the driver here knows nothing.
      case CU_JIT_GLOBAL_SYMBOL_NAMES:
      case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
      case CU_JIT_REFERENCED_KERNEL_NAMES:
      case CU_JIT_REFERENCED_VARIABLE_NAMES: return CUDA_ERROR_INVALID_VALUE;
      case CU_JIT_WALL_TIME:
        kinds_.push_back(kind);
        values_.push_back(nullptr);
        wall_at_ = kinds_.size();
        break;
      default:
        if (kind >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;  // what it points to is unknown
        kinds_.push_back(kind);
        values_.push_back(reinterpret_cast<void*>(option.getValue()));
        if (kind != CU_JIT_THREADS_PER_BLOCK) break;
        threads_at_ = kinds_.size();
        threads_wished_ = values_.back();
    }
  }
  info_bytes = wants_info ? std::min(info_bytes, log_bytes_max) : 0;
  error_bytes = wants_error ? std::min(error_bytes, log_bytes_max) : 0;
  auto charge = HostCharge::take(budget, info_bytes + error_bytes + sizeof(*this));
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  charge_ = std::move(*charge);
  if (wants_info)
    add_log(info_log_, info_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info_size_at_);
  if (wants_error)
    add_log(error_log_, error_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error_size_at_);
  return CUDA_SUCCESS;
}

CUresult JitOptions::read_values(capnp::List<wire::Option>::Reader options, HostBudget& budget) {
  if (const CUresult bad = read(options, budget); bad != CUDA_SUCCESS) return bad;
  return info_size_at_ == 0 && error_size_at_ == 0 && wall_at_ == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

capnp::Data::Reader JitOptions::written(const std::vector<char>& log, std::size_t size_at) const {
  const std::size_t n = size_at == 0 ? 0 : std::min(reinterpret_cast<std::size_t>(values_[size_at - 1]), log.size());
  return data_of(std::as_bytes(std::span(log)).first(n));
}

float JitOptions::wall_milliseconds() const {
  float milliseconds = 0;
  if (wall_at_ != 0) std::memcpy(&milliseconds, &values_[wall_at_ - 1], sizeof(milliseconds));
  return milliseconds;
}

// None where the driver has written nothing: then nothing is written at the program either.
unsigned JitOptions::threads_per_block() const {
  unsigned threads = 0;
  if (threads_at_ != 0 && values_[threads_at_ - 1] != threads_wished_)
    std::memcpy(&threads, &values_[threads_at_ - 1], sizeof(threads));
  return threads;
}

}  // namespace fargpu::server
