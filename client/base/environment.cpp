#include "environment.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "protocol/nearest.h"
#include "protocol/text.h"

namespace fargpu::client {
namespace {

using Names = EnvironmentVariable::Names;

constexpr EnvironmentVariable all[] = {
    {"FARGPU_POOL", "",
     "GPU hosts, [tls://|tcp://|rdma://]host[:port][,...]. `fargpu run` takes the one with the fewest sessions for "
     "each "
     "device, other programs take the first that offers a session. A host that is silent for half a second is passed "
     "over while another one answers. The port is 8470 by default. unix:/path is a broker on this machine. none: "
     "programs that load the library find no GPU"},
    {"FARGPU_GPUS", "all of the host", "Number of devices to ask for"},
    {"FARGPU_HOSTS", "1",
     "Number of hosts, up to 8, that the devices may be of, where no host alone has as many as FARGPU_GPUS says; "
     "without "
     "FARGPU_GPUS, all devices of so many hosts"},
    {"FARGPU_MEM", "nothing is kept", "Memory of each device to be kept for the job, for example 8GiB"},
    {"FARGPU_COMPUTE", "no bound, no guarantee", "Share of the compute of each device, for example 50%"},
    {"FARGPU_PRIORITY", "normal", "latency-critical, normal or best-effort"},
    {"FARGPU_WAIT", "no wait", "How long to wait while others hold what is asked for, for example 10min; at most 7d"},
    {"FARGPU_CA", "", "Certificate of the authority by which hosts are known, PEM", Names::file},
    {"FARGPU_FINGERPRINT", "",
     "SHA-256 fingerprint of the host's certificate, in place of FARGPU_CA; `fargpu pki issue` prints it"},
    {"FARGPU_TOKEN_FILE", "", "File with the token of the client; it takes precedence over FARGPU_TOKEN",
     Names::secret},
    {"FARGPU_TOKEN", "", "The token itself"},
    {"FARGPU_CERT", "", "The client's certificate, PEM; FARGPU_KEY goes with it", Names::file},
    {"FARGPU_KEY", "", "The key of that certificate, PEM", Names::secret},
    {"FARGPU_PSK_FILE", "",
     "File with a key that host and client share, a line TENANT:HEXDIGITS; no certificates are needed then",
     Names::secret},
    {"FARGPU_TRANSPORT", "auto",
     "auto: shared memory with a host on the same machine, else RDMA where both sides have and allow it, else TCP. "
     "tcp, "
     "shm or rdma: nothing else"},
    {"FARGPU_RDMA", "127.0.0.0/8,::1",
     "Networks of the hosts to which RDMA is allowed, which is not encrypted: addresses such as 10.1.0.0/16, none or "
     "all. Machines that can listen there can read all calls and memory"},
    {"FARGPU_RDMA_TRANSPORTS", "cards",
     "What RDMA goes by: cards, or, to try it without, tcp or memory, by UCX itself. The host's rdma_transports has to "
     "be the same"},
    {"FARGPU_COMPRESS", "auto",
     "auto: contents of memory travel compressed where that is faster, which is on slow networks and for what "
     "compresses. on: whatever becomes smaller. off: nothing"},
    {"FARGPU_CONTENT_CACHE", "auto; off by the loopback",
     "auto: large copies over the network whose contents the host has kept are named instead of sent, where that is "
     "faster. on: always. off: never, and the host keeps nothing of what this program sends"},
    {"FARGPU_LANES", "half as many as processors, 1 to 8",
     "Connections that large copies over TCP are divided among, at most 16. Of the default number, as many are used as "
     "the line turns out to need. With 1, copies that a thread waits for go by the session's own connection where the "
     "host's resume_seconds is 0; with 0, all do"},
    {"FARGPU_SPIN_US", "20000; 0 with fewer than four processors",
     "Microseconds for which a waiting thread busy-waits before it sleeps. It sleeps at once where the program asked "
     "for blocking waits (cudaDeviceScheduleBlockingSync), and soon where other threads need all processors"},
    {"FARGPU_DRIVER_VERSION", "13000",
     "The CUDA level that programs see, for hosts with an older driver, for example 12080"},
    {"FARGPU_LOG", "warn",
     "Comma-separated: a level (error, warn, info, debug), stats for time waited and a table of calls at exit, trace "
     "for a line per call with its arguments"},
    {"FARGPU_LOG_FILE", "stderr", "File for the log; %p stands for the process id", Names::output},
    {"FARGPU_TRACE", "", "File for a trace of what happens over time; %p stands for the process id", Names::output},
    {"FARGPU_SPLIT", "", "Set by `fargpu run`: the number of devices at each host of FARGPU_POOL; not for people"},
    {"FARGPU_JOB", "", "Set by `fargpu run` for the processes of a job, which share a lease; not for people"},
};

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return all; }

const char* environment_variable(const char* name) { return ::secure_getenv(name); }

bool environment_withheld() { return ::getauxval(AT_SECURE) != 0; }

std::string StrangeVariable::text() const {
  return printable(name) + " is no variable of fargpu; it has no effect" +
         (meant.empty() ? "" : "; perhaps " + meant + " is meant");
}

std::vector<StrangeVariable> strange_variables() {
  constexpr std::string_view prefix = "FARGPU_", of_software_gpu = "FARGPU_SOFTGPU_";
  std::vector<std::string> known;
  for (const EnvironmentVariable& variable : all)
    known.emplace_back(std::string_view(variable.name).substr(prefix.size()));
  std::vector<StrangeVariable> strange;
  if (environment_withheld()) return strange;  // none has an effect
  for (char** variable = environ; variable && *variable; ++variable) {
    std::string_view name(*variable);
    name = name.substr(0, name.find('='));
    if (!name.starts_with(prefix) || name.starts_with(of_software_gpu)) continue;
    const std::string own(name.substr(prefix.size()));
    if (std::find(known.begin(), known.end(), own) != known.end()) continue;
    const std::string meant = nearest(own, known);
    strange.push_back({std::string(name), meant.empty() ? "" : std::string(prefix) + meant});
  }
  return strange;
}

}  // namespace fargpu::client
