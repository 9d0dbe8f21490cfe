// Copies. CUDA Driver API, "Memory Management" and "API synchronization behavior". Every form is brought to one: a shape of rows
// between two sides, each of which is the device's (memory or an array), pinned memory (whose newest contents the worker may hold), or
// any other memory of the program.

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "client/copy/copy_shape.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/graph/graph_node.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

enum class Place { device, pinned, pageable };

const std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

// Meets a bad address here, in the caller, as the driver's own copy would, before any lock is held.
void touch_for_reading(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | 4095) + 1) (void)*reinterpret_cast<const volatile char*>(at);
}
void touch_for_writing(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; at = (at | 4095) + 1) {
    auto* const byte = reinterpret_cast<volatile char*>(at);
    *byte = *byte;
  }
}

/// One copy of a program on its way.
class Copier {
 public:
  Copier(Thread& thread, const StreamUse& stream, const Copy& copy)
      : thread_(thread), session_(session_of(thread)), stream_(*stream), copy_(copy) {}

  /// Whether run() will find everything there.
  CUresult check() {
    if (const CUresult bad = check_arrays(thread_, *stream_.context, copy_); bad != CUDA_SUCCESS) return bad;
    return copy_.empty() || (place(copy_.source) && place(copy_.target)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

  CUresult run() {
    if (copy_.synchronous) {
      // What a copy on the legacy stream does to captures is told first.
      Captures& captures = session_.captures;
      if (const CUresult bad = captures.check_submission(stream_); bad != CUDA_SUCCESS) return bad;
      if (const CUresult bad = captures.check_unsafe(thread_); bad != CUDA_SUCCESS) return bad;
    }
    if (copy_.empty()) return CUDA_SUCCESS;
    if (const CUresult bad = check_arrays(thread_, *stream_.context, copy_); bad != CUDA_SUCCESS) return bad;
    copy_.flatten();
    auto source = place(copy_.source);
    const auto target = place(copy_.target);
    if (!source || !target) return CUDA_ERROR_INVALID_VALUE;
    if (target == Place::device && !stream_.capture.load() && read_at_once()) source = Place::pageable;
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
    if (rows.in_array) return Place::device;
    const std::uint64_t extent = copy_.extent(rows);
    const auto region = session_.map.find(rows.address);
    if (region && region->managed()) session_.managed.before_work(thread_);
    if (region && region->kind == Region::Kind::alias) session_.host_memory.before_work(thread_);
    if (region && session_.shares_memory() && region->kind == Region::Kind::host && &rows == &copy_.source &&
        copy_.source_order == Copy::SourceOrder::early) {
      // The GPU would read it later than during the call; this process has the same bytes.
      return region->contains(rows.address, extent) ? std::optional(Place::pageable) : std::nullopt;
    }
    if (region && session_.host_memory.at_worker(rows.address)) {
      session_.host_memory.before_work(thread_);
      return region->contains(rows.address, extent) ? std::optional(Place::device) : std::nullopt;
    }
    if (region && region->on_device()) return session_.map.covered(rows.address, extent) ? std::optional(Place::device) : std::nullopt;
    if (region) return region->contains(rows.address, extent) ? std::optional(Place::pinned) : std::nullopt;
    const Terms& terms = session_.terms;
    if (rows.known || rows.address == 0 || terms.device_window.contains(rows.address) || terms.driver_band.contains(rows.address))
      return std::nullopt;
    return Place::pageable;
  }

  // Whether the source is memory of which the worker has pages of its own, where the GPU would read it after the call, and must be read
  // during the call: then it is, here.
  bool read_at_once() {
    if (copy_.source_order != Copy::SourceOrder::early || copy_.source.in_array) return false;
    const auto region = session_.map.find(copy_.source.address);
    if (!region) return false;
    const bool alias = region->kind == Region::Kind::alias;
    if (!alias && !region->managed() && !(region->on_host() && session_.host_memory.mapped(copy_.source.address))) return false;
    if (alias) copy_.source.address = region->owner + (copy_.source.address - region->base);
    copies_source_ = true;
    return true;
  }

  // The host sees the outcome in memory that the worker has.
  bool seen_by_host(const Rows& rows) const {
    if (rows.in_array) return false;
    const auto region = session_.map.find(rows.address);
    return region && (region->managed() || region->kind == Region::Kind::alias || session_.host_memory.at_worker(rows.address));
  }

  // On a stream that is captured the copy becomes a node of the graph, and is done when that is launched.
  CUresult capture_copy(Place source, Place target) {
    const auto type = [](const Rows& rows, Place place) {
      return rows.in_array ? CU_MEMORYTYPE_ARRAY : place == Place::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    };
    const auto slice_rows = [&](const Rows& rows) { return rows.slice ? rows.slice / rows.pitch : copy_.height; };
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = copy_.width;
    copy.Height = copy_.height;
    copy.Depth = copy_.depth;
    copy.srcMemoryType = type(copy_.source, source);
    copy.srcDevice = copy_.source.address;
    copy.srcHost = bytes_at(copy_.source.address);
    copy.srcArray = handle_cast<CUarray>(copy_.source.array);
    copy.srcXInBytes = copy_.source.x;
    copy.srcY = copy_.source.y;
    copy.srcZ = copy_.source.z;
    copy.srcPitch = copy_.source.pitch;
    copy.srcHeight = slice_rows(copy_.source);
    copy.dstMemoryType = type(copy_.target, target);
    copy.dstDevice = copy_.target.address;
    copy.dstHost = reinterpret_cast<void*>(copy_.target.address);
    copy.dstArray = handle_cast<CUarray>(copy_.target.array);
    copy.dstXInBytes = copy_.target.x;
    copy.dstY = copy_.target.y;
    copy.dstZ = copy_.target.z;
    copy.dstPitch = copy_.target.pitch;
    copy.dstHeight = slice_rows(copy_.target);
    NewParts parts(session_.graph_parts);
    RemoteCall<wire::CaptureCopy> call(thread_, stream_.context);
    call.in().setStream(stream_.wire());
    if (const CUresult bad = write_copy(thread_, copy, nullptr, call.in().initCopy(), parts); bad != CUDA_SUCCESS) return bad;
    const CUresult result = call.post(stream_);
    if (result == CUDA_SUCCESS) {
      session_.host_memory.graph_has(thread_, parts);
      parts.keep();
    }
    return result;
  }

  CUresult device_to_device() {
    RemoteCall<wire::CopyDevice> call(thread_, stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(copy_.width, copy_.height, copy_.depth, in.initShape());
    write_side(copy_.target, in.initTarget());
    write_side(copy_.source, in.initSource());
    if (copy_.target_context) in.setTargetContext(copy_.target_context->handle.value());
    if (copy_.source_context) in.setSourceContext(copy_.source_context->handle.value());
    const bool to_host = seen_by_host(copy_.target);
    if (to_host) call.host_visible();
    const CUresult result = call.post(stream_);
    const bool waits = copy_.synchronous && (to_host || seen_by_host(copy_.source));
    return result == CUDA_SUCCESS && waits ? session_.waits.settle(thread_, stream_) : result;
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
          const CUresult result = step(copy_.target.from(x, y, z), copy_.source.from(x, y, z), width, height);
          if (result != CUDA_SUCCESS) return result;
        }
      }
    }
    return CUDA_SUCCESS;
  }

