#pragma once
// What loading of an image and the search for its functions have in common.

#include <cuda.h>

#include <chrono>
#include <string>

#include "driver_table.h"
#include "operations.capnp.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

/// A kernel that takes longer is compiled: it is looked at when it is asked for, and not before.
constexpr auto kernel_time_max = std::chrono::milliseconds(100);

/// Has the driver load a kernel's code into the current context, which it may have to compile first. False if it has
/// not.
bool ask_about(DriverTable& driver, CUkernel kernel);
bool ask_about(DriverTable& driver, CUlibrary library, const std::string& name);

/// Tells the client of a function or kernel that the session has, with its attributes where the call has a context.
CUresult describe_function(Session& session, const CallId& id, Handle handle, wire::FunctionReply::Builder out,
                           Handle owner);

}  // namespace fargpu::server
