// cuFFT.

#include <cufft.h>
#include <cufftXt.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "harness.h"

namespace {

std::vector<cufftComplex> complex_values(size_t count, unsigned seed = 1) {
  const auto parts = fractions<float>(2 * count, seed);
  std::vector<cufftComplex> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = {parts[2 * i], parts[2 * i + 1]};
  return values;
}

struct Plan {
  cufftHandle handle = 0;
  ~Plan() { cufftDestroy(handle); }
};

// There and back gives the input times its length.
void there_and_back(cufftHandle plan, size_t count, size_t length) {
  const auto values = complex_values(count);
  Memory<cufftComplex> in(values), out(count), back(count);
  OK(cufftExecC2C(plan, in.data(), out.data(), CUFFT_FORWARD));
  OK(cufftExecC2C(plan, out.data(), back.data(), CUFFT_INVERSE));
  show("transformed", out);
  const auto got = back.get();
  for (size_t i = 0; i < count; ++i) HOLDS(std::fabs(got[i].x / static_cast<float>(length) - values[i].x) < 1e-4f);
  show("back", got);
}

void one_dimension(int length, int batch = 1) {
  Plan plan;
  OK(cufftPlan1d(&plan.handle, length, CUFFT_C2C, batch));
  there_and_back(plan.handle, static_cast<size_t>(length) * batch, length);
}

double distance(const std::vector<cufftComplex>& one, const std::vector<cufftComplex>& other) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    apart += std::norm(std::complex<double>(one[i].x - other[i].x, one[i].y - other[i].y));
    size += std::norm(std::complex<double>(one[i].x, one[i].y));
  }
  return std::sqrt(apart / size);
}

// The interface for several devices, where each of them is this one: it gives what a plain plan gives.
void on_one_device(std::vector<int> lengths, int devices, int batch = 1) {
  const int rank = static_cast<int>(lengths.size());
  size_t count = batch;
  for (const int length : lengths) count *= length;
  Plan plain, spread;
  OK(cufftPlanMany(&plain.handle, rank, lengths.data(), nullptr, 1, 0, nullptr, 1, 0, CUFFT_C2C, batch));
  std::vector<int> all_this_one(devices, 0);
  std::vector<size_t> work_bytes(devices);
  OK(cufftCreate(&spread.handle));
  OK(cufftXtSetGPUs(spread.handle, devices, all_this_one.data()));
  if (rank == 1) OK(cufftMakePlan1d(spread.handle, lengths[0], CUFFT_C2C, batch, work_bytes.data()));
  if (rank == 2) OK(cufftMakePlan2d(spread.handle, lengths[0], lengths[1], CUFFT_C2C, work_bytes.data()));
  if (rank == 3) OK(cufftMakePlan3d(spread.handle, lengths[0], lengths[1], lengths[2], CUFFT_C2C, work_bytes.data()));
  const bool shuffled = rank == 1 && batch == 1;  // there is no way back from such parts before they are in order
  for (unsigned turn = 0; turn < 3; ++turn) {
    cudaLibXtDesc *parts, *in_order;
    OK(cufftXtMalloc(spread.handle, &parts, CUFFT_XT_FORMAT_INPLACE));
    OK(cufftXtMalloc(spread.handle, &in_order, CUFFT_XT_FORMAT_INPLACE));
    cudaLibXtDesc* const back = shuffled ? in_order : parts;
    auto values = complex_values(count, turn);
    Memory<cufftComplex> expected(values);
    OK(cufftExecC2C(plain.handle, expected.data(), expected.data(), CUFFT_FORWARD));
    OK(cufftXtMemcpy(spread.handle, parts, values.data(), CUFFT_COPY_HOST_TO_DEVICE));
    std::fill(values.begin(), values.end(), cufftComplex{9, 9});  // what was copied is the program's again
    OK(cufftXtExecDescriptorC2C(spread.handle, parts, parts, CUFFT_FORWARD));
    OK(cufftXtMemcpy(spread.handle, values.data(), parts, CUFFT_COPY_DEVICE_TO_HOST));
    HOLDS(distance(expected.get(), values) < 1e-5);
    show("transformed", values);
    if (shuffled) OK(cufftXtMemcpy(spread.handle, in_order, parts, CUFFT_COPY_DEVICE_TO_DEVICE));
    OK(cufftXtExecDescriptorC2C(spread.handle, back, back, CUFFT_INVERSE));
    OK(cufftXtMemcpy(spread.handle, values.data(), back, CUFFT_COPY_DEVICE_TO_HOST));
    OK(cufftExecC2C(plain.handle, expected.data(), expected.data(), CUFFT_INVERSE));
    HOLDS(distance(expected.get(), values) < 1e-5);
    show("back", values);
    OK(cufftXtFree(parts));
    OK(cufftXtFree(in_order));
  }
}

}  // namespace

CASE(power_of_two) { one_dimension(4096); }
CASE(mixed_factors) { one_dimension(3 * 5 * 7 * 11 * 13); }
CASE(prime) { one_dimension(10007); }
CASE(large) { one_dimension(1 << 22); }
CASE(batched) { one_dimension(256, 500); }

CASE(two_dimensions) {
  Plan plan;
  OK(cufftPlan2d(&plan.handle, 96, 200, CUFFT_C2C));
  there_and_back(plan.handle, 96 * 200, 96 * 200);
}

CASE(three_dimensions) {
  Plan plan;
  OK(cufftPlan3d(&plan.handle, 20, 32, 48, CUFFT_C2C));
  there_and_back(plan.handle, 20 * 32 * 48, 20 * 32 * 48);
}