  // Whether the whole copy is one run of bytes on both sides, large enough for the bulk lanes. What the worker would hold back until this
  // process has done something must not fill them.
  bool by_lanes(const Rows& device, const Rows& host) {
    const bool one_run =
        copy_.depth == 1 && !device.in_array && (copy_.height == 1 || (device.pitch == copy_.width && host.pitch == copy_.width));
    return one_run && copy_.synchronous && !session_.waits.for_host() && session_.lanes.takes(copy_.width * copy_.height);
  }

  CUresult send_by_lanes() {
    const std::uint64_t bytes = copy_.width * copy_.height;
    const std::uint32_t transfer = session_.lanes.next();
    CUresult result = CUDA_SUCCESS;
    const auto call = [&] {
      result = copy_in(copy_.target, bytes, 1, /*taken=*/false, {}, [&](auto from) { from.setLanes(transfer); });
      if (result == CUDA_SUCCESS) session_.calls.commands.flush();
      return result == CUDA_SUCCESS;
    };
    const trace::Transfer traced(thread_, trace::Direction::out, bytes);
    if (session_.lanes.send(transfer, {bytes_at(copy_.source.address), bytes}, call)) return result;
    // It met memory that cannot be read, or not yet: that is met here, as the driver's own copy would, and if it passes, once more.
    return send_in_order(Place::pageable);
  }

