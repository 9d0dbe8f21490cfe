// Kernels with and without operations of the scope of the whole system, as their names say (system_scope_test.cpp).

extern "C" {

__global__ void with_reduction(int* p) { atomicAdd_system(p, 1); }
__global__ void with_atomic(int* p, int* q) { *q = atomicAdd_system(p, 1); }
__global__ void with_wide_atomic(unsigned long long* p, unsigned long long* q) { *q = atomicExch_system(p, 1ull); }
__global__ void with_float(float* p) { atomicAdd_system(p, 1.f); }
__global__ void with_float_result(float* p, float* q) { *q = atomicAdd_system(p, 1.f); }
__global__ void with_double(double* p, double* q) { *q = atomicAdd_system(p, 1.); }
__global__ void with_swap(int* p, int* q) { *q = atomicCAS_system(p, 1, 2); }
// Shared memory or not: an instruction for either.
__global__ void with_either(int* p, int* q) {
  __shared__ int here;
  int* const which = q ? p : &here;
  *q = atomicAdd_system(which, 1) + atomicCAS_system(which, 1, 2);
}
__global__ void with_either_float(float* p, float* q) {
  __shared__ float here;
  *q = atomicAdd_system(q ? p : &here, 1.f);
}
__global__ void with_pairs(unsigned* p, unsigned* q) {
  asm volatile("atom.global.add.noftz.sys.f16x2 %0, [%1], %2;" : "=r"(*q) : "l"(p), "r"(5));
}
__global__ void with_fence(int* p) {
  p[0] = 1;
  __threadfence_system();
  p[1] = 2;
}
__global__ void with_release(int* p) { asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(p), "r"(3)); }

__global__ void without_anything(int* p) { p[0] = p[1]; }
__global__ void without_volatile(volatile int* p) { p[0] = p[1]; }
__global__ void without_system(int* p, int* q) {
  q[0] = atomicAdd(p, 1);
  q[1] = atomicCAS(p, 1, 2);
  q[2] = atomicAdd_block(p, 1);
  atomicMax(p, 4);
  __threadfence();
  __threadfence_block();
}
__global__ void without_floats(float* p, float* q, double* d) {
  atomicAdd(p, 1.f);
  *q = atomicAdd(p, 2.f);
  atomicAdd(d, 1.);
}
__global__ void without_either(int* p, int* q) {
  __shared__ int here;
  *q = atomicAdd(q ? p : &here, 1);
}
}
