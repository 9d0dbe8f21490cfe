// Copies. CUDA Driver API, "Memory Management" and "API synchronization behavior". Every form is brought to one: a shape of rows
// between two sides, each of which is device memory, pinned memory (whose newest contents the worker may hold), or any other
// memory of the program.

#include <algorithm>
#include <cstring>
#include <optional>

#include "client/entry.h"
#include "client/graph_node.h"
#include "client/remote_call.h"
#include "client/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

enum class Place { device, pinned, pageable };

struct Rows {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0;
  std::uint64_t slice = 0;
};

struct Copy {
  std::uint64_t width = 0;
  std::uint64_t height = 1;
  std::uint64_t depth = 1;
  Rows target;
  Rows source;
  bool synchronous = false;

  // Bytes from the first to behind the last, on one side.
  std::uint64_t extent(const Rows& rows) const {
    return (depth - 1) * rows.slice + (height - 1) * rows.pitch + width;
  }
  // Rows that lie behind each other without gaps on both sides are one row.
  void flatten() {
    if (height > 1 && target.pitch == width && source.pitch == width) {
      if (depth == 1 || (target.slice == width * height && source.slice == width * height)) {
        width *= height * depth;
        height = depth = 1;
      }
    }
  }
};

const std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

// Meets a bad address here, in the caller, as the driver's own copy would, before any lock is held.
void touch_for_reading(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | 4095) + 1)
    (void)*reinterpret_cast<const volatile char*>(at);
}
void touch_for_writing(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | 4095) + 1) {
    auto* const byte = reinterpret_cast<volatile char*>(at);
    *byte = *byte;
  }
}

void write_side(const Rows& rows, wire::Side::Builder side) {
  side.setAddress(rows.address);
  side.setPitch(rows.pitch);
  side.setSlice(rows.slice);
}

void write_shape(std::uint64_t width, std::uint64_t height, std::uint64_t depth, wire::Shape::Builder shape) {
  shape.setWidth(width);
  shape.setHeight(height);
  shape.setDepth(depth);
}

/// One copy of a program on its way.
class Copier {
 public:
  Copier(Thread& thread, const StreamUse& stream, const Copy& copy)
      : thread_(thread), session_(thread.session()), stream_(*stream), copy_(copy) {}

  CUresult run() {
    if (copy_.width == 0 || copy_.height == 0 || copy_.depth == 0) return CUDA_SUCCESS;
    copy_.flatten();
    const auto source = place(copy_.source);
    const auto target = place(copy_.target);
    if (!source || !target) return CUDA_ERROR_INVALID_VALUE;
    if (stream_.capture.load() && (source != Place::device || target != Place::device)) {
      return capture_copy(*source, *target);
    }
    if (source == Place::device && target == Place::device) return device_to_device();
    if (target == Place::device) return host_to_device(*source);
    if (source == Place::device) return device_to_host(*target);
    return host_to_host();
  }

 private:
  // What kind of memory a side is; nothing if it is none that the program may use.
  std::optional<Place> place(const Rows& rows) const {
    const std::uint64_t extent = copy_.extent(rows);
    const auto region = session_.map().find(rows.address);
    if (region && region->kind == Region::Kind::managed) session_.managed().before_work(thread_);
    if (region && region->on_device())
      return session_.map().covered(rows.address, extent) ? std::optional(Place::device) : std::nullopt;
    if (region) return region->contains(rows.address, extent) ? std::optional(Place::pinned) : std::nullopt;
    const Terms& terms = session_.terms();
    if (rows.address == 0 || terms.device_window.contains(rows.address) || terms.driver_band.contains(rows.address))
      return std::nullopt;
    return Place::pageable;
  }