  CUresult host_to_device(Place source) {
    // What runs in this process before the copy may write its source.
    if (copy_.synchronous && (session_.waits.for_host() || session_.graphs.any_launched())) {
      if (const CUresult result = session_.waits.settle(thread_, stream_); result != CUDA_SUCCESS) return result;
    }
    const bool lanes = by_lanes(copy_.target, copy_.source) &&
                       (source == Place::pageable ? !read_later() : newest_here(copy_.source, copy_.width, copy_.height));
    const CUresult result = lanes ? send_by_lanes() : send_in_order(source);
    if (result != CUDA_SUCCESS || !copy_.synchronous) return result;
    // A synchronous copy is also a wait for what the stream still has to do, where the host would notice.
    Context& context = *stream_.context;
    const bool noticed = context.host_visible.load() > context.completed.load() || session_.shared_memory.any();
    return noticed ? session_.waits.settle(thread_, stream_) : result;
  }

  // On the session's own connection, between the calls.
  CUresult send_in_order(Place source) {
    const bool staged = goes_through_staging(copy_.source);
    const std::uint64_t most = staged ? SharedStaging::part_bytes(copy_.width * copy_.height) : limits::bulk_bytes_max;
    return for_parts(most, [&](Rows target, Rows from, std::uint64_t width, std::uint64_t height) {
      const auto send_now = [&] { return staged ? send_staged(target, from, width, height) : send_rows(target, from, width, height); };
      if (source == Place::pageable) return read_later() ? send_part(target, from, width, height) : send_now();
      if (newest_here(from, width, height)) return send_now();
      for (std::uint64_t y = 0; y < height; ++y) {
        const CUresult sent = send_pinned(target.from(0, y, 0), from.from(0, y, 0).address, width);
        if (sent != CUDA_SUCCESS) return sent;
      }
      return CUDA_SUCCESS;
    });
  }

