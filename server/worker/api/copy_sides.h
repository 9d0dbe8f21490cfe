#pragma once
// The sides of a copy as they come from the client: checked, then given to the driver.

#include <cuda.h>

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <vector>

#include "protocol/copy.h"
#include "server/worker/call/call.h"
#include "server/worker/base/device_range.h"

namespace fargpu::server {

class Session;
struct StreamState;

/// Whether the numbers of a side in memory are some that a driver can be given: then what the copy uses of it.
bool sensible_side(const CopyShape& shape, const CopySide& side, std::uint64_t& begin, std::uint64_t& bytes);
/// What a copy of this shape uses of the device memory among such sides. Nothing of one that is refused.
std::vector<DeviceRange> memory_of_sides(const CopyShape& shape, std::initializer_list<CopySide> sides);
/// Whether the session's memory holds all that a copy of this shape uses of a side in memory.
bool holds_side(Session& session, const CopyShape& shape, const CopySide& side);
/// Whether the session may copy such a shape there: a side that is device memory or an array.
CUresult admit_side(Session& session, const CopyShape& shape, const CopySide& side);

/// An admitted side with the driver's own array; nothing if that is gone, for copies that had to wait.
std::optional<CopySide> driver_side(Session& session, const CopySide& side);
/// Also with what does not count of a plain copy: a single row has no pitch, a single slice no height, but the driver
/// wants sensible ones.
std::optional<CopySide> driver_side(Session& session, const CopyShape& shape, const CopySide& side);

/// The client hears that the word at this address was changed by the GPU too, whose change is lost. 0: there is none.
void tell_lost(Session& session, const CallId& call, std::uint64_t address);

/// Packed rows at `host`, which may be memory of the GPU (device_bytes.h), to or from an admitted side, in stream
/// order. INVALID_HANDLE if that is gone.
CUresult copy_rows_in(Session& session, StreamState& stream, const CopyShape& shape, const CopySide& device,
                      const std::byte* host);
CUresult copy_rows_out(Session& session, StreamState& stream, const CopyShape& shape, const CopySide& device,
                       std::byte* host);

}  // namespace fargpu::server
