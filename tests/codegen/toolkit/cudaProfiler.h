#pragma once
#include <cuda.h>

#ifdef __cplusplus
extern "C"
#endif
    CUresult CUDAAPI
    cuProfilerStart(void);