  // `taken`: the bytes are as the program wants them, and what it does with its own later does not matter.
  template <class Fill>
  CUresult copy_in(const Rows& target, std::uint64_t width, std::uint64_t height, bool taken, std::span<const std::byte> bulk,
                   Fill&& fill) {
    RemoteCall<wire::CopyIn> call(thread_, stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(width, height, 1, in.initShape());
    write_side(target, in.initTarget());
    in.setComplete(copy_.synchronous);
    if (seen_by_host(target)) call.host_visible();
    if (taken) call.taken();
    fill(in.getSource());
    call.bulk(bulk);
    return call.post(stream_);
  }

  // The bytes as they are now.
  CUresult send_rows(const Rows& target, const Rows& source, std::uint64_t width, std::uint64_t height) {
    std::span<const std::byte> bulk;
    std::vector<std::byte> packed;
    if (!copies_source_ && (height == 1 || source.pitch == width)) {
      touch_for_reading(source.address, width * height);
      bulk = {bytes_at(source.address), width * height};
    } else {
      packed.resize(width * height);
      for (std::uint64_t y = 0; y < height; ++y) std::memcpy(packed.data() + y * width, bytes_at(source.address + y * source.pitch), width);
      bulk = packed;
    }
    return copy_in(target, width, height, /*taken=*/true, bulk, [](auto from) { from.setBulk(); });
  }

  // Whether rows of the program's memory, packed, are so many that copying them into memory that the worker shares pays.
  bool goes_through_staging(const Rows& rows) const {
    return session_.shares_memory() && !copies_source_ && copy_.width * copy_.height >= SharedStaging::gains_bytes &&
           (copy_.height == 1 || rows.pitch == copy_.width);
  }

  // The bytes as they are now, by way of shared memory. No lock is held while they are read.
  CUresult send_staged(const Rows& target, const Rows& source, std::uint64_t width, std::uint64_t height) {
    const std::uint64_t bytes = width * height;
    const auto slot = session_.staging.take(thread_, session_.contexts.home(*stream_.context), true);
    if (!slot) return send_rows(target, source, width, height);
    session_.staging.copy(slot->data(), bytes_at(source.address), bytes);
    const CUresult result = copy_in(target, width, height, /*taken=*/true, {}, [&](auto from) { from.setBlock(slot->address()); });
    session_.fences.after(thread_, stream_, [slot] {});
    return result;
  }

  // Whether pageable memory may change before the stream gets there, and shall be read then.
  bool read_later() {
    return copy_.source_order == Copy::SourceOrder::stream && (session_.waits.for_host() || session_.graphs.any_launched());
  }

  // Rows that the worker asks for when the stream gets there.
  CUresult send_part(const Rows& target, const Rows& source, std::uint64_t width, std::uint64_t height) {
    NewParts parts(session_.graph_parts);
    const std::uint64_t part = parts.add(GraphParts::Memory{.base = source.address,
                                                            .pitch = source.pitch ? source.pitch : width,
                                                            .height = height,
                                                            .width = width,
                                                            .rows = height,
                                                            .slices = 1,
                                                            .source = true});
    const CUresult result = copy_in(target, width, height, /*taken=*/false, {}, [&](auto from) { from.setPart(part); });
    if (result == CUDA_SUCCESS) parts.keep();
    return result;
  }

  // Whether rows of pinned memory can be sent as they are now: nobody else has, or may still write, newer ones.
  bool newest_here(const Rows& rows, std::uint64_t width, std::uint64_t height) const {
    if (may_change()) return false;
    const std::uint64_t extent = (height - 1) * rows.pitch + width;
    const HostMemory& memory = session_.host_memory;
    const HostMemory::Part part = memory.newest(rows.address, extent);
    return !memory.mapped(rows.address) && !part.worker_newer && part.bytes == extent;
  }

  // Whether a host function or another part of the program may still write what an asynchronous copy is to read.
  bool may_change() const { return !copy_.synchronous && !copy_.out_of_order() && session_.waits.for_host(); }

  // One row of pinned memory, whose contents count when the stream gets there. Where the worker holds newer bytes than we do, they
  // stay there; where a host function still has to run, which may write them, they are fetched when it has.
  CUresult send_pinned(Rows target, std::uint64_t source, std::uint64_t bytes) {
    HostMemory& memory = session_.host_memory;
    if (memory.mapped(source)) {
      memory.send_changes(thread_);
      return copy_in(target, bytes, 1, /*taken=*/false, {}, [&](auto from) { from.setBlock(source); });
    }
    if (!copy_.synchronous && !copy_.out_of_order() && session_.graphs.any_launched())  // which may write there yet
      return copy_in(target, bytes, 1, /*taken=*/false, {}, [&](auto from) { from.setPull(source); });
    while (bytes > 0) {
      const HostMemory::Part part = memory.newest(source, bytes);
      if (target.in_array && part.bytes < bytes) {
        // Elements of arrays cannot be copied by halves: the whole row is to be here first.
        const CUresult settled = session_.waits.settle(thread_, *stream_.context);
        return settled == CUDA_SUCCESS ? send_rows(target, {.address = source}, bytes, 1) : settled;
      }
      CUresult result;
      if (part.worker_newer) {
        result = copy_in(target, part.bytes, 1, /*taken=*/false, {}, [&](auto from) { from.setBlock(source); });
      } else if (may_change()) {
        result = copy_in(target, part.bytes, 1, /*taken=*/false, {}, [&](auto from) { from.setPull(source); });
      } else {
        result = send_rows(target, {.address = source}, part.bytes, 1);
      }
      if (result != CUDA_SUCCESS) return result;
      source += part.bytes;
      target = target.from(part.bytes, 0, 0);
      bytes -= part.bytes;
    }
    return CUDA_SUCCESS;
  }

  CUresult device_to_host(Place target) {
    const bool packed = copy_.height == 1 || copy_.target.pitch == copy_.width;
    if (by_lanes(copy_.source, copy_.target)) return fetch_by_lanes();
    if (target == Place::pinned && !copy_.synchronous && packed && copy_.depth == 1) return deliver_later();
    if (goes_through_staging(copy_.target)) return fetch_staged();
    // Packed rows are received in place, however many; others are unpacked here and need room for it.
    constexpr std::uint64_t unpacked_bytes_max = 64u << 20;
    return for_parts(
        packed ? copy_.width * copy_.height : unpacked_bytes_max,
        [&](Rows to, Rows source, std::uint64_t width, std::uint64_t height) { return fetch_rows(to, source, width, height); });
  }

  // By way of shared memory: the GPU fills some parts of it while this thread empties those before.
  CUresult fetch_staged() {
    struct Part {
      std::shared_ptr<SharedStaging::Slot> slot;
      std::uint64_t target, bytes;
    };
    std::deque<Part> parts;
    const auto empty_oldest = [&] {
      Part part = std::move(parts.front());
      parts.pop_front();
      session_.calls.commands.flush();
      session_.calls.receiver.wait_until([&] { return part.slot->passed.load(std::memory_order_acquire); });
      session_.staging.copy(reinterpret_cast<void*>(part.target), part.slot->data(), part.bytes);
    };
    session_.host_memory.before_wait(thread_);
    Context& home = session_.contexts.home(*stream_.context);
    bool filled = true;
    const CUresult result = for_parts(SharedStaging::part_bytes(copy_.width * copy_.height), [&](Rows to, Rows source, std::uint64_t width,
                                                                                                 std::uint64_t height) {
      auto slot = session_.staging.take(thread_, home, parts.empty());
      while (!slot && !parts.empty()) {  // others have the rest: so that nobody waits for another in a circle, ours are given back first
        empty_oldest();
        slot = session_.staging.take(thread_, home, parts.empty());
      }
      if (!slot) return fetch_rows(to, source, width, height);
      RemoteCall<wire::CopyOut> call(thread_, stream_.context);
      auto in = call.in();
      in.setStream(stream_.wire());
      write_shape(width, height, 1, in.initShape());
      write_side(source, in.initSource());
      in.getTarget().setBlock(slot->address());
      call.host_visible();
      const CUresult posted = call.post(stream_);
      session_.fences.after(thread_, stream_, [slot] { slot->passed.store(true, std::memory_order_release); });
      parts.push_back({std::move(slot), to.address, width * height});
      filled = posted == CUDA_SUCCESS;
      return posted;
    });
    while (filled && !parts.empty()) empty_oldest();
    // Nothing is left to wait for, but a copy that has failed says so here.
    const CUresult settled = session_.waits.settle(thread_, stream_);
    return result == CUDA_SUCCESS ? settled : result;
  }

  CUresult fetch_by_lanes() {
    const std::uint64_t bytes = copy_.width * copy_.height;
    touch_for_writing(copy_.target.address, bytes);
    ClientLanes::Landing landing(session_.lanes, {reinterpret_cast<std::byte*>(copy_.target.address), bytes});
    RemoteCall<wire::CopyOut> call(thread_, stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(bytes, 1, 1, in.initShape());
    write_side(copy_.source, in.initSource());
    in.getTarget().setLanes(landing.transfer());
    const std::uint64_t items = stream_.items.load();
    const CUresult result = call.wait(stream_);
    if (result != CUDA_SUCCESS) return result;
    {
      const trace::Transfer traced(thread_, trace::Direction::in, bytes);
      landing.wait();
    }
    stream_.complete(call.number(), items + 1);
    return result;
  }

  // Waits for the bytes: they are there when the call returns, as the program may assume of pageable memory.
  CUresult fetch_rows(const Rows& target, const Rows& source, std::uint64_t width, std::uint64_t height) {
    RemoteCall<wire::CopyOut> call(thread_, stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(width, height, 1, in.initShape());
    write_side(source, in.initSource());
    in.getTarget().setReply();
    const bool in_place = height == 1 || target.pitch == width;
    std::vector<std::byte> packed;
    std::span<std::byte> into;
    if (in_place) {
      touch_for_writing(target.address, width * height);
      into = {reinterpret_cast<std::byte*>(target.address), width * height};
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
    for (std::uint64_t y = 0; !in_place && y < height; ++y)
      std::memcpy(reinterpret_cast<std::byte*>(target.address + y * target.pitch), packed.data() + y * width, width);
    return result;
  }

  CUresult deliver_later() {
    HostMemory& memory = session_.host_memory;
    const std::uint64_t bytes = copy_.width * copy_.height;
    memory.expect_delivery(thread_, copy_.target.address, bytes);
    RemoteCall<wire::CopyOut> call(thread_, stream_.context);
    auto in = call.in();
    in.setStream(stream_.wire());
    write_shape(copy_.width, copy_.height, 1, in.initShape());
    write_side(copy_.source, in.initSource());
    in.getTarget().setBlock(copy_.target.address);
    call.host_visible();
    const CUresult result = call.post(stream_);
    if (result != CUDA_SUCCESS) memory.cancel_delivery(copy_.target.address, bytes);
    return result;
  }

  // Both sides are the program's own memory: in the stream's order, but done here.
  CUresult host_to_host() {
    if (const CUresult result = session_.waits.settle(thread_, stream_); result != CUDA_SUCCESS) return result;
    for (std::uint64_t z = 0; z < copy_.depth; ++z) {
      for (std::uint64_t y = 0; y < copy_.height; ++y) {
        std::memmove(reinterpret_cast<std::byte*>(copy_.target.from(0, y, z).address), bytes_at(copy_.source.from(0, y, z).address),
                     copy_.width);
      }
    }
    return CUDA_SUCCESS;
  }

  Thread& thread_;
  Session& session_;
  Stream& stream_;
  Copy copy_;
  bool copies_source_ = false;  // into a buffer first: other threads may take its pages away while it is sent
};

CUresult run(Thread& thread, CUstream stream, const Copy& copy) {
  const StreamUse use(thread, stream);
  return use ? Copier(thread, use, copy).run() : use.error();
}

Rows memory(std::uint64_t address) { return {.address = address}; }
Rows device(CUdeviceptr address) { return {.address = address, .known = true}; }
Rows memory(const void* host) { return memory(reinterpret_cast<std::uint64_t>(host)); }
Rows array(CUarray array, std::size_t offset) { return {.in_array = true, .array = handle_of(array), .x = offset}; }

CUresult copy_linear(Thread& thread, const Rows& target, const Rows& source, std::size_t bytes, CUstream stream, bool synchronous) {
  return run(thread, stream, {.width = bytes, .target = target, .source = source, .synchronous = synchronous});
}

template <class Params>
CUresult copy_shaped(Thread& thread, const Params* params, CUstream stream, bool synchronous) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  Copy copy;
  copy.synchronous = synchronous;
  if (const CUresult bad = read_copy(*params, copy); bad != CUDA_SUCCESS) return bad;
  return run(thread, stream, copy);
}

// The contexts of a copy between them, null for the current one; false if one is none.
bool name_contexts(Thread& thread, CUcontext target, CUcontext source, Copy& copy) {
  const auto named = [&](CUcontext context) { return context ? session_of(thread).contexts.find(context) : thread.context(); };
  copy.target_context = named(target);
  copy.source_context = named(source);
  return copy.target_context && copy.target_context->active && copy.source_context && copy.source_context->active;
}

// The forms without a stream come after all work of both contexts and before all of their later work.
CUresult run_between(Thread& thread, const Copy& copy, CUstream default_stream) {
  Session& session = session_of(thread);
  for (Context* const context : {copy.target_context, copy.source_context})
    if (const CUresult result = session.waits.synchronize(thread, *context); result != CUDA_SUCCESS) return result;
  const StreamUse stream(thread, default_stream);
  if (!stream) return stream.error();
  if (const CUresult result = Copier(thread, stream, copy).run(); result != CUDA_SUCCESS) return result;
  return session.waits.settle(thread, *stream);
}

template <class Params>
CUresult read_between(Thread& thread, const Params* params, Copy& copy) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = read_copy(*params, copy); bad != CUDA_SUCCESS) return bad;
  const auto needs_context = [](CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY; };
  if (!name_contexts(thread, needs_context(params->dstMemoryType) ? params->dstContext : nullptr,
                     needs_context(params->srcMemoryType) ? params->srcContext : nullptr, copy))
    return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpy(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, memory(dst), memory(src), bytes, default_stream, true);
}
CUresult cuMemcpyAsync(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, memory(dst), memory(src), bytes, stream, false);
}
CUresult cuMemcpyHtoD_v2(Thread& thread, CUdeviceptr dst, const void* src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, device(dst), memory(src), bytes, default_stream, true);
}
CUresult cuMemcpyHtoDAsync_v2(Thread& thread, CUdeviceptr dst, const void* src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, device(dst), memory(src), bytes, stream, false);
}
CUresult cuMemcpyDtoH_v2(Thread& thread, void* dst, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, memory(dst), device(src), bytes, default_stream, true);
}
CUresult cuMemcpyDtoHAsync_v2(Thread& thread, void* dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, memory(dst), device(src), bytes, stream, false);
}
// Between device memory the call does not wait, also in its synchronous form.
CUresult cuMemcpyDtoD_v2(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, device(dst), device(src), bytes, default_stream, true);
}
CUresult cuMemcpyDtoDAsync_v2(Thread& thread, CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, device(dst), device(src), bytes, stream, false);
}
CUresult cuMemcpy2D_v2(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream default_stream) {
  return copy_shaped(thread, copy, default_stream, true);
}
CUresult cuMemcpy2DUnaligned_v2(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream default_stream) {
  return copy_shaped(thread, copy, default_stream, true);
}
CUresult cuMemcpy2DAsync_v2(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream stream) { return copy_shaped(thread, copy, stream, false); }
CUresult cuMemcpy3D_v2(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream default_stream) {
  return copy_shaped(thread, copy, default_stream, true);
}
CUresult cuMemcpy3DAsync_v2(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream stream) { return copy_shaped(thread, copy, stream, false); }

