#pragma once
// Proof that a handle was looked up.

#include <cstdint>

#include "handle_types.h"
#include "protocol/handle.h"

namespace fargpu::server {

/// The driver's object behind a handle of the session. Only Objects makes one, when it finds the handle: what takes one
/// need not check. It says nothing of later: what waits looks its handle up again.
template <HandleKind kind>
class Known {
 public:
  using Object = typename HandleType<kind>::Object;

  Object cuda() const { return object_; }
  Handle handle() const { return handle_; }
  std::uint64_t value() const { return handle_.value(); }

 private:
  friend class Objects;
  Known(Handle handle, Object object) : handle_(handle), object_(object) {}

  Handle handle_;
  Object object_;
};

}  // namespace fargpu::server
