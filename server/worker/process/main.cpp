// fargpu-worker: executes one session. Started by fargpud, never by hand; what it is told comes over the link.

#include <sys/prctl.h>

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdlib>

#include "displacement.h"
#include "worker_process.h"

int main(int argc, char** argv) {
  using namespace fargpu::server;
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);           // the broker decides when workers end
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // without a session there is nothing to outlive the broker for
  displace(argv);
  WorkerOptions options;
  CLI::App app("Executes one fargpu session. Started by fargpud.", "fargpu-worker");
  app.add_option("--driver", options.driver, "Driver library, by path")->required();
  app.add_option("--link", options.link, "Descriptor of the link to the broker")->required();
  app.add_option("--door", options.door,
                 "Descriptor of a bound Unix socket at which the host's next broker finds the session");
  app.add_option("--devices", options.devices, "The driver's ordinals to offer, comma-separated (default: all)");
  app.add_option(
      "--sm-groups", options.sm_groups,
      "Groups of multiprocessors of each device that the session's kernels may be on: 0,1,2:4 (default: all)");
  app.add_option("--user", options.user, "Become this user first");
  app.add_flag("--sandbox", options.sandbox, "Give up what is not needed before the driver is loaded");
  app.add_flag("--warm-context", options.warm_context,
               "Create the first device's primary context before there is a session");
  app.add_option("--image-bytes-max", options.image_bytes_max, "Bytes of GPU code kept for the tenant");
  app.add_option("--content-bytes-max", options.content_bytes_max, "Bytes of contents of memory kept for the tenant");
  app.add_option("--host-bytes-max", options.host_bytes_max,
                 "Bytes of this host's memory that the session may take; 0 for no bound");
  app.add_option("--spin-us", options.spin_us, "Microseconds to poll before sleeping");
  app.add_option("--launch-threads", options.launch_threads,
                 "Threads that give kernels to the driver while many come; three eighths of the processors at most");
  app.add_option("--silence-seconds", options.silence_seconds,
                 "Seconds of silence after which the client is taken for dead");
  app.add_option("--rdma-networks", options.rdma_networks, "Networks to whose clients RDMA is offered");
  app.add_option("--rdma-transports", options.rdma_transports, "What RDMA goes by: cards, tcp or memory");
  app.add_option("--gpudirect", options.gpudirect, "Whether cards reach the GPU's memory: auto, on or off");
  CLI11_PARSE(app, argc, argv);
  WorkerProcess process(std::move(options));
  const int status = process.run();
  // Threads of the process still use it. Tearing the driver down takes long and is the kernel's business anyway.
  std::_Exit(status);
}
