#include "context.h"

namespace fargpu::client {

void Context::reset() {
  handle = Handle();
  device = 0;
  primary = green = false;
  active = false;
  flags = 0;
  retained = 0;
  number = 0;
  api_version = wide_api_version;
  least_priority = greatest_priority = 0;
  failure = CUDA_SUCCESS;
  managed_stream = Handle();
  legacy.reset();
  blocking_submitted = blocking_awaited = completed = blocking_completed = submitted = host_visible = orphaned = 0;
  waits_for_event = 0;
  own_work = false;
}

}  // namespace fargpu::client