CASE(real) {
  Plan forward, inverse;
  OK(cufftPlan1d(&forward.handle, 1000, CUFFT_R2C, 10));
  OK(cufftPlan1d(&inverse.handle, 1000, CUFFT_C2R, 10));
  const auto values = fractions<float>(10000);
  Memory<float> in(values), back(10000);
  Memory<cufftComplex> out(501 * 10);
  OK(cufftExecR2C(forward.handle, in.data(), out.data()));
  show("transformed", out);
  OK(cufftExecC2R(inverse.handle, out.data(), back.data()));
  auto got = back.get();
  for (float& value : got) value /= 1000;
  expect_near(got, values, 1e-4);
  show("back", got);
}

CASE(real_in_two_dimensions_in_place) {
  Plan plan;
  OK(cufftPlan2d(&plan.handle, 64, 64, CUFFT_R2C));
  Memory<float> data(fractions<float>(64 * 66));
  OK(cufftExecR2C(plan.handle, data.data(), reinterpret_cast<cufftComplex*>(data.data())));
  show("transformed", data);
}

CASE(double_precision) {
  Plan plan;
  OK(cufftPlan1d(&plan.handle, 1 << 14, CUFFT_Z2Z, 1));
  Memory<double> data(fractions<double>(2 << 14));
  auto* values = reinterpret_cast<cufftDoubleComplex*>(data.data());
  OK(cufftExecZ2Z(plan.handle, values, values, CUFFT_FORWARD));
  show("transformed", data);
  Plan real;
  OK(cufftPlan1d(&real.handle, 5000, CUFFT_D2Z, 2));
  Memory<double> in(fractions<double>(10000)), out(2 * 2501 * 2);
  OK(cufftExecD2Z(real.handle, in.data(), reinterpret_cast<cufftDoubleComplex*>(out.data())));
  show("real", out);
}

CASE(columns) {
  // Every column of a matrix: strides and distances of one's own.
  Plan plan;
  int length = 128, embedded = 128;
  OK(cufftPlanMany(&plan.handle, 1, &length, &embedded, 50, 1, &embedded, 50, 1, CUFFT_C2C, 50));
  Memory<cufftComplex> in(complex_values(128 * 50)), out(128 * 50);
  OK(cufftExecC2C(plan.handle, in.data(), out.data(), CUFFT_FORWARD));
  show("transformed", out);
}

CASE(parts_of_one_dimension) { on_one_device({1 << 13}, 2); }
CASE(parts_of_a_batch) { on_one_device({1024}, 2, 300); }
CASE(parts_of_two_dimensions) { on_one_device({256, 512}, 2); }
CASE(parts_of_three_dimensions) { on_one_device({64, 32, 48}, 2); }
CASE(four_parts) { on_one_device({512, 256}, 4); }

CASE(half_precision) {
  Plan plan;
  OK(cufftCreate(&plan.handle));
  long long length = 1024;
  size_t bytes;
  OK(cufftXtMakePlanMany(plan.handle, 1, &length, nullptr, 1, 1, CUDA_C_16F, nullptr, 1, 1, CUDA_C_16F, 8, &bytes,
                         CUDA_C_16F));
  std::vector<__half> values;
  for (float value : fractions<float>(2 * 1024 * 8)) values.push_back(__float2half(value * 0.01f));
  Memory<__half> data(values);
  OK(cufftXtExec(plan.handle, data.data(), data.data(), CUFFT_FORWARD));
  show("transformed", data);
}

CASE(own_work_area) {
  Plan plan;
  OK(cufftCreate(&plan.handle));
  OK(cufftSetAutoAllocation(plan.handle, 0));
  size_t bytes = 0;
  OK(cufftMakePlan1d(plan.handle, 10007, CUFFT_C2C, 4, &bytes));
  std::printf("%d\n", bytes > 0);
  Memory<char> area(bytes + 1);
  OK(cufftSetWorkArea(plan.handle, area.data()));
  there_and_back(plan.handle, 4 * 10007, 10007);
}

CASE(several_streams) {
  Plan plans[4];
  cudaStream_t streams[4];
  Memory<cufftComplex> in(complex_values(2048)), out(4 * 2048);
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < 4; ++i) {
    OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    OK(cufftPlan1d(&plans[i].handle, 2048 >> i, CUFFT_C2C, 1 << i));
    OK(cufftSetStream(plans[i].handle, streams[i]));
  }
  for (int i = 0; i < 4; ++i) OK(cufftExecC2C(plans[i].handle, in.data(), out.data() + i * 2048, CUFFT_FORWARD));
  for (cudaStream_t stream : streams) OK(cudaStreamSynchronize(stream));
  show("transformed", out);
}

CASE(in_a_graph) {
  Plan plan;
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cufftPlan1d(&plan.handle, 512, CUFFT_C2C, 8));
  OK(cufftSetStream(plan.handle, stream));
  Memory<cufftComplex> in(complex_values(4096)), out(4096);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaDeviceSynchronize());
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(cufftExecC2C(plan.handle, in.data(), out.data(), CUFFT_FORWARD));
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (unsigned turn = 0; turn < 3; ++turn) {
    in.put(complex_values(4096, turn + 5));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    show("transformed", out);
  }
}

CASE(wrong_plans) {
  Plan plan;
  std::printf("%d\n", cufftPlan1d(&plan.handle, -5, CUFFT_C2C, 1));
  std::printf("%d\n", cufftExecC2C(12345, nullptr, nullptr, CUFFT_FORWARD));
}