  // On a stream that is captured the copy becomes a node of the graph, and is done when that is launched.
  CUresult capture_copy(Place source, Place target) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = copy_.width;
    copy.Height = copy_.height;
    copy.Depth = copy_.depth;
    copy.srcMemoryType = source == Place::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcDevice = copy_.source.address;
    copy.srcHost = bytes_at(copy_.source.address);
    copy.srcPitch = copy_.source.pitch;
    copy.srcHeight = copy_.source.slice ? copy_.source.slice / copy_.source.pitch : copy_.height;
    copy.dstMemoryType = target == Place::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstDevice = copy_.target.address;
    copy.dstHost = reinterpret_cast<void*>(copy_.target.address);
    copy.dstPitch = copy_.target.pitch;
    copy.dstHeight = copy_.target.slice ? copy_.target.slice / copy_.target.pitch : copy_.height;
    NewParts parts(session_.graph_parts());
    RemoteCall<wire::CaptureCopy> call(thread_, Opcode::captureCopy, ContextNeed::none);
    call.in_context(stream_.context);
    call.in().setStream(stream_.wire());
    if (const CUresult bad = write_copy(thread_, copy, nullptr, call.in().initCopy(), parts); bad != CUDA_SUCCESS) return bad;
    const CUresult result = call.post(stream_);
    if (result == CUDA_SUCCESS) parts.keep();
    return result;
  }

  CUresult device_to_device() {
    RemoteCall<wire::CopyDevice> call(thread_, Opcode::copyDevice, ContextNeed::none);
    call.in_context(stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(copy_.width, copy_.height, copy_.depth, in.initShape());
    write_side(copy_.target, in.initTarget());
    write_side(copy_.source, in.initSource());
    return call.post(stream_);
  }

  // Applies `step(target, source, width, height)` to parts of at most this many bytes, one slice deep.
  template <class Step>
  CUresult for_parts(std::uint64_t most, Step&& step) {
    for (std::uint64_t z = 0; z < copy_.depth; ++z) {
      const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, most / copy_.width);
      for (std::uint64_t y = 0; y < copy_.height; y += rows_at_once) {
        const std::uint64_t height = std::min(rows_at_once, copy_.height - y);
        for (std::uint64_t x = 0; x < copy_.width; x += most) {
          const std::uint64_t width = std::min(most, copy_.width - x);
          const auto part = [&](const Rows& rows) {
            return Rows{rows.address + z * rows.slice + y * rows.pitch + x, rows.pitch, rows.slice};
          };
          if (const CUresult result = step(part(copy_.target), part(copy_.source), width, height); result != CUDA_SUCCESS)
            return result;
        }
      }
    }
    return CUDA_SUCCESS;
  }

  CUresult host_to_device(Place source) {
    // What runs in this process before the copy may write its source.
    if (copy_.synchronous && (session_.callbacks().any_waiting() || session_.graphs().any_launched())) {
      if (const CUresult result = session_.settle(thread_, stream_); result != CUDA_SUCCESS) return result;
    }
    const CUresult result = for_parts(limits::bulk_bytes_max, [&](Rows target, Rows from, std::uint64_t width, std::uint64_t height) {
      if (height > 1 || source == Place::pageable) return send_rows(target, from, width, height);
      return send_pinned(target, from.address, width);
    });
    if (result != CUDA_SUCCESS || !copy_.synchronous) return result;
    // A synchronous copy is also a wait for what the stream still has to do, where the host would notice.
    Context& context = *stream_.context;
    if (context.host_visible.load() > context.completed.load()) return session_.settle(thread_, stream_);
    return result;
  }

  template <class Fill>
  CUresult copy_in(const Rows& target, std::uint64_t width, std::uint64_t height, std::span<const std::byte> bulk, Fill&& fill) {
    RemoteCall<wire::CopyIn> call(thread_, Opcode::copyIn, ContextNeed::none);
    call.in_context(stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(width, height, 1, in.initShape());
    write_side(target, in.initTarget());
    in.setComplete(copy_.synchronous);
    fill(in.getSource());
    call.bulk(bulk);
    return call.post(stream_);
  }

  // The bytes as they are now.
  CUresult send_rows(const Rows& target, const Rows& source, std::uint64_t width, std::uint64_t height) {
    std::span<const std::byte> bulk;
    std::vector<std::byte> packed;
    if (height == 1) {
      touch_for_reading(source.address, width);
      bulk = {bytes_at(source.address), width};
    } else {
      packed.resize(width * height);
      for (std::uint64_t y = 0; y < height; ++y)
        std::memcpy(packed.data() + y * width, bytes_at(source.address + y * source.pitch), width);
      bulk = packed;
    }
    return copy_in(target, width, height, bulk, [](auto from) { from.setBulk(); });
  }

  // One row of pinned memory, whose contents count when the stream gets there. Where the worker holds newer bytes than we do, they
  // stay there; where a host function still has to run, which may write them, they are fetched when it has.
  CUresult send_pinned(Rows target, std::uint64_t source, std::uint64_t bytes) {
    HostMemory& memory = session_.host_memory();
    if (memory.mapped(source)) {
      memory.send_changes(thread_);
      return copy_in(target, bytes, 1, {}, [&](auto from) { from.setBlock(source); });
    }
    if (!copy_.synchronous && session_.graphs().any_launched())  // which may write there yet
      return copy_in(target, bytes, 1, {}, [&](auto from) { from.setPull(source); });
    while (bytes > 0) {
      const HostMemory::Part part = memory.newest(source, bytes);
      CUresult result;
      if (part.worker_newer) {
        result = copy_in(target, part.bytes, 1, {}, [&](auto from) { from.setBlock(source); });
      } else if (!copy_.synchronous && session_.callbacks().any_waiting()) {
        result = copy_in(target, part.bytes, 1, {}, [&](auto from) { from.setPull(source); });
      } else {
        result = send_rows(target, {source, 0, 0}, part.bytes, 1);
      }
      if (result != CUDA_SUCCESS) return result;
      source += part.bytes;
      target.address += part.bytes;
      bytes -= part.bytes;
    }
    return CUDA_SUCCESS;
  }

  CUresult device_to_host(Place target) {
    if (target == Place::pinned && !copy_.synchronous && copy_.height == 1 && copy_.depth == 1) return deliver_later();
    // One row is received in place, however long; several are packed on the way and need room here.
    constexpr std::uint64_t packed_bytes_max = 64u << 20;
    return for_parts(copy_.height == 1 ? copy_.width : packed_bytes_max,
                     [&](Rows to, Rows source, std::uint64_t width, std::uint64_t height) {
                       return fetch_rows(to, source, width, height);
                     });
  }

  // Waits for the bytes: they are there when the call returns, as the program may assume of pageable memory.
  CUresult fetch_rows(const Rows& target, const Rows& source, std::uint64_t width, std::uint64_t height) {
    RemoteCall<wire::CopyOut> call(thread_, Opcode::copyOut, ContextNeed::none);
    call.in_context(stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(width, height, 1, in.initShape());
    write_side(source, in.initSource());
    in.getTarget().setReply();
    std::vector<std::byte> packed;
    std::span<std::byte> into;
    if (height == 1) {
      touch_for_writing(target.address, width);
      into = {reinterpret_cast<std::byte*>(target.address), width};
    } else {
      packed.resize(width * height);
      into = packed;
    }
    call.target(into);
    const std::uint64_t items = stream_.items.load();
    const CUresult result = call.wait(stream_);
    if (result != CUDA_SUCCESS) return result;
    if (call.arrived_bytes() != into.size()) throw ProtocolError("the worker sent too few bytes of a copy");
    stream_.complete(call.number(), items + 1);
    for (std::uint64_t y = 0; height > 1 && y < height; ++y)
      std::memcpy(reinterpret_cast<std::byte*>(target.address + y * target.pitch), packed.data() + y * width, width);
    return result;
  }

  CUresult deliver_later() {
    HostMemory& memory = session_.host_memory();
    memory.expect_delivery(thread_, copy_.target.address, copy_.width);
    RemoteCall<wire::CopyOut> call(thread_, Opcode::copyOut, ContextNeed::none);
    call.in_context(stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(copy_.width, 1, 1, in.initShape());
    write_side(copy_.source, in.initSource());
    in.getTarget().setBlock(copy_.target.address);
    call.host_visible();
    const CUresult result = call.post(stream_);
    if (result != CUDA_SUCCESS) memory.cancel_delivery(copy_.target.address, copy_.width);
    return result;
  }

  // Both sides are the program's own memory: in the stream's order, but done here.
  CUresult host_to_host() {
    if (const CUresult result = session_.settle(thread_, stream_); result != CUDA_SUCCESS) return result;
    for (std::uint64_t z = 0; z < copy_.depth; ++z) {
      for (std::uint64_t y = 0; y < copy_.height; ++y) {
        const auto row = [&](const Rows& rows) { return rows.address + z * rows.slice + y * rows.pitch; };
        std::memmove(reinterpret_cast<std::byte*>(row(copy_.target)), bytes_at(row(copy_.source)), copy_.width);
      }
    }
    return CUDA_SUCCESS;
  }

  Thread& thread_;
  Session& session_;
  Stream& stream_;
  Copy copy_;
};

CUresult copy_linear(Thread& thread, std::uint64_t target, std::uint64_t source, std::size_t bytes, CUstream stream,
                     bool synchronous) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (synchronous) {
    // What a copy on the legacy stream does to captures is told first.
    Captures& captures = thread.session().captures();
    if (const CUresult bad = captures.check_submission(*use); bad != CUDA_SUCCESS) return bad;
    if (const CUresult bad = captures.check_unsafe(thread); bad != CUDA_SUCCESS) return bad;
  }
  Copy copy;
  copy.width = bytes;
  copy.target.address = target;
  copy.source.address = source;
  copy.synchronous = synchronous;
  return Copier(thread, use, copy).run();
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// One side of a CUDA_MEMCPY2D or 3D; false for arrays and nonsense.
CUresult side_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x, std::size_t y, std::size_t z,
                 std::size_t pitch, std::size_t height, std::size_t width, std::size_t rows, Rows& side) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      side.address = address_of(host);
      break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      side.address = device;
      break;
    case CU_MEMORYTYPE_ARRAY:
      refuse_use("a copy from or to an array");
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (pitch == 0 && rows <= 1) pitch = x + width;
  if (pitch < x + width) return CUDA_ERROR_INVALID_VALUE;
  side.pitch = pitch;
  side.slice = pitch * height;
  side.address += z * side.slice + y * pitch + x;
  return CUDA_SUCCESS;
}

