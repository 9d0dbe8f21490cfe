// Copies. CUDA Driver API, "Memory Management" and "API synchronization behavior". Every form is brought to one, of
// which Copier finds the way.

#include <vector>

#include "client/copy/copier.h"
#include "client/session/arguments.h"
#include "client/session/pool.h"
#include "client/session/process.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "forms.h"
#include "protocol/limits.h"

namespace fargpu::client::hand {

namespace {

// Whether a side of the copy is of another session than the stream, and then where both are.
bool goes_between(const Stream& stream, Copy& copy, Between::Sides& sides) {
  const Pool* const pool = process().pool();
  if (!pool) [[likely]]
    return false;
  Session* const own = stream.context->session;
  const auto place = [&](CopySide& side) -> Session* {
    if (side.in_array()) return pool->begun(Handle(side.place).origin());
    Session* const holder = pool->with_device_memory(side.begin());
    // Pinned memory of another session is memory of the program here.
    if (!holder && side.kind == CopySide::Kind::device && pool->knowing(side.begin()) != own)
      side.kind = CopySide::Kind::unified;
    return holder;
  };
  sides = {.source = place(copy.source), .target = place(copy.target)};
  if ((sides.source && sides.source != own) || (sides.target && sides.target != own)) return true;
  if (copy.done_on_return || stream.capture.load()) return false;
  const auto has_its_time = [&](const Session* holder, const CopySide& side, bool written) {
    return !holder && !side.in_array() && pool->between.has_its_time(*own, side, written);
  };
  return (sides.source && has_its_time(sides.target, copy.target, true)) ||
         (sides.target && has_its_time(sides.source, copy.source, false));
}

// Waits for all work of the contexts that hold the sides, then copies: as every synchronous copy between devices.
CUresult copy_between_now(Thread& thread, Stream& stream, const Copy& copy, Between::Sides sides) {
  Session& own = *stream.context->session;
  if (const CUresult bad = own.captures.check_submission(stream); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = own.captures.check_unsafe(thread); bad != CUDA_SUCCESS) return bad;
  if (const CUresult result = own.waits.synchronize(thread, *stream.context); result != CUDA_SUCCESS) return result;
  Between& between = process().pool()->between;
  for (Session* const session : {sides.source, sides.target}) {
    if (!session || session == &own) continue;
    if (const CUresult result = between.finish(thread, *session); result != CUDA_SUCCESS) return result;
  }
  return between.copy_now(thread, copy, sides);
}

CUresult run_on(Thread& thread, const StreamUse& use, Copy copy) {
  if (Between::Sides sides; goes_between(*use, copy, sides)) [[unlikely]] {
    copy.flatten();
    return copy.done_on_return ? copy_between_now(thread, *use, copy, sides)
                               : process().pool()->between.copy(thread, *use, copy, sides);
  }
  return Copier(use->context->session->copy_parts, thread, use, copy).run();
}

}  // namespace

CUresult run_copy(Thread& thread, CUstream stream, const Copy& copy) {
  const StreamUse use(thread, stream);
  return use ? run_on(thread, use, copy) : use.error();
}

namespace {

template <class Params>
CUresult copy_shaped(Thread& thread, const Params* params, CUstream stream, bool done_on_return) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  Copy copy;
  copy.done_on_return = done_on_return;
  if (const CUresult bad = read_copy(*params, copy); bad != CUDA_SUCCESS) return bad;
  return run_copy(thread, stream, copy);
}

// Null stands for the current one.
Context* named_context(Thread& thread, CUcontext context) {
  return context ? process().find_context(context) : thread.context();
}

bool both_active(const Copy& copy) {
  return check_active(copy.target_context) == CUDA_SUCCESS && check_active(copy.source_context) == CUDA_SUCCESS;
}

// The contexts of a copy between them, null for the current one; false if one is none.
bool name_contexts(Thread& thread, CUcontext target, CUcontext source, Copy& copy) {
  copy.target_context = named_context(thread, target);
  copy.source_context = named_context(thread, source);
  return both_active(copy);
}

// The context of one side. Only memory of a device goes by the one that is named; other memory is known by its address,
// an array by its handle.
Context* context_of(Thread& thread, CUmemorytype type, CUcontext context, const CopySide& side) {
  if (type == CU_MEMORYTYPE_DEVICE) return named_context(thread, context);
  Context* own = nullptr;
  if (type == CU_MEMORYTYPE_ARRAY && context) own = process().find_context(context);
  if (type == CU_MEMORYTYPE_UNIFIED && thread.context()) {
    const auto region = session_of(thread).map.find(side.begin());
    if (region) own = region->context;
  }
  return check_active(own) == CUDA_SUCCESS ? own : thread.context();
}

// The forms without a stream come after all work of both contexts and before all of their later work.
CUresult run_between(Thread& thread, const Copy& copy, CUstream default_stream) {
  for (Context* const context : {copy.target_context, copy.source_context})
    if (const CUresult result = context->session->waits.synchronize(thread, *context); result != CUDA_SUCCESS)
      return result;
  const StreamUse stream(thread, default_stream);
  if (!stream) return stream.error();
  if (const CUresult result = run_on(thread, stream, copy); result != CUDA_SUCCESS) return result;
  return stream->context->session->waits.settle(thread, *stream);
}

template <class Params>
CUresult read_between(Thread& thread, const Params* params, Copy& copy) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = read_copy(*params, copy); bad != CUDA_SUCCESS) return bad;
  copy.target_context = context_of(thread, params->dstMemoryType, params->dstContext, copy.target);
  copy.source_context = context_of(thread, params->srcMemoryType, params->srcContext, copy.source);
  if (!both_active(copy)) return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult copy_now(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_shaped(thread, copy, stream, true);
}
CUresult copy_now(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_shaped(thread, copy, stream, true);
}
CUresult copy_async(Thread& thread, const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_shaped(thread, copy, stream, false);
}
CUresult copy_async(Thread& thread, const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_shaped(thread, copy, stream, false);
}