CUresult cuMemcpyPeer(Thread& thread, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, std::size_t bytes,
                      CUstream default_stream) {
  Copy copy{.width = bytes, .target = device(dst), .source = device(src), .synchronous = true};
  if (!name_contexts(thread, dst_context, src_context, copy)) return CUDA_ERROR_INVALID_CONTEXT;
  return run_between(thread, copy, default_stream);
}
CUresult cuMemcpyPeerAsync(Thread& thread, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                           std::size_t bytes, CUstream stream) {
  Copy copy{.width = bytes, .target = device(dst), .source = device(src)};
  if (!name_contexts(thread, dst_context, src_context, copy)) return CUDA_ERROR_INVALID_CONTEXT;
  return run(thread, stream, copy);
}
CUresult cuMemcpy3DPeer(Thread& thread, const CUDA_MEMCPY3D_PEER* params, CUstream default_stream) {
  Copy copy;
  copy.synchronous = true;
  const CUresult bad = read_between(thread, params, copy);
  return bad == CUDA_SUCCESS ? run_between(thread, copy, default_stream) : bad;
}
CUresult cuMemcpy3DPeerAsync(Thread& thread, const CUDA_MEMCPY3D_PEER* params, CUstream stream) {
  Copy copy;
  const CUresult bad = read_between(thread, params, copy);
  return bad == CUDA_SUCCESS ? run(thread, stream, copy) : bad;
}

