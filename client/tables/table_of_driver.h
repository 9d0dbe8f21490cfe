#pragma once
// How libraries that come with fargpu find its tables in the driver library of the process.

#include <cuda.h>
#include <dlfcn.h>

namespace fargpu::client {

/// A function of the driver library, if the process has loaded one; or null.
template <class Function>
Function driver_function(const char* name) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver ? reinterpret_cast<Function>(::dlsym(driver, name)) : nullptr;
}

/// The table of this id; null where the process has loaded no driver library, or another one.
template <class Table>
const Table* table_of_driver(const CUuuid& id) {
  const auto export_table = driver_function<CUresult (*)(const void**, const CUuuid*)>("cuGetExportTable");
  const void* table = nullptr;
  if (!export_table || export_table(&table, &id) != CUDA_SUCCESS) return nullptr;
  return static_cast<const Table*>(table);
}

}  // namespace fargpu::client