CUresult cuMemcpyPeer(Thread& thread, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                      std::size_t bytes, CUstream default_stream) {
  Copy copy{.shape = {bytes}, .target = on_device(dst), .source = on_device(src), .done_on_return = true};
  if (!name_contexts(thread, dst_context, src_context, copy)) return CUDA_ERROR_INVALID_CONTEXT;
  return run_between(thread, copy, default_stream);
}
CUresult cuMemcpyPeerAsync(Thread& thread, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                           CUcontext src_context, std::size_t bytes, CUstream stream) {
  Copy copy{.shape = {bytes}, .target = on_device(dst), .source = on_device(src)};
  if (!name_contexts(thread, dst_context, src_context, copy)) return CUDA_ERROR_INVALID_CONTEXT;
  return run_copy(thread, stream, copy);
}
CUresult cuMemcpy3DPeer(Thread& thread, const CUDA_MEMCPY3D_PEER* params, CUstream default_stream) {
  Copy copy;
  copy.done_on_return = true;
  const CUresult bad = read_between(thread, params, copy);
  return bad == CUDA_SUCCESS ? run_between(thread, copy, default_stream) : bad;
}
CUresult cuMemcpy3DPeerAsync(Thread& thread, const CUDA_MEMCPY3D_PEER* params, CUstream stream) {
  Copy copy;
  const CUresult bad = read_between(thread, params, copy);
  return bad == CUDA_SUCCESS ? run_copy(thread, stream, copy) : bad;
}

// --- batches --------------------------------------------------------------------------------------------------------

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

// All of a batch or, if anything is wrong with one of its copies, nothing. `read(i, copy)` says what copy i is;
// `failed` gets the one that is wrong.
template <class Read>
CUresult copy_batch(Thread& thread, std::size_t count, CUstream stream, std::size_t& failed, Read&& read) {
  failed = SIZE_MAX;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (count == 0 || count > limits::array_elements_max || use->legacy()) return CUDA_ERROR_INVALID_VALUE;
  const CopyParts& parts = use->context->session->copy_parts;
  std::vector<Copy> copies(count);
  for (std::size_t i = 0; i < count; ++i) {
    CUresult bad = read(*use->context, i, copies[i]);
    Between::Sides sides;
    if (bad == CUDA_SUCCESS && goes_between(*use, copies[i], sides))
      bad = process().pool()->between.check(thread, copies[i], sides);
    else if (bad == CUDA_SUCCESS) bad = Copier(parts, thread, use, copies[i]).check();
    if (bad == CUDA_SUCCESS) continue;
    failed = i;
    return bad;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const CUresult result = run_on(thread, use, copies[i]);
    if (result == CUDA_SUCCESS) continue;
    failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult copy_linear_batch(Thread& thread, const CUdeviceptr* targets, const CUdeviceptr* sources,
                           const std::size_t* sizes, std::size_t count, const CUmemcpyAttributes* attributes,
                           const std::size_t* first, std::size_t attribute_count, std::size_t& failed,
                           CUstream stream) {
  failed = SIZE_MAX;
  if (!targets || !sources || !sizes || !attributes || !first || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (count > limits::array_elements_max) return CUDA_ERROR_INVALID_VALUE;
  if (attribute_count == 0 || attribute_count > count || first[0] != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 1; i < attribute_count; ++i)
    if (first[i] <= first[i - 1] || first[i] >= count) return CUDA_ERROR_INVALID_VALUE;
  std::size_t attribute = 0;
  return copy_batch(thread, count, stream, failed, [&](Context&, std::size_t i, Copy& copy) {
    if (attribute + 1 < attribute_count && first[attribute + 1] == i) ++attribute;
    copy.shape = {sizes[i]};
    copy.source = in_memory(sources[i]);
    copy.target = in_memory(targets[i]);
    return read_order(attributes[attribute].srcAccessOrder, attributes[attribute].flags, copy);
  });
}

CUresult copy_shaped_batch(Thread& thread, std::size_t count, const CUDA_MEMCPY3D_BATCH_OP* operations,
                           std::size_t& failed, unsigned long long flags, CUstream stream) {
  failed = SIZE_MAX;
  if (!operations || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return copy_batch(thread, count, stream, failed, [&](Context& context, std::size_t i, Copy& copy) {
    const CUDA_MEMCPY3D_BATCH_OP& operation = operations[i];
    if (const CUresult bad = read_order(operation.srcAccessOrder, operation.flags, copy); bad != CUDA_SUCCESS)
      return bad;
    return read_copy(thread, context, operation, copy);
  });
}

}  // namespace

CUresult cuMemcpyBatchAsync(Thread& thread, CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes,
                            std::size_t count, CUmemcpyAttributes* attributes, std::size_t* first,
                            std::size_t attribute_count, std::size_t* failed, CUstream stream) {
  std::size_t ignored;
  return copy_linear_batch(thread, targets, sources, sizes, count, attributes, first, attribute_count,
                           failed ? *failed : ignored, stream);
}
CUresult cuMemcpy3DBatchAsync(Thread& thread, std::size_t count, CUDA_MEMCPY3D_BATCH_OP* operations,
                              std::size_t* failed, unsigned long long flags, CUstream stream) {
  std::size_t ignored;
  return copy_shaped_batch(thread, count, operations, failed ? *failed : ignored, flags, stream);
}

}  // namespace fargpu::client::hand
