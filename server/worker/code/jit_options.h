#pragma once
// The JIT options of one load or link, with room for what the driver writes.

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "server/quota/host_budget.h"
#include "operations.capnp.h"

namespace fargpu::server {

/// Must live as long as the driver may write its logs. What a client may not say is refused: addresses of its own, and
/// options that this version does not know.
class JitOptions {
 public:
  CUresult read(capnp::List<wire::Option>::Reader options, HostBudget& budget);
  /// Reads options without logs and times: those of one input among several.
  CUresult read_values(capnp::List<wire::Option>::Reader options, HostBudget& budget);

  unsigned count() const { return static_cast<unsigned>(kinds_.size()); }
  CUjit_option* kinds() { return kinds_.data(); }
  void** values() { return values_.data(); }

  /// Tells what the driver wrote.
  template <class Reply>
  void tell(Reply out) const {
    out.setInfoLog(written(info_log_, info_size_at_));
    out.setErrorLog(written(error_log_, error_size_at_));
    out.setWallMilliseconds(wall_milliseconds());
    out.setThreadsPerBlock(threads_per_block());
  }

 private:
  void add_log(std::vector<char>& log, std::size_t bytes, CUjit_option buffer, CUjit_option size, std::size_t& size_at);
  capnp::Data::Reader written(const std::vector<char>& log, std::size_t size_at) const;
  float wall_milliseconds() const;
  unsigned threads_per_block() const;

  std::vector<CUjit_option> kinds_;
  std::vector<void*> values_;
  std::vector<char> info_log_;
  std::vector<char> error_log_;
  HostCharge charge_;
  std::size_t info_size_at_ = 0;  // index + 1 of the option for the log's size
  std::size_t error_size_at_ = 0;
  std::size_t wall_at_ = 0;
  std::size_t threads_at_ = 0;
  void* threads_wished_ = nullptr;
};

}  // namespace fargpu::server
