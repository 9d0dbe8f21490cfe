// Initialisation, versions, error texts, entry points: what a process may ask before it has a session.

#include "client/base/config.h"
#include "client/session/process.h"
#include "client/tables/proc_table.h"
#include "client/session/session.h"
#include "client/tables/export_tables.h"
#include "client_hand.h"
#include "cuda_facts.h"

namespace fargpu::client::hand {

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return process().initialise();
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = config().driver_version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = nullptr;
  for (const ResultFacts& facts : result_facts()) {
    if (facts.result != error) continue;
    *name = facts.name;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = nullptr;
  // The driver's own words once there is one to ask, so that programs print what they print locally.
  if (Session* const session = process().session()) {
    const auto& texts = session->terms.facts.error_texts;
    if (const auto found = texts.find(error); found != texts.end()) {
      *text = found->second.c_str();
      return CUDA_SUCCESS;
    }
  }
  for (const ResultFacts& facts : result_facts()) {
    if (facts.result != error) continue;
    *text = facts.text;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// CUDA Driver API, "Driver Entry Point Access". A symbol that is missing is no error of the newer variant: it says so
// in the status.
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t known_flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !function || (flags & ~known_flags) || version > config().driver_version)
    return CUDA_ERROR_INVALID_VALUE;
  const ProcAnswer answer = find_proc(symbol, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  *function = answer.function;
  if (status) *status = answer.status;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  void* found = nullptr;
  if (const CUresult result = cuGetProcAddress_v2(symbol, &found, version, flags, nullptr); result != CUDA_SUCCESS)
    return result;
  if (!found || !function) return CUDA_ERROR_NOT_FOUND;
  *function = found;
  return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  *table = export_table(*id);
  return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace fargpu::client::hand
