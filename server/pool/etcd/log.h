#pragma once
// gRPC's own log, which goes nowhere: the last line of it may say why a connection failed.

#include <string>

namespace fargpu::etcd {

void catch_log();
void clear_log();
std::string last_log();

}  // namespace fargpu::etcd
