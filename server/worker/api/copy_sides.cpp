#include "copy_sides.h"

#include "protocol/device_bytes.h"
#include "protocol/extent.h"
#include "server/worker/session/session.h"

namespace fargpu::server {
namespace {

constexpr std::uint64_t number_max = std::uint64_t{1} << 47;

// Packed rows on their way, which may lie in memory of the GPU.
CopySide packed_side(const std::byte* rows, const CopyShape& shape) {
  CopySide side = CopySide::packed_at(rows, shape);
  if (DeviceBytes::contains(rows)) side.kind = CopySide::Kind::device;
  return side;
}

// Whether addresses are enough for a copy one slice deep.
bool is_plain_row(const CopySide& side, const CopyShape& shape) { return !side.in_array() && shape.height == 1; }

}  // namespace

bool sensible_side(const CopyShape& shape, const CopySide& side, std::uint64_t& begin, std::uint64_t& bytes) {
  for (const std::uint64_t number :
       {shape.width, shape.height, shape.depth, side.x, side.y, side.z, side.pitch, side.height})
    if (number > number_max) return false;
  if (shape.empty() || ((shape.height > 1 || shape.depth > 1) && side.pitch < shape.width)) return false;
  if (shape.depth > 1 && side.height == 0) return false;
  using Wide = unsigned __int128;
  const Wide slice = Wide{side.pitch} * side.height;
  if (slice > number_max) return false;
  const Wide before = side.z * slice + Wide{side.y} * side.pitch + side.x;
  const Wide end = before + (shape.depth - 1) * slice + Wide{shape.height - 1} * side.pitch + shape.width;
  begin = side.place + static_cast<std::uint64_t>(before);
  bytes = static_cast<std::uint64_t>(end - before);
  return end <= number_max && begin + bytes >= begin;
}

std::vector<DeviceRange> memory_of_sides(const CopyShape& shape, std::initializer_list<CopySide> sides) {
  std::vector<DeviceRange> ranges;
  for (const CopySide& side : sides)
    if (DeviceRange range;
        side.kind == CopySide::Kind::device && sensible_side(shape, side, range.address, range.bytes))
      ranges.push_back(range);
  return ranges;
}

bool holds_side(Session& session, const CopyShape& shape, const CopySide& side) {
  std::uint64_t begin, bytes;
  return sensible_side(shape, side, begin, bytes) && session.memory().holds(begin, bytes);
}

CUresult admit_side(Session& session, const CopyShape& shape, const CopySide& side) {
  if (shape.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (side.kind == CopySide::Kind::device)
    return holds_side(session, shape, side) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (side.kind != CopySide::Kind::array) return CUDA_ERROR_INVALID_VALUE;
  const auto known = driver_side(session, side);
  if (!known) return Objects::invalid(HandleKind::array);
  // The driver checks this too, but nobody knows what it does with numbers that overflow.
  CUDA_ARRAY3D_DESCRIPTOR array{};
  const CUresult described =
      session.driver().cuArray3DGetDescriptor_v2(&array, reinterpret_cast<CUarray>(known->place));
  if (described != CUDA_SUCCESS) return described;
  return array_has(array, side.x, side.y, side.z, shape.width, shape.height, shape.depth) ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_INVALID_VALUE;
}

std::optional<CopySide> driver_side(Session& session, const CopySide& side) {
  CopySide known = side;
  return !side.in_array() || session.objects().resolve(HandleKind::array, side.place, known.place)
             ? std::optional(known)
             : std::nullopt;
}

std::optional<CopySide> driver_side(Session& session, const CopyShape& shape, const CopySide& side) {
  if (side.in_array()) return driver_side(session, side);
  CopySide sensible = side.from(0, 0, 0);
  if (shape.height == 1 && shape.depth == 1) sensible.pitch = shape.width;
  if (shape.depth == 1) sensible.height = shape.height;
  return sensible;
}

void tell_lost(Session& session, const CallId& call, std::uint64_t address) {
  if (address == 0) return;
  session.output().control([&](wire::Control::Builder control) {
    auto error = control.initLateError();
    error.setThread(call.thread);
    error.setOpcode(call.opcode);
    error.setResult(CUDA_ERROR_NOT_SUPPORTED);
    error.setAddress(address);
  });
}

CUresult copy_rows_in(Session& session, StreamState& stream, const CopyShape& shape, const CopySide& device,
                      const std::byte* host) {
  const auto target = driver_side(session, shape, device);
  if (!target) return CUDA_ERROR_INVALID_HANDLE;
  const CopySide rows = packed_side(host, shape);
  if (is_plain_row(*target, shape)) {
    return rows.kind == CopySide::Kind::device
               ? session.driver().cuMemcpyDtoDAsync_v2(target->place, rows.place, shape.width, stream.cuda)
               : session.driver().cuMemcpyHtoDAsync_v2(target->place, host, shape.width, stream.cuda);
  }
  const auto copy = cuda_copy<CUDA_MEMCPY3D>(shape, rows, *target);
  return session.driver().cuMemcpy3DAsync_v2(&copy, stream.cuda);
}

CUresult copy_rows_out(Session& session, StreamState& stream, const CopyShape& shape, const CopySide& device,
                       std::byte* host) {
  const auto source = driver_side(session, shape, device);
  if (!source) return CUDA_ERROR_INVALID_HANDLE;
  const CopySide rows = packed_side(host, shape);
  if (is_plain_row(*source, shape)) {
    return rows.kind == CopySide::Kind::device
               ? session.driver().cuMemcpyDtoDAsync_v2(rows.place, source->place, shape.width, stream.cuda)
               : session.driver().cuMemcpyDtoHAsync_v2(host, source->place, shape.width, stream.cuda);
  }
  const auto copy = cuda_copy<CUDA_MEMCPY3D>(shape, *source, rows);
  return session.driver().cuMemcpy3DAsync_v2(&copy, stream.cuda);
}

}  // namespace fargpu::server
