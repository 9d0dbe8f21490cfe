// Linking of GPU code. CUDA Driver API, "Module Management", cuLinkCreate and its like.

#include "client/code/jit_links.h"

#include "calls_module.capnp.h"
#include "client/session/entry.h"
#include "client/code/image_transfer.h"
#include "client/base/input_file.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "protocol/image.h"

namespace fargpu::client::hand {
namespace {

CUresult add(Thread& thread, CUlinkState state, CUjitInputType type, std::span<const std::byte> data, const char* name,
             const JitOptions& jit) {
  if (data.empty() || data.size() > limits::image_bytes_max || !jit.valid()) return CUDA_ERROR_INVALID_VALUE;
  const auto link = session_of(thread).links.find(handle_of(state));
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  const auto fill = [&](wire::AddToLink::Builder in, capnp::Data::Reader hash) {
    in.setLink(handle_of(state).value());
    in.setType(type);
    in.setHash(hash);
    in.setBytes(data.size());
    if (name) in.setName(name);
    jit.write(in.initJit(jit.count));
    return CUDA_SUCCESS;
  };
  return call_with_image<wire::AddToLink>(thread, ContextNeed::current, data, AnsweredAhead::never, fill,
                                          [&](RemoteCall<wire::AddToLink>& call, CUresult result, bool) {
                                            link->outputs.store(call.out());
                                            return result;
                                          });
}

// The result comes in parts, as much at once as an answer may bring. No more memory is taken than has come, and a part:
// of how much there is the worker has said what it liked.
CUresult fetch(Thread& thread, CUlinkState state, std::size_t bytes, std::vector<std::byte>& linked) {
  linked.clear();
  while (linked.size() < bytes) {
    const std::size_t offset = linked.size(), part = std::min(bytes - offset, limits::bulk_bytes_max);
    RemoteCall<wire::FetchLinked> call(thread);
    auto in = call.in();
    in.setLink(handle_of(state).value());
    in.setOffset(offset);
    in.setBytes(part);
    linked.resize(offset + part);
    call.target(std::span(linked).subspan(offset));
    if (const CUresult bad = call.wait(); bad != CUDA_SUCCESS) return bad;
    if (call.arrived_bytes() != part) throw ProtocolError("the worker sent too little of what was linked");
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuLinkCreate_v2(Thread& thread, unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
  const JitOptions jit{count, options, values};
  if (!state || !jit.valid()) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CreateLink> call(thread);
  if (!call) return call.error();
  jit.write(call.in().initJit(count));
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const Handle handle(call.out().getLink());
  session_of(thread).links.add(handle, JitOutputs(jit));
  *state = handle_cast<CUlinkState>(handle);
  return result;
}

CUresult cuLinkAddData_v2(Thread& thread, CUlinkState state, CUjitInputType type, void* data, std::size_t bytes,
                          const char* name, unsigned count, CUjit_option* options, void** values) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  return add(thread, state, type, {static_cast<const std::byte*>(data), bytes}, name, {count, options, values});
}

// The file is one of this machine.
CUresult cuLinkAddFile_v2(Thread& thread, CUlinkState state, CUjitInputType type, const char* path, unsigned count,
                          CUjit_option* options, void** values) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const auto file = InputFile::read(path);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  return add(thread, state, type, type == CU_JIT_INPUT_PTX ? file->with_null() : file->bytes(), path,
             {count, options, values});
}

CUresult cuLinkComplete(Thread& thread, CUlinkState state, void** linked, std::size_t* bytes) {
  if (!linked) return CUDA_ERROR_INVALID_VALUE;
  const auto link = session_of(thread).links.find(handle_of(state));
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::CompleteLink> call(thread);
  if (!call) return call.error();
  call.in().setLink(handle_of(state).value());
  const CUresult result = call.wait();
  const auto out = call.out();
  link->outputs.store(out);
  if (result != CUDA_SUCCESS) return result;
  if (out.getLinkedBytes() > limits::image_bytes_max)
    throw ProtocolError("the worker linked more than an image can be");
  if (const CUresult bad = fetch(thread, state, out.getLinkedBytes(), link->linked); bad != CUDA_SUCCESS) return bad;
  // The program will have it loaded, by a bare pointer that is then read as far as its headers say, and sent.
  if (!keeps_within(link->linked)) throw ProtocolError("the worker linked an image that leads out of itself");
  if (bytes) *bytes = link->linked.size();
  link->linked.push_back(std::byte{0});  // behind text
  *linked = link->linked.data();
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(Thread& thread, CUlinkState state) {
  if (!session_of(thread).links.find(handle_of(state))) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::CuLinkDestroy> call(thread);
  call.in().setState(handle_of(state).value());
  const CUresult result = call.wait();
  if (call.done()) session_of(thread).links.remove(handle_of(state));
  return result;
}

}  // namespace fargpu::client::hand
