#include "rdma_options.h"

#include "environment.h"

namespace fargpu::client {

RdmaOptions read_rdma_options(std::string& error) {
  RdmaOptions options;
  std::string why;
  const char* const networks = environment_variable("FARGPU_RDMA");
  if (networks && *networks && !rdma::Networks::parse(networks, options.networks, why))
    error = "FARGPU_RDMA is '" + std::string(networks) + "': " + why;
  if (!networks || !*networks || !why.empty()) rdma::Networks::parse(rdma::Networks::usual, options.networks, why);
  const char* const by = environment_variable("FARGPU_RDMA_TRANSPORTS");
  if (by && *by && !rdma::parse_transports(by, options.transports))
    error = "FARGPU_RDMA_TRANSPORTS is '" + std::string(by) + "'; use cards, tcp or memory";
  return options;
}

}  // namespace fargpu::client