// One row of an array.
CUresult cuMemcpyDtoA_v2(Thread& thread, CUarray dst, std::size_t offset, CUdeviceptr src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, array(dst, offset), device(src), bytes, default_stream, true);
}
CUresult cuMemcpyAtoD_v2(Thread& thread, CUdeviceptr dst, CUarray src, std::size_t offset, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, device(dst), array(src, offset), bytes, default_stream, true);
}
CUresult cuMemcpyHtoA_v2(Thread& thread, CUarray dst, std::size_t offset, const void* src, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, array(dst, offset), memory(src), bytes, default_stream, true);
}
CUresult cuMemcpyHtoAAsync_v2(Thread& thread, CUarray dst, std::size_t offset, const void* src, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, array(dst, offset), memory(src), bytes, stream, false);
}
CUresult cuMemcpyAtoH_v2(Thread& thread, void* dst, CUarray src, std::size_t offset, std::size_t bytes, CUstream default_stream) {
  return copy_linear(thread, memory(dst), array(src, offset), bytes, default_stream, true);
}
CUresult cuMemcpyAtoHAsync_v2(Thread& thread, void* dst, CUarray src, std::size_t offset, std::size_t bytes, CUstream stream) {
  return copy_linear(thread, memory(dst), array(src, offset), bytes, stream, false);
}
CUresult cuMemcpyAtoA_v2(Thread& thread, CUarray dst, std::size_t dst_offset, CUarray src, std::size_t src_offset, std::size_t bytes,
                         CUstream default_stream) {
  return copy_linear(thread, array(dst, dst_offset), array(src, src_offset), bytes, default_stream, true);
}

