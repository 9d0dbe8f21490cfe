// A function with an atomic of the whole system, compiled separately: any kernel of the module may call it.

__device__ __noinline__ int deep(int* p) { return atomicAdd_system(p, 1); }
extern "C" __global__ void with_call(int* p, int* q) { *q = deep(p); }
extern "C" __global__ void beside_it(int* p, int* q) { *q = *p; }
