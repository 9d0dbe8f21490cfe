#include "copier.h"

#include <cstring>

#include "client/base/pages.h"
#include "copy_node.h"
#include "ways_to_device.h"
#include "ways_to_host.h"

namespace fargpu::client {
namespace {

// Whether the program wants all synchronous copies in this context, or from or to one of these, to be waited for.
bool synchronizing(const Context& context, const std::optional<Region>& source, const std::optional<Region>& target) {
  return (context.flags & CU_CTX_SYNC_MEMOPS) || (source && source->sync_memops) || (target && target->sync_memops);
}

// An awaited copy that writes pinned memory. Kernels do not come to use that before the bytes are there.
class Arriving {
 public:
  Arriving(HostMemory& memory, Context& context, std::uint64_t begin, std::uint64_t end)
      : memory_(memory), begin_(begin), end_(end), expected_(memory.expect_awaited(context, begin, end)) {}
  ~Arriving() {
    if (expected_) memory_.awaited_is_over(begin_, end_);
  }
  Arriving(const Arriving&) = delete;
  Arriving& operator=(const Arriving&) = delete;
  /// False if they use it already.
  explicit operator bool() const { return expected_; }

 private:
  HostMemory& memory_;
  const std::uint64_t begin_, end_;
  const bool expected_;
};

// Pinned memory that is being read, or given to the lanes to be read. Kernels do not come to use it meanwhile.
class Reading {
 public:
  Reading(HostMemory& memory, std::uint64_t begin, std::uint64_t end) : memory_(memory), begin_(begin), end_(end) {
    memory_.begin_reading(begin_, end_);
  }
  ~Reading() { memory_.reading_is_over(begin_, end_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  HostMemory& memory_;
  const std::uint64_t begin_, end_;
};

}  // namespace

CUresult Copier::check() {
  if (const CUresult bad = check_arrays(job_.thread, *job_.stream.context, job_.copy); bad != CUDA_SUCCESS) return bad;
  if (job_.copy.shape.empty()) return CUDA_SUCCESS;
  for (const CopySide* const side : {&job_.copy.source, &job_.copy.target}) {
    const Known known = look_up(*side);
    send_changes_to(*side, known);
    if (memory_of(*side, known) == Memory::unusable) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult Copier::run() {
  Copy& copy = job_.copy;
  if (copy.done_on_return) {
    if (job_.stream.capture.load()) return parts_.captures.check_query(job_.thread, job_.stream);  // it would wait
    // What a copy on the legacy stream does to captures is told first. It harms none that the stream does not disturb.
    if (const CUresult bad = parts_.captures.check_submission(job_.stream); bad != CUDA_SUCCESS) return bad;
  }
  if (copy.shape.empty()) return CUDA_SUCCESS;
  if (const CUresult bad = check_arrays(job_.thread, *job_.stream.context, copy); bad != CUDA_SUCCESS) return bad;
  copy.flatten();
  // Pages that are opened from here on may be old when the copy is given.
  const Counted given = parts_.whole_system_work.giving();
  source_ = look_up(copy.source);
  target_ = look_up(copy.target);
  Memory source = memory_of(copy.source, source_);
  const Memory target = memory_of(copy.target, target_);
  if (source == Memory::unusable || target == Memory::unusable) return CUDA_ERROR_INVALID_VALUE;
  for (const Known* const known : {&source_, &target_}) {
    if (!known->region) continue;
    if (const CUresult bad = parts_.host_memory.keep_promise(job_.thread, *known->region); bad != CUDA_SUCCESS)
      return bad;
  }
  // Also those of memory that has just become usable.
  send_changes_to(copy.source, source_);
  send_changes_to(copy.target, target_);
  job_.host_sees_target = target_.seen_by_host();
  const bool captured = job_.stream.capture.load() != nullptr;
  if (target == Memory::device && !captured && use_own_pages_of_source()) source = Memory::pageable;
  if (source == Memory::device && target == Memory::device) return within_device();
  if (captured) return capture(source, target);
  if (target == Memory::device) return to_device(source);
  if (source != Memory::device) return within_host();
  const bool awaited = target != Memory::pinned || copy.done_on_return;
  const CUresult result = to_host(target, awaited);
  if (awaited) parts_.waits.after_work(job_.thread);
  return result;
}

// --- what memory a side is ------------------------------------------------------------------------------------------

bool Copier::Known::seen_by_host() const {
  return region && (region->managed() || region->kind == Region::Kind::alias || at_worker);
}

Copier::Known Copier::look_up(const CopySide& side) const {
  Known known;
  if (side.in_array()) return known;
  known.region = parts_.program.map.find(side.place);
  known.at_worker = known.region && parts_.host_memory.at_worker(side.place);
  return known;
}

// Whether the GPU would read a source later than during the call, of which this process has the same bytes.
bool Copier::read_from_own_pages(const CopySide& side, const Known& known) const {
  return known.region && known.region->kind == Region::Kind::host && &side == &job_.copy.source &&
         job_.copy.source_order == Copy::SourceOrder::early && parts_.shares_memory;
}

Copier::Memory Copier::memory_of(const CopySide& side, const Known& known) const {
  if (side.in_array()) return Memory::device;
  const Copy& copy = job_.copy;
  const std::uint64_t extent = side.extent(copy.shape);
  if (known.region) {
    const Region& region = *known.region;
    const auto if_within = [&](Memory memory) {
      return region.contains(side.place, extent) ? memory : Memory::unusable;
    };
    if (read_from_own_pages(side, known)) return if_within(Memory::pageable);
    if (known.at_worker) return if_within(Memory::device);
    if (region.on_device()) return parts_.program.map.covered(side.place, extent) ? Memory::device : Memory::unusable;
    return if_within(Memory::pinned);
  }
  const bool pageable = side.kind != CopySide::Kind::device && parts_.program.pageable(side.place);
  return pageable ? Memory::pageable : Memory::unusable;
}

// What the program changed in pages that both sides have goes ahead of the copy.
void Copier::send_changes_to(const CopySide& side, const Known& known) {
  if (!known.region) return;
  if (known.region->managed()) parts_.managed.before_work(job_.thread);
  const bool reads_worker_pages = known.at_worker && !read_from_own_pages(side, known);
  if (known.region->kind == Region::Kind::alias || reads_worker_pages) parts_.host_memory.before_work(job_.thread);
}

// A source that must be read during the call, in memory of which the worker has pages of its own, where the GPU would
// read it after the call, is read here.
bool Copier::use_own_pages_of_source() {
  Copy& copy = job_.copy;
  if (copy.source_order != Copy::SourceOrder::early || !source_.region) return false;
  const Region& region = *source_.region;
  const bool alias = region.kind == Region::Kind::alias;
  if (!alias && !region.managed() && !(region.on_host() && parts_.host_memory.mapped(copy.source.place))) return false;
  if (alias) copy.source.place = region.owner + (copy.source.place - region.base);
  gathers_ = true;
  return true;
}

// --- within one side ------------------------------------------------------------------------------------------------

// On a stream that is captured the copy becomes a node of the graph, and is done when that is launched.
CUresult Copier::capture(Memory source, Memory target) {
  Copy copy = job_.copy;
  const auto name = [](CopySide& side, Memory memory) {
    if (!side.in_array()) side.kind = memory == Memory::device ? CopySide::Kind::device : CopySide::Kind::host;
  };
  name(copy.source, source);
  name(copy.target, target);
  NewParts parts(parts_.graph_parts);
  RemoteCall<wire::CaptureCopy> call(job_.thread, job_.stream.context);
  call.in().setStream(job_.stream.wire());
  if (const CUresult bad =
          write_copy(parts_.program, copy.shape, copy.source, copy.target, call.in().initCopy(), parts);
      bad != CUDA_SUCCESS)
    return bad;
  const CUresult result = call.post(job_.stream);
  if (result == CUDA_SUCCESS) {
    parts_.host_memory.graph_has(job_.thread, parts);
    parts.keep();
  }
  return result;
}

CUresult Copier::within_device() {
  const Copy& copy = job_.copy;
  const auto named = [](CopySide side) {
    if (!side.in_array()) side.kind = CopySide::Kind::device;
    return side;
  };
  RemoteCall<wire::CopyDevice> call(job_.thread, job_.stream.context);
  auto in = call.in();
  in.setStream(job_.stream.wire());
  encode(copy.shape, named(copy.source), named(copy.target), in.initCopy());
  if (copy.target_context) in.setTargetContext(copy.target_context->handle.value());
  if (copy.source_context) in.setSourceContext(copy.source_context->handle.value());
  if (job_.host_sees_target) call.host_visible();
  const CUresult result = call.post(job_.stream);
  const bool waits = copy.done_on_return &&
                     (job_.host_sees_target || source_.seen_by_host() ||
                      synchronizing(parts_.contexts.home(*job_.stream.context), source_.region, target_.region));
  return result == CUDA_SUCCESS && waits ? parts_.waits.settle(job_.thread, job_.stream) : result;
}

// Both sides are the program's own memory: in the stream's order, but done here.
CUresult Copier::within_host() {
  if (const CUresult bad = parts_.waits.settle_before_work(job_.thread, job_.stream); bad != CUDA_SUCCESS) return bad;
  const Copy& copy = job_.copy;
  for (std::uint64_t z = 0; z < copy.shape.depth; ++z)
    for (std::uint64_t y = 0; y < copy.shape.height; ++y)
      std::memmove(bytes_at(copy.target.row(y, z)), bytes_at(copy.source.row(y, z)), copy.shape.width);
  return CUDA_SUCCESS;
}

// --- between the two: which way -------------------------------------------------------------------------------------

// Whether each slice is large enough for the bulk lanes. `awaited`: the call returns when the bytes have been read, or
// are there.
bool Copier::goes_by_lanes(bool awaited, bool to_worker) const {
  const CopyShape& shape = job_.copy.shape;
  return !gathers_ && parts_.lanes.takes(CopyShape{shape.width, shape.height}.bytes(), awaited, to_worker);
}

// Whether memory that the program has registered, which is its own to unmap, is read or written when the call has
// returned.
bool Copier::unsure(const Known& host) const { return host.region && host.region->kind == Region::Kind::registered; }

// One after the other, until the outcome of one is not CUDA_SUCCESS.
template <class Step>
std::invoke_result_t<Step, const CopyPart&> Copier::for_slices(Step&& step) const {
  const Copy& copy = job_.copy;
  for (std::uint64_t z = 0; z < copy.shape.depth; ++z) {
    const CopyPart slice{{copy.shape.width, copy.shape.height}, copy.target.from(0, 0, z), copy.source.from(0, 0, z)};
    if (const auto result = step(slice); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// Whether rows of the program's memory, packed, are so many that copying them into memory that the worker shares pays.
bool Copier::goes_through_staging(const CopySide& host) const {
  const CopyShape& shape = job_.copy.shape;
  return parts_.shares_memory && !gathers_ && shape.bytes() >= SharedStaging::gains_bytes && host.packed(shape);
}

CUresult Copier::to_device(Memory memory) {
  Copy& copy = job_.copy;
  if (!copy.target.in_array()) copy.target.kind = CopySide::Kind::device;
  // What the copy comes behind may write its source, in this process or by copies to it. When that is over, nothing
  // that still may is ordered before the copy.
  const bool pinned = memory == Memory::pinned;
  const bool settled = copy.done_on_return &&
                       (parts_.writers.any() ||
                        (pinned && parts_.host_memory.expects(copy.source.begin(), copy.source.extent(copy.shape))));
  if (settled) {
    if (const CUresult bad = parts_.waits.settle_before_work(job_.thread, job_.stream); bad != CUDA_SUCCESS) return bad;
  }
  const SourceBytes source(parts_.host_memory, parts_.writers, copy, pinned, settled);
  // And so may an earlier copy, of which nobody has the bytes yet.
  if (source.pinned() && !copy.reads_pinned_in_order() && source.all(copy.source, copy.shape) != ReadFrom::here &&
      parts_.host_memory.newest(copy.source.begin(), copy.source.extent(copy.shape)).newest ==
          ExpectedBytes::Newest::coming) {
    if (const CUresult result = parts_.waits.settle(job_.thread, *job_.stream.context); result != CUDA_SUCCESS)
      return result;
  }
  // From what the worker has of the memory the bytes are read when the stream gets there, and that is written anew by
  // what the program writes from now on.
  const bool read_later = source.pinned() && !source.all_here(copy.source, copy.shape);
  const CUresult result = send(source);
  if (result != CUDA_SUCCESS || !copy.done_on_return) return result;
  // A synchronous copy is also a wait for what the stream still has to do, where the host would notice.
  const Context& context = *job_.stream.context;
  const bool noticed =
      read_later || synchronizing(parts_.contexts.home(*job_.stream.context), source_.region, target_.region) ||
      context.host_visible.load() > context.completed.load() || parts_.shared_memory.any() || parts_.contexts.several();
  if (noticed) return parts_.waits.settle(job_.thread, job_.stream);
  parts_.waits.after_work(job_.thread);
  return result;
}

// Nothing if the copy goes by another way.
std::optional<CUresult> Copier::send_by_lanes(const SourceBytes& source) {
  const Copy& copy = job_.copy;
  const auto from = source.all(copy.source, copy.shape);
  // Pageable memory that this thread may have to write before its stream gets there must not be waited for.
  if (!source.pinned() && (from != ReadFrom::here || parts_.writers.functions())) return std::nullopt;
  if (!from || from == ReadFrom::at_worker) return std::nullopt;
  const bool awaited = !source.pinned() || copy.done_on_return;
  if ((awaited && from == ReadFrom::when_due) || !goes_by_lanes(awaited, /*to_worker=*/true)) return std::nullopt;
  const bool of_no_file = source_.region && source_.region->kind == Region::Kind::host;  // HostMemory has made it
  const bool in_order = from == ReadFrom::when_due;
  LaneBytes way{job_, parts_.lanes, parts_.calls.commands, awaited, in_order, unsure(source_), of_no_file};
  bool readable = true;
  const CUresult result = for_slices([&](const CopyPart& slice) {
    const std::optional<CUresult> sent = way.send(slice);
    if (!sent) readable = false;
    return sent.value_or(CUDA_SUCCESS);  // the other slices are sent all the same
  });
  // That it cannot be read is met by the next way, as the driver's own copy would, and if that passes, the bytes go so.
  return readable ? std::optional(result) : std::nullopt;
}

CUresult Copier::send(const SourceBytes& source) {
  const Copy& copy = job_.copy;
  std::optional<Reading> reading;
  if (source.pinned())
    reading.emplace(parts_.host_memory, copy.source.begin(), copy.source.begin() + copy.source.extent(copy.shape));
  if (const auto sent = send_by_lanes(source)) return *sent;
  const bool staged = goes_through_staging(copy.source);
  const std::uint64_t bytes_max = staged ? SharedStaging::part_bytes(copy.shape.bytes()) : limits::bulk_bytes_max;
  return job_.for_parts(bytes_max, [&](const CopyPart& part) {
    if (!source.all_here(part.source, part.shape))
      return source.pinned() ? send_by_runs(source, part) : PulledPart{job_, parts_.graph_parts}.send(part);
    if (staged) {
      StagedBytes way{job_, parts_.staging, parts_.fences, parts_.contexts.home(*job_.stream.context)};
      if (const auto sent = way.send(part)) return *sent;
    }
    return send_frame(source, part);
  });
}

// Rows of pinned memory of which some bytes are newer elsewhere, or may become so. Where the worker holds newer bytes
// than this process, they stay there; where a host function still has to run, which may write them, they are fetched
// when it has.
CUresult Copier::send_by_runs(const SourceBytes& source, const CopyPart& part) {
  for (std::uint64_t y = 0; y < part.shape.height; ++y) {
    for (std::uint64_t x = 0; x < part.shape.width;) {
      const CopySide side = part.source.from(x, y, 0);
      const std::uint64_t rest = part.shape.width - x;
      auto [bytes, from] = source.first_run(side.place, rest);
      if (part.target.in_array() && bytes < rest) {
        // Elements of arrays cannot be copied by halves: the whole row is to be here first.
        if (const CUresult bad = parts_.waits.settle(job_.thread, *job_.stream.context); bad != CUDA_SUCCESS)
          return bad;
        bytes = rest;
        from = ReadFrom::here;
      }
      if (const CUresult bad = send_run(source, from, {{bytes}, part.target.from(x, y, 0), side}); bad != CUDA_SUCCESS)
        return bad;
      x += bytes;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Copier::send_run(const SourceBytes& source, ReadFrom from, const CopyPart& run) {
  switch (from) {
    case ReadFrom::here: return send_frame(source, run);
    case ReadFrom::at_worker: return BlockBytes{job_, parts_.host_memory}.send(run);
    case ReadFrom::when_due: return PulledBytes{job_}.send(run);
  }
  return CUDA_ERROR_UNKNOWN;
}

// The program may have queued more behind work that does not end than the worker has room for, and may be about to end
// that work itself. Pinned memory need not be read before the stream gets there.
CUresult Copier::send_frame(const SourceBytes& source, const CopyPart& part) {
  FrameBytes way{job_, gathers_};
  const bool may_be_fetched = source.pinned() && part.shape.height == 1 && job_.copy.reads_pinned_in_order();
  if (!may_be_fetched) return way.send(part);
  const auto sent = way.send_if_room(part);
  return sent ? *sent : PulledBytes{job_}.send(part);
}

// Nothing if the copy goes by another way.
std::optional<CUresult> Copier::fetch_by_lanes(bool awaited) {
  const Copy& copy = job_.copy;
  if (!goes_by_lanes(awaited, /*to_worker=*/false)) return std::nullopt;
  // Kernels see what the worker has of such memory.
  if (!awaited && parts_.host_memory.mapped(copy.target.begin())) return std::nullopt;
  // What a graph that was launched before has still to deliver there comes by the connection, and would come later.
  if (parts_.writers.graphs()) {
    const auto parts = parts_.graph_parts.within(copy.target.begin(), copy.target.extent(copy.shape));
    if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part.second.source; }))
      return std::nullopt;
  }
  return for_slices([&](const CopyPart& slice) {
    return awaited ? LaneReply{job_, parts_.lanes}.fetch(slice)
                   : LaneDelivery{job_, parts_.lanes, parts_.host_memory, unsure(target_)}.ask_for(slice);
  });
}

CUresult Copier::to_host(Memory target, bool awaited) {
  Copy& copy = job_.copy;
  if (!copy.source.in_array()) copy.source.kind = CopySide::Kind::device;
  // What either side has written to memory that both compare is older than the copy, and goes ahead of it. And so does
  // what earlier copies still have to deliver there, which has no order with the bytes of an answer.
  const bool compared = target == Memory::pinned && parts_.host_memory.mapped(copy.target.begin());
  const auto expected = [&] {
    return target == Memory::pinned && parts_.host_memory.expects(copy.target.begin(), copy.target.extent(copy.shape));
  };
  if (!awaited && compared) parts_.host_memory.send_changes(job_.thread);
  if (awaited && (compared || expected())) {
    if (const CUresult bad = parts_.waits.settle_before_work(job_.thread, job_.stream); bad != CUDA_SUCCESS) return bad;
  }
  if (awaited) parts_.host_memory.before_wait(job_.thread);
  std::optional<Arriving> arriving;
  if (awaited && target == Memory::pinned) {
    const std::uint64_t begin = copy.target.begin();
    arriving.emplace(parts_.host_memory, *job_.stream.context, begin, begin + copy.target.extent(copy.shape));
    if (!*arriving) return run();
  }
  if (const auto fetched = fetch_by_lanes(awaited)) return *fetched;
  const bool packed = copy.target.packed(copy.shape);
  if (!awaited && packed && copy.shape.depth == 1) return Delivery{job_, parts_.host_memory}.ask_for(job_.whole());
  // One by one, rather than that the call waits for what may be this thread's to do.
  constexpr std::uint64_t delivered_rows_max = 64;
  if (!awaited && copy.shape.height * copy.shape.depth <= delivered_rows_max) {
    return for_slices([&](const CopyPart& slice) {
      CUresult result = CUDA_SUCCESS;
      for (std::uint64_t y = 0; y < slice.shape.height && result == CUDA_SUCCESS; ++y)
        result = Delivery{job_, parts_.host_memory}.ask_for(
            {{slice.shape.width, 1}, slice.target.from(0, y, 0), slice.source.from(0, y, 0)});
      return result;
    });
  }
  if (goes_through_staging(copy.target)) {
    parts_.host_memory.before_wait(job_.thread);
    const CUresult result = StagedReply(job_, parts_.staging, parts_.fences, parts_.calls.commands,
                                        parts_.calls.receiver, parts_.contexts.home(*job_.stream.context))
                                .fetch();
    // Nothing is left to wait for, but a copy that has failed says so here.
    const CUresult settled = parts_.waits.settle(job_.thread, job_.stream);
    return result == CUDA_SUCCESS ? settled : result;
  }
  // Packed rows are received in place, however many; others are unpacked here and need room for it.
  constexpr std::uint64_t unpacked_bytes_max = 64u << 20;
  return job_.for_parts(packed ? copy.shape.width * copy.shape.height : unpacked_bytes_max,
                        [&](const CopyPart& part) { return FrameReply{job_}.fetch(part); });
}

}  // namespace fargpu::client
