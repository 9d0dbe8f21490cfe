#include "log.h"

#include <grpc/support/log.h>

#include <mutex>

namespace fargpu::etcd {
namespace {

struct Line {
  std::mutex mutex;
  std::string text;
};
Line& line() {
  static Line* const line = new Line;  // gRPC's threads outlive what is static
  return *line;
}

void keep(gpr_log_func_args* arguments) {
  if (arguments->severity != GPR_LOG_SEVERITY_ERROR) return;
  const std::lock_guard lock(line().mutex);
  line().text = arguments->message;
}

}  // namespace

void catch_log() {
  gpr_set_log_function(keep);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

void clear_log() {
  const std::lock_guard lock(line().mutex);
  line().text.clear();
}

std::string last_log() {
  const std::lock_guard lock(line().mutex);
  return line().text;
}

}  // namespace fargpu::etcd
