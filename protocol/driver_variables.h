#pragma once
// Variables of the environment that the driver reads in cuInit. A session whose values differ from a warm worker's
// needs a worker of its own. CUDA C++ Programming Guide, "CUDA Environment Variables".

namespace fargpu {

/// Those that a client sends, and that a broker lets it set for its worker: none names a file or a program.
inline constexpr const char* driver_variables[] = {
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE",
    "CUDA_AUTO_BOOST",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_BINARY_LOADER_THREAD_COUNT",
};

}  // namespace fargpu
