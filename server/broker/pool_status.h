#pragma once
// What a host says of its pool.

#include "control.capnp.h"
#include "metrics.h"
#include "pool_host.h"
#include "status.h"

namespace fargpu::server {

/// To clients (`fargpu ls`). `view`: null where nothing is known.
void write_pool(const PoolHost& host, const pool::PoolView* view, const Viewer& viewer,
                wire::PoolStatus::Builder status);
/// To Prometheus.
void write_pool(PoolHost& host, MetricsText& text);

}  // namespace fargpu::server
