// Filters a stereo signal by the Fourier transform of overlapping frames, while batches of frames come in and go out.

#include "program.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <vector>

namespace {

constexpr int frame = 1024;  // samples of a frame, a power of two
constexpr int log2_frame = 10;
constexpr int taps = 193;
constexpr int overlap = taps - 1;  // the first samples of a frame, which its transform cannot filter
constexpr int hop = frame - overlap;
constexpr int frames_per_batch = 48;
constexpr int batches_per_scale = 9;
constexpr int threads_per_block = frame / 4;
constexpr double pi = 3.14159265358979323846;
// A transform of 2^10 samples adds some 10 rounding errors of 6e-8 to each value, of magnitudes below 2; there are two.
constexpr float tolerance = 1e-5F;

/// A sample of both channels. The filter is real, so that one complex transform filters both at once.
using Sample = float2;

__constant__ float2 twiddles[frame / 2];
__constant__ float2 spectrum[frame];

__device__ float2 times(float2 a, float2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

/// Transforms what lies in shared memory, in place. `direction` is 1, or -1 for the inverse without its factor.
__device__ void transform(float2* values, float direction) {
  for (int i = threadIdx.x; i < frame; i += blockDim.x) {
    const int other = static_cast<int>(__brev(static_cast<unsigned>(i)) >> (32 - log2_frame));
    if (other <= i) continue;
    const float2 value = values[i];
    values[i] = values[other];
    values[other] = value;
  }
  __syncthreads();
  for (int half = 1; half < frame; half *= 2) {
    for (int i = threadIdx.x; i < frame / 2; i += blockDim.x) {
      const int within = i & (half - 1);
      const int low = 2 * i - within;
      const float2 twiddle = twiddles[within * (frame / 2 / half)];
      const float2 a = values[low];
      const float2 b = times(values[low + half], {twiddle.x, direction * twiddle.y});
      values[low] = {a.x + b.x, a.y + b.y};
      values[low + half] = {a.x - b.x, a.y - b.y};
    }
    __syncthreads();
  }
}

/// A block per frame. Without `filtered`, the frames are left transformed.
template <bool filtered>
__global__ void filter_frames(Sample* frames) {
  __shared__ float2 values[frame];
  Sample* mine = frames + static_cast<size_t>(blockIdx.x) * frame;
  for (int i = threadIdx.x; i < frame; i += blockDim.x) values[i] = mine[i];
  __syncthreads();
  transform(values, 1.0F);
  if constexpr (filtered) {
    for (int i = threadIdx.x; i < frame; i += blockDim.x) {
      const float2 product = times(values[i], spectrum[i]);
      values[i] = {product.x / frame, product.y / frame};
    }
    __syncthreads();
    transform(values, -1.0F);
  }
  for (int i = threadIdx.x; i < frame; i += blockDim.x) mine[i] = values[i];
}

/// A low pass: a windowed sinc whose taps add up to 1.
std::vector<double> low_pass() {
  std::vector<double> filter(taps);
  double sum = 0.0;
  for (int i = 0; i < taps; ++i) {
    const double at = i - (taps - 1) / 2;
    const double window = 0.54 - 0.46 * std::cos(2.0 * pi * i / (taps - 1));
    filter[i] = window * (at == 0.0 ? 0.1 : std::sin(0.1 * pi * at) / (pi * at));
    sum += filter[i];
  }
  for (double& tap : filter) tap /= sum;
  return filter;
}

/// Two low tones, one in each channel, and noise. The first `overlap` samples are the silence before.
void record_signal(Sample* signal, size_t samples) {
  unsigned state = 4711;
  const auto noise = [&state] {
    state = state * 1664525U + 1013904223U;
    return static_cast<float>(state >> 8) / (1 << 24) - 0.5F;
  };
  std::memset(signal, 0, overlap * sizeof(Sample));
  for (size_t i = overlap; i < samples; ++i) {
    const float left = 0.5F * std::sin(0.02F * static_cast<float>(i % 100'000)) + noise();
    signal[i] = {left, 0.5F * std::sin(0.05F * static_cast<float>(i % 100'000)) + noise()};
  }
}

/// Puts the twiddles and the spectrum of the filter into constant memory. The latter never leaves the device.
void prepare(const std::vector<double>& filter, Sample* scratch, cudaStream_t stream) {
  std::vector<float2> values(frame / 2);
  for (int i = 0; i < frame / 2; ++i) {
    const std::complex<double> twiddle = std::polar(1.0, -2.0 * pi * i / frame);
    values[i] = {static_cast<float>(twiddle.real()), static_cast<float>(twiddle.imag())};
  }
  CUDA(cudaMemcpyToSymbolAsync(twiddles, values.data(), sizeof twiddles, 0, cudaMemcpyHostToDevice, stream));
  CUDA(cudaStreamSynchronize(stream));
  values.assign(frame, {});
  for (int i = 0; i < taps; ++i) values[i].x = static_cast<float>(filter[i]);
  CUDA(cudaMemcpyAsync(scratch, values.data(), frame * sizeof(float2), cudaMemcpyHostToDevice, stream));
  filter_frames<false><<<1, threads_per_block, 0, stream>>>(scratch);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyToSymbolAsync(spectrum, scratch, sizeof spectrum, 0, cudaMemcpyDeviceToDevice, stream));

  size_t bytes = 0;
  void* address = nullptr;
  CUDA(cudaGetSymbolSize(&bytes, spectrum));
  CUDA(cudaGetSymbolAddress(&address, spectrum));
  HOLDS(bytes == frame * sizeof(float2));
  float2 gain[2] = {};
  CUDA(cudaMemcpyAsync(&gain[0], address, sizeof(float2), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaMemcpyFromSymbolAsync(&gain[1], spectrum, sizeof(float2), 0, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  HOLDS(std::memcmp(&gain[0], &gain[1], sizeof(float2)) == 0 && std::fabs(gain[0].x - 1.0F) < tolerance);
}

/// The largest difference from the sum of products, over both channels and all samples.
float largest_error(const Sample* signal, const Sample* result, size_t samples, const std::vector<double>& filter) {
  float error = 0.0F;
  for (size_t i = 0; i < samples; ++i) {
    double left = 0.0, right = 0.0;
    for (int tap = 0; tap < taps; ++tap) {
      const Sample& sample = signal[i + overlap - tap];
      left += filter[tap] * sample.x;
      right += filter[tap] * sample.y;
    }
    error = std::max(
        {error, std::fabs(result[i].x - static_cast<float>(left)), std::fabs(result[i].y - static_cast<float>(right))});
  }
  return error;
}

}  // namespace

int main(int count, char** words) {
  const int batches = batches_per_scale * program::scale(count, words);
  const size_t samples = static_cast<size_t>(batches) * frames_per_batch * hop;
  const std::vector<double> filter = low_pass();
  std::vector<Sample> signal(samples + overlap);
  record_signal(signal.data(), signal.size());
  // The processor only writes to the first and reads the second.
  Sample *in = nullptr, *out = nullptr;
  CUDA(cudaHostAlloc(&in, signal.size() * sizeof(Sample), cudaHostAllocWriteCombined));
  CUDA(cudaHostAlloc(&out, samples * sizeof(Sample), cudaHostAllocDefault));
  unsigned flags = 0;
  CUDA(cudaHostGetFlags(&flags, in));
  HOLDS((flags & cudaHostAllocWriteCombined) != 0);
  std::memcpy(in, signal.data(), signal.size() * sizeof(Sample));

  cudaStream_t upload = nullptr, compute = nullptr, download = nullptr;
  for (cudaStream_t* stream : {&upload, &compute, &download}) {
    CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  cudaEvent_t uploaded[2], filtered[2], downloaded[2];
  Sample* buffers[2] = {};
  for (int i = 0; i < 2; ++i) {
    CUDA(cudaMalloc(&buffers[i], frames_per_batch * frame * sizeof(Sample)));
    for (cudaEvent_t* event : {&uploaded[i], &filtered[i], &downloaded[i]}) {
      CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
  }
  prepare(filter, buffers[0], compute);

  constexpr size_t frame_bytes = frame * sizeof(Sample), hop_bytes = hop * sizeof(Sample);
  constexpr size_t overlap_bytes = overlap * sizeof(Sample);
  // Rows that overlap in the source are no matrix to a copy.
  HOLDS(cudaMemcpy2DAsync(buffers[0], frame_bytes, in, hop_bytes, frame_bytes, frames_per_batch, cudaMemcpyHostToDevice,
                          upload) == cudaErrorInvalidPitchValue);
  HOLDS(cudaGetLastError() == cudaErrorInvalidPitchValue);
  for (int batch = 0; batch < batches; ++batch) {
    const int side = batch % 2;
    Sample* frames = buffers[side];
    const Sample* from = in + static_cast<size_t>(batch) * frames_per_batch * hop;
    Sample* to = out + static_cast<size_t>(batch) * frames_per_batch * hop;
    // An event that was not recorded yet holds nothing up.
    CUDA(cudaStreamWaitEvent(upload, downloaded[side], 0));
    CUDA(cudaMemcpy2DAsync(frames, frame_bytes, from, hop_bytes, hop_bytes, frames_per_batch, cudaMemcpyHostToDevice,
                           upload));
    CUDA(cudaMemcpy2DAsync(frames + hop, frame_bytes, from + hop, hop_bytes, overlap_bytes, frames_per_batch,
                           cudaMemcpyHostToDevice, upload));
    CUDA(cudaEventRecord(uploaded[side], upload));
    CUDA(cudaStreamWaitEvent(compute, uploaded[side], cudaEventWaitDefault));
    filter_frames<true><<<frames_per_batch, threads_per_block, 0, compute>>>(frames);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(filtered[side], compute));
    CUDA(cudaStreamWaitEvent(download, filtered[side], cudaEventWaitDefault));
    CUDA(cudaMemcpy2DAsync(to, hop_bytes, frames + overlap, frame_bytes, hop_bytes, frames_per_batch,
                           cudaMemcpyDeviceToHost, download));
    CUDA(cudaEventRecord(downloaded[side], download));
  }
  CUDA(cudaStreamSynchronize(download));
  for (cudaStream_t stream : {upload, compute, download}) HOLDS(cudaStreamQuery(stream) == cudaSuccess);

  HOLDS(largest_error(signal.data(), out, samples, filter) < tolerance);
  double energy = 0.0;
  for (size_t i = 0; i < samples; ++i) energy += out[i].x * out[i].x + out[i].y * out[i].y;
  for (int i = 0; i < 2; ++i) {
    for (cudaEvent_t event : {uploaded[i], filtered[i], downloaded[i]}) CUDA(cudaEventDestroy(event));
    CUDA(cudaFree(buffers[i]));
  }
  for (cudaStream_t stream : {upload, compute, download}) CUDA(cudaStreamDestroy(stream));
  for (Sample* memory : {in, out}) CUDA(cudaFreeHost(memory));
  char line[160];
  std::snprintf(line, sizeof line, "filtered %zu stereo samples in %d batches, mean energy %.4f", samples, batches,
                energy / static_cast<double>(samples));
  return program::passed(line);
}
