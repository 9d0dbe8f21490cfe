#pragma once
#include <cudaProfiler.h>

typedef CUresult(CUDAAPI* PFN_cuProfilerStart_v4000)(void);
