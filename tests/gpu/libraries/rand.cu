// cuRAND: generators of the host API, and numbers that kernels draw.

#include <curand.h>
#include <curand_kernel.h>

#include "harness.h"

namespace {

struct Generator {
  curandGenerator_t handle;
  explicit Generator(curandRngType type) { OK(curandCreateGenerator(&handle, type)); }
  ~Generator() { curandDestroyGenerator(handle); }
  operator curandGenerator_t() const { return handle; }
};

constexpr size_t count = 20000;

void pseudo(curandRngType type) {
  Generator generator(type);
  OK(curandSetPseudoRandomGeneratorSeed(generator, 1234));
  Memory<float> values(count);
  OK(curandGenerateUniform(generator, values.data(), count));
  show("uniform", values);
  OK(curandGenerateNormal(generator, values.data(), count, 1, 2));
  show("normal", values);
  Memory<double> wide(count);
  OK(curandGenerateUniformDouble(generator, wide.data(), count));
  show("double", wide);
  double sum = 0;
  for (double value : wide.get()) sum += value;
  HOLDS(std::fabs(sum / count - 0.5) < 0.02);
}

void quasi(curandRngType type, unsigned dimensions) {
  Generator generator(type);
  OK(curandSetQuasiRandomGeneratorDimensions(generator, dimensions));
  Memory<float> values(count);
  OK(curandGenerateUniform(generator, values.data(), count));
  show("uniform", values);
}

template <class State>
__global__ void drawn(float* uniform, float* normal, unsigned* bits, int per_thread) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  State state;
  curand_init(42, thread, 0, &state);
  for (int i = 0; i < per_thread; ++i) {
    const int at = thread * per_thread + i;
    uniform[at] = curand_uniform(&state);
    normal[at] = curand_normal(&state);
    bits[at] = curand(&state);
  }
}

template <class State>
void in_kernel() {
  Memory<float> uniform(4096), normal(4096);
  Memory<unsigned> bits(4096);
  drawn<State><<<8, 64>>>(uniform.data(), normal.data(), bits.data(), 8);
  OK(cudaGetLastError());
  show("uniform", uniform);
  show("normal", normal);
  show("bits", bits);
}

__global__ void poisson(unsigned* out, curandDiscreteDistribution_t distribution) {
  curandStatePhilox4_32_10_t state;
  curand_init(7, threadIdx.x, 0, &state);
  out[threadIdx.x] = curand_discrete(&state, distribution);
}

}  // namespace

CASE(xorwow) { pseudo(CURAND_RNG_PSEUDO_XORWOW); }
CASE(mrg32k3a) { pseudo(CURAND_RNG_PSEUDO_MRG32K3A); }
CASE(mtgp32) { pseudo(CURAND_RNG_PSEUDO_MTGP32); }
CASE(mt19937) { pseudo(CURAND_RNG_PSEUDO_MT19937); }
CASE(philox) { pseudo(CURAND_RNG_PSEUDO_PHILOX4_32_10); }
CASE(sobol32) { quasi(CURAND_RNG_QUASI_SOBOL32, 10); }
CASE(scrambled_sobol32) { quasi(CURAND_RNG_QUASI_SCRAMBLED_SOBOL32, 5); }

CASE(sobol64) {
  Generator generator(CURAND_RNG_QUASI_SOBOL64);
  OK(curandSetQuasiRandomGeneratorDimensions(generator, 4));
  Memory<unsigned long long> values(count);
  OK(curandGenerateLongLong(generator, values.data(), count));
  show("bits", values);
}

CASE(other_distributions) {
  Generator generator(CURAND_RNG_PSEUDO_PHILOX4_32_10);
  OK(curandSetPseudoRandomGeneratorSeed(generator, 99));
  Memory<float> values(count);
  OK(curandGenerateLogNormal(generator, values.data(), count, 0, 0.5));
  show("log-normal", values);
  Memory<unsigned> whole(count);
  OK(curandGeneratePoisson(generator, whole.data(), count, 4.5));
  show("poisson", whole);
  OK(curandGenerate(generator, whole.data(), count));
  show("bits", whole);
}

CASE(offsets) {
  Generator generator(CURAND_RNG_PSEUDO_XORWOW);
  Memory<float> all(2000), later(1000);
  OK(curandSetPseudoRandomGeneratorSeed(generator, 5));
  OK(curandSetGeneratorOrdering(generator, CURAND_ORDERING_PSEUDO_BEST));
  OK(curandGenerateUniform(generator, all.data(), 2000));
  OK(curandSetGeneratorOffset(generator, 1000));
  OK(curandGenerateUniform(generator, later.data(), 1000));
  show("all", all);
  show("later", later);
}

CASE(on_a_stream) {
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Generator generator(CURAND_RNG_PSEUDO_PHILOX4_32_10);
  OK(curandSetStream(generator, stream));
  Memory<float> values(count);
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < 10; ++i) OK(curandGenerateUniform(generator, values.data(), count));
  OK(cudaStreamSynchronize(stream));
  show("uniform", values);
}

CASE(on_the_cpu) {
  curandGenerator_t generator;
  OK(curandCreateGeneratorHost(&generator, CURAND_RNG_PSEUDO_XORWOW));
  std::vector<float> values(1000);
  OK(curandGenerateUniform(generator, values.data(), values.size()));
  show("uniform", values);
  OK(curandDestroyGenerator(generator));
}

CASE(kernel_xorwow) { in_kernel<curandStateXORWOW_t>(); }
CASE(kernel_philox) { in_kernel<curandStatePhilox4_32_10_t>(); }
CASE(kernel_mrg32k3a) { in_kernel<curandStateMRG32k3a_t>(); }

CASE(kernel_poisson) {
  curandDiscreteDistribution_t distribution;
  OK(curandCreatePoissonDistribution(3.5, &distribution));
  Memory<unsigned> out(256);
  poisson<<<1, 256>>>(out.data(), distribution);
  show("poisson", out);
  OK(curandDestroyDistribution(distribution));
}