// --- batches --------------------------------------------------------------------------------------------------------------------------

namespace {

CUresult read_order(CUmemcpySrcAccessOrder order, unsigned flags, Copy& copy) {
  if (flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) return CUDA_ERROR_INVALID_VALUE;
  switch (order) {
    case CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: copy.source_order = Copy::SourceOrder::stream; return CUDA_SUCCESS;
    case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL: copy.source_order = Copy::SourceOrder::early; return CUDA_SUCCESS;
    case CU_MEMCPY_SRC_ACCESS_ORDER_ANY: copy.source_order = Copy::SourceOrder::any; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// All of a batch or, if anything is wrong with one of its copies, nothing. `read(i, copy)` says what copy i is; `failed` gets the one that
// is wrong.
template <class Read>
CUresult copy_batch(Thread& thread, std::size_t count, CUstream stream, std::size_t& failed, Read&& read) {
  failed = SIZE_MAX;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (count == 0 || use->legacy()) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Copy> copies(count);
  for (std::size_t i = 0; i < count; ++i) {
    CUresult bad = read(*use->context, i, copies[i]);
    if (bad == CUDA_SUCCESS) bad = Copier(thread, use, copies[i]).check();
    if (bad == CUDA_SUCCESS) continue;
    failed = i;
    return bad;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const CUresult result = Copier(thread, use, copies[i]).run();
    if (result == CUDA_SUCCESS) continue;
    failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult copy_linear_batch(Thread& thread, const CUdeviceptr* targets, const CUdeviceptr* sources, const std::size_t* sizes,
                           std::size_t count, const CUmemcpyAttributes* attributes, const std::size_t* first, std::size_t attribute_count,
                           std::size_t& failed, CUstream stream) {
  failed = SIZE_MAX;
  if (!targets || !sources || !sizes || !attributes || !first || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute_count == 0 || attribute_count > count || first[0] != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 1; i < attribute_count; ++i)
    if (first[i] <= first[i - 1] || first[i] >= count) return CUDA_ERROR_INVALID_VALUE;
  std::size_t attribute = 0;
  return copy_batch(thread, count, stream, failed, [&](Context&, std::size_t i, Copy& copy) {
    if (attribute + 1 < attribute_count && first[attribute + 1] == i) ++attribute;
    copy.width = sizes[i];
    copy.source = memory(sources[i]);
    copy.target = memory(targets[i]);
    return read_order(attributes[attribute].srcAccessOrder, attributes[attribute].flags, copy);
  });
}

CUresult copy_shaped_batch(Thread& thread, std::size_t count, const CUDA_MEMCPY3D_BATCH_OP* operations, std::size_t& failed,
                           unsigned long long flags, CUstream stream) {
  failed = SIZE_MAX;
  if (!operations || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return copy_batch(thread, count, stream, failed, [&](Context& context, std::size_t i, Copy& copy) {
    const CUDA_MEMCPY3D_BATCH_OP& operation = operations[i];
    if (const CUresult bad = read_order(operation.srcAccessOrder, operation.flags, copy); bad != CUDA_SUCCESS) return bad;
    return read_copy(thread, context, operation, copy);
  });
}

}  // namespace

CUresult cuMemcpyBatchAsync(Thread& thread, CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attributes, std::size_t* first, std::size_t attribute_count, std::size_t* failed,
                            CUstream stream) {
  std::size_t ignored;
  return copy_linear_batch(thread, targets, sources, sizes, count, attributes, first, attribute_count, failed ? *failed : ignored, stream);
}
CUresult cuMemcpyBatchAsync_v2(Thread& thread, CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes, std::size_t count,
                               CUmemcpyAttributes* attributes, std::size_t* first, std::size_t attribute_count, CUstream stream) {
  std::size_t ignored;
  return copy_linear_batch(thread, targets, sources, sizes, count, attributes, first, attribute_count, ignored, stream);
}
CUresult cuMemcpy3DBatchAsync(Thread& thread, std::size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, std::size_t* failed,
                              unsigned long long flags, CUstream stream) {
  std::size_t ignored;
  return copy_shaped_batch(thread, count, operations, failed ? *failed : ignored, flags, stream);
}
CUresult cuMemcpy3DBatchAsync_v2(Thread& thread, std::size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags,
                                 CUstream stream) {
  std::size_t ignored;
  return copy_shaped_batch(thread, count, operations, ignored, flags, stream);
}

}  // namespace fargpu::client::hand