CUresult copy_2d(Thread& thread, const CUDA_MEMCPY2D* p, CUstream stream, bool synchronous) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  Copy copy;
  copy.width = p->WidthInBytes;
  copy.height = p->Height;
  copy.synchronous = synchronous;
  if (const CUresult bad = side_of(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, 0, p->srcPitch, p->Height,
                                   p->WidthInBytes, p->Height, copy.source);
      bad != CUDA_SUCCESS)
    return bad;
  if (const CUresult bad = side_of(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, 0, p->dstPitch, p->Height,
                                   p->WidthInBytes, p->Height, copy.target);
      bad != CUDA_SUCCESS)
    return bad;
  return Copier(thread, use, copy).run();
}

CUresult copy_3d(Thread& thread, const CUDA_MEMCPY3D* p, CUstream stream, bool synchronous) {
  if (!p || p->srcLOD != 0 || p->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  Copy copy;
  copy.width = p->WidthInBytes;
  copy.height = p->Height;
  copy.depth = p->Depth;
  copy.synchronous = synchronous;
  const std::size_t rows = p->Height * p->Depth;
  if ((p->Depth > 1 && (p->srcHeight < p->srcY + p->Height || p->dstHeight < p->dstY + p->Height))) {
    if (p->srcMemoryType != CU_MEMORYTYPE_ARRAY && p->dstMemoryType != CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult bad = side_of(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, p->srcZ, p->srcPitch,
                                   p->srcHeight, p->WidthInBytes, rows, copy.source);
      bad != CUDA_SUCCESS)
    return bad;
  if (const CUresult bad = side_of(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch,
                                   p->dstHeight, p->WidthInBytes, rows, copy.target);
      bad != CUDA_SUCCESS)
    return bad;
  return Copier(thread, use, copy).run();
}

}  // namespace

CUresult cuMemcpy(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, dst, src, bytes, default_stream, true);
}
CUresult cuMemcpyAsync(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, dst, src, bytes, stream, false);
}
CUresult cuMemcpyHtoD_v2(Thread& thread, CUdeviceptr dst, const void* src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, dst, address_of(src), bytes, default_stream, true);
}
CUresult cuMemcpyHtoDAsync_v2(Thread& thread, CUdeviceptr dst, const void* src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, dst, address_of(src), bytes, stream, false);
}
CUresult cuMemcpyDtoH_v2(Thread& thread, void* dst, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, address_of(dst), src, bytes, default_stream, true);
}
CUresult cuMemcpyDtoHAsync_v2(Thread& thread, void* dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, address_of(dst), src, bytes, stream, false);
}
// Between device memory the call does not wait, also in its synchronous form.
CUresult cuMemcpyDtoD_v2(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, dst, src, bytes, default_stream, true);
}
CUresult cuMemcpyDtoDAsync_v2(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, dst, src, bytes, stream, false);
}
CUresult cuMemcpy2D_v2(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream default_stream) {
  return copy_2d(thread, copy, default_stream, true);
}
CUresult cuMemcpy2DUnaligned_v2(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream default_stream) {
  return copy_2d(thread, copy, default_stream, true);
}
CUresult cuMemcpy2DAsync_v2(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_2d(thread, copy, stream, false);
}
CUresult cuMemcpy3D_v2(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream default_stream) {
  return copy_3d(thread, copy, default_stream, true);
}
CUresult cuMemcpy3DAsync_v2(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_3d(thread, copy, stream, false);
}

}  // namespace fargpu::client::hand
