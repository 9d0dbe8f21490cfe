#include "supervised_process.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "passed_descriptors.h"

namespace fargpu::server {

// The number of a process that is no child may be another's by now.
void SupervisedProcess::signal(int number) const {
  if (!exit) ::kill(process, number);
  else ::syscall(SYS_pidfd_send_signal, exit->native_handle(), number, nullptr, 0);
}

// What was not read of it may have descriptors.
void SupervisedProcess::hang_up() {
  if (link->is_open()) hang_up_aside(link->release());
}

}  // namespace fargpu::server
