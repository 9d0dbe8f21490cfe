// Contexts: opened and closed at the client's word, waited for by events.

#include <malloc.h>

#include <cstdlib>

#include "protocol/data.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

// The private table 1734dc26, slots 4 and 13: per TPC, its GPC and its number there, in two arrays of malloc, one byte
// each (measured; driver 580). cuBLASLt chooses its kernels by it. A driver without the table, as ours are, gives no
// facts.
void write_processors(DriverTable& driver, wire::OpenContextReply::Builder reply, int processors) {
  static const CUuuid id = {{0x17, 0x34, static_cast<char>(0xdc), 0x26, static_cast<char>(0x80), 0x0d, 0x47, 0x45,
                             static_cast<char>(0x87), 0x26, static_cast<char>(0xc0), static_cast<char>(0xf1),
                             static_cast<char>(0xe7), static_cast<char>(0xdd), static_cast<char>(0x8b),
                             static_cast<char>(0xca)}};
  const void* table = nullptr;
  if (driver.cuGetExportTable(&table, &id) != CUDA_SUCCESS || !table) return;
  const auto* const words = static_cast<const void* const*>(table);
  if (reinterpret_cast<std::size_t>(words[0]) < 14 * sizeof(void*) || !words[4] || !words[13]) return;
  const auto read = reinterpret_cast<CUresult (*)(unsigned char**, unsigned char**)>(const_cast<void*>(words[4]));
  const auto free = reinterpret_cast<CUresult (*)(unsigned char*, unsigned char*)>(const_cast<void*>(words[13]));
  unsigned char* group = nullptr;
  unsigned char* index = nullptr;
  if (read(&group, &index) != CUDA_SUCCESS || !group || !index) return;
  // Two multiprocessors make a TPC on every GPU that has this table.
  const auto count = static_cast<std::size_t>(processors) / 2;
  if (::malloc_usable_size(group) >= count && ::malloc_usable_size(index) >= count) {
    reply.setProcessorGroup(data_of(std::as_bytes(std::span(group, count))));
    reply.setProcessorIndex(data_of(std::as_bytes(std::span(index, count))));
  }
  free(group, index);
}

}  // namespace

Outcome openContext(Session& session, Call& call, wire::OpenContext::Reader in) {
  ContextState* opened = nullptr;
  CUdevResourceDesc resources{};
  if (in.getResources() != 0 && !session.objects().resolve(HandleKind::resourcedesc, in.getResources(), resources))
    return Objects::invalid(HandleKind::resourcedesc);
  if (!resources && !in.getPrimary() && session.contexts().partition(in.getDevice()))
    session.prints().warn(
        "cuCtxCreate is not supported here: this session has multiprocessors of its own (sm_partitions of its tenant), "
        "to which only the "
        "primary context of a device keeps");
  const CUresult result =
      resources
          ? session.contexts().open_green(Handle(in.getContext()), in.getDevice(), resources, opened)
          : session.contexts().open(Handle(in.getContext()), in.getDevice(), in.getPrimary(), in.getFlags(), opened);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return session.wait_for_room(call,
                                 {session.contexts().driver_ordinal(in.getDevice()), Residency::room_for_the_driver});
  if (result != CUDA_SUCCESS) return result;
  auto out = call.out<wire::OpenContextReply>();
  unsigned long long number = 0;
  if (opened->green || opened->part)
    session.driver().cuGreenCtxGetId(opened->green ? opened->green : opened->part, &number);
  else session.driver().cuCtxGetId(opened->cuda, &number);
  out.setNumber(number);
  int least = 0, greatest = 0;
  session.driver().cuCtxGetStreamPriorityRange(&least, &greatest);
  out.setLeastPriority(least);
  out.setGreatestPriority(greatest);
  int processors = 0;
  session.driver().cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                        session.contexts().driver_ordinal(in.getDevice()));
  write_processors(session.driver(), out, processors);
  return CUDA_SUCCESS;
}

Outcome closeContext(Session& session, Call& call, wire::CloseContext::Reader in) {
  ContextState* const context = session.contexts().find(Handle(in.getContext()));
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (const auto later = session.ordering().behind_context(call, *context)) return *later;
  if (const auto later = session.asides().behind(call, *context)) return *later;
  return session.close_context(*context);
}

Outcome cuCtxSetLimit(Session& session, Call&, wire::CuCtxSetLimit::Reader in) {
  return session.contexts().current()->driver_memory->set_limit(static_cast<CUlimit>(in.getLimit()), in.getValue());
}

// Counts what is held back too: the event is recorded when the GPU has been given all of it.
Outcome cuCtxRecordEvent(Session& session, Call& call, wire::CuCtxRecordEvent::Reader,
                         Known<HandleKind::context> context, Known<HandleKind::event> event) {
  if (!session.ordering().holding()) return session.driver().cuCtxRecordEvent(context.cuda(), event.cuda());
  // The thread of an awaited call may have to bring about what is held back.
  const bool awaited = call.id().wants_reply;
  session.ordering().after_all(
      [&session, awaited, id = call.id(), context_handle = context.value(), event_handle = event.value()] {
        CUcontext there{};
        CUevent recorded{};
        CUresult result = CUDA_ERROR_INVALID_HANDLE;
        if (session.objects().resolve(HandleKind::context, context_handle, there) &&
            session.objects().resolve(HandleKind::event, event_handle, recorded))
          result = session.driver().cuCtxRecordEvent(there, recorded);
        if (!awaited) session.finish(id, result);
      },
      {event.value()}, *session.contexts().find(context.handle()));
  return awaited ? Outcome(CUDA_SUCCESS) : Outcome::later();
}

// An event whose record is held back is waited for here first, by all that the context is given from now on.
Outcome cuCtxWaitEvent(Session& session, Call&, wire::CuCtxWaitEvent::Reader, Known<HandleKind::context> cuda,
                       Known<HandleKind::event> event) {
  ContextState& context = *session.contexts().find(cuda.handle());
  const auto wait = [&session, context_handle = cuda.value(), event_handle = event.value()] {
    CUcontext there{};
    CUevent awaited{};
    if (!session.objects().resolve(HandleKind::context, context_handle, there) ||
        !session.objects().resolve(HandleKind::event, event_handle, awaited))
      return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result = session.driver().cuCtxWaitEvent(there, awaited);
    if (result == CUDA_SUCCESS) session.ordering().submitted(*session.contexts().find(Handle(context_handle)));
    return result;
  };
  if (!session.ordering().hold_behind_record(context, event.value(), wait)) return wait();
  return CUDA_SUCCESS;
}

Outcome cuCtxSetFlags(Session& session, Call&, wire::CuCtxSetFlags::Reader in) {
  return session.driver().cuCtxSetFlags(Contexts::driver_flags(in.getFlags()));
}

Outcome cuCtxSynchronize(Session& session, Call& call, wire::CuCtxSynchronize::Reader) {
  session.waits().when_passed(*session.contexts().find(call.id().context), session.answer(call.id()));
  return Outcome::later();
}

}  // namespace fargpu::server::hand
