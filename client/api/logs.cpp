// The log of errors. CUDA Driver API, "Error Log Management Functions".

#include <cstring>
#include <fstream>
#include <string>

#include "client/call/error_log.h"
#include "client_hand.h"

namespace fargpu::client::hand {

CUresult cuLogsRegisterCallback(CUlogsCallback callback, void* data, CUlogsCallbackHandle* out) {
  if (!callback) return CUDA_ERROR_INVALID_VALUE;
  const CUlogsCallbackHandle handle = error_log().add_callback(callback, data);
  if (out) *out = handle;
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
  return error_log().remove_callback(callback) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned flags) {
  if (!iterator || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *iterator = error_log().end();
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned flags) {
  if (!path || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  CUlogIterator at = iterator ? *iterator : error_log().first();
  std::string text;
  if (!error_log().read(at, ErrorLog::bytes_max * 2, text)) return CUDA_ERROR_INVALID_VALUE;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  if (iterator) *iterator = at;
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, std::size_t* size, unsigned flags) {
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t room = *size;
  *size = 0;
  if (!buffer || room == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  CUlogIterator at = iterator ? *iterator : error_log().first();
  std::string text;
  if (!error_log().read(at, room - 1, text)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  if (iterator) *iterator = at;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
