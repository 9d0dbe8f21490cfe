#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>
#include <iterator>

using namespace fargpu::softgpu;

namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

#define FARGPU_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText error_texts[] = {
    FARGPU_ERROR(CUDA_SUCCESS, "no error"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    FARGPU_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    FARGPU_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    FARGPU_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    FARGPU_ERROR(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled"),
    FARGPU_ERROR(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"),
    FARGPU_ERROR(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    FARGPU_ERROR(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    FARGPU_ERROR(CUDA_ERROR_STUB_LIBRARY, "stub library instead of a driver"),
    FARGPU_ERROR(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "call requires a newer driver"),
    FARGPU_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable"),
    FARGPU_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    FARGPU_ERROR(CUDA_ERROR_DEVICE_NOT_LICENSED, "device not licensed"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    FARGPU_ERROR(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    FARGPU_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    FARGPU_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    FARGPU_ERROR(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    FARGPU_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    FARGPU_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    FARGPU_ERROR(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    FARGPU_ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    FARGPU_ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    FARGPU_ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    FARGPU_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    FARGPU_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    FARGPU_ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context in use by another thread"),
    FARGPU_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these devices"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context"),
    FARGPU_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected"),
    FARGPU_ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler not found"),
    FARGPU_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX of an unsupported version"),
    FARGPU_ERROR(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    FARGPU_ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "execution affinity is not supported"),
    FARGPU_ERROR(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "device-side synchronization is not supported"),
    FARGPU_ERROR(CUDA_ERROR_CONTAINED, "contained memory error"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    FARGPU_ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    FARGPU_ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    FARGPU_ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    FARGPU_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    FARGPU_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    FARGPU_ERROR(CUDA_ERROR_LOSSY_QUERY, "the query would lose semantics"),
    FARGPU_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    FARGPU_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    FARGPU_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    FARGPU_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    FARGPU_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    FARGPU_ERROR(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
    FARGPU_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    FARGPU_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    FARGPU_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is already active"),
    FARGPU_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    FARGPU_ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    FARGPU_ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    FARGPU_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                 "part or all of the requested memory range is already mapped"),
    FARGPU_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    FARGPU_ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    FARGPU_ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    FARGPU_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    FARGPU_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    FARGPU_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    FARGPU_ERROR(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory was not completely freed"),
    FARGPU_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    FARGPU_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    FARGPU_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    FARGPU_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "unsupported display driver / cuda driver combination"),
    FARGPU_ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW"),
    FARGPU_ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect"),
    FARGPU_ERROR(CUDA_ERROR_MPS_RPC_FAILURE, "MPS server call failed"),
    FARGPU_ERROR(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready"),
    FARGPU_ERROR(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "too many MPS clients"),
    FARGPU_ERROR(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "too many MPS connections"),
    FARGPU_ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS client was terminated"),
    FARGPU_ERROR(CUDA_ERROR_CDP_NOT_SUPPORTED, "device-side launches are not supported"),
    FARGPU_ERROR(CUDA_ERROR_CDP_VERSION_MISMATCH, "unsupported mix of device-side launch versions"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                 "operation would make the legacy stream depend on a capturing blocking stream"),
    FARGPU_ERROR(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    FARGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                 "attempt to terminate a thread-local capture sequence from another thread"),
    FARGPU_ERROR(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    FARGPU_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "the graph update was not performed because it included changes which violated "
                 "constraints"),
    FARGPU_ERROR(CUDA_ERROR_EXTERNAL_DEVICE, "an async error has occurred in external entity outside of CUDA"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster configuration"),
    FARGPU_ERROR(CUDA_ERROR_FUNCTION_NOT_LOADED, "function handle not loaded"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_RESOURCE_TYPE, "resource of the wrong type"),
    FARGPU_ERROR(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "resources of an invalid configuration"),
    FARGPU_ERROR(CUDA_ERROR_KEY_ROTATION, "key rotation in progress"),
    FARGPU_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef FARGPU_ERROR

CUresult give_text(CUresult code, const char** text, const char* ErrorText::*member) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto found = std::find_if(std::begin(error_texts), std::end(error_texts),
                            [&](const ErrorText& error) { return error.code == code; });
  bool is_known = found != std::end(error_texts);
  *text = is_known ? found->*member : nullptr;
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// Both work before cuInit.
CUresult cuGetErrorName(CUresult code, const char** name) { return give_text(code, name, &ErrorText::name); }
CUresult cuGetErrorString(CUresult code, const char** text) { return give_text(code, text, &ErrorText::text); }
