// Unpacks, resizes and equalises batches of images on three streams, with all memory from a pool whose books are read.

#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int images_at_scale_one = 16;
constexpr int batches = 2;
constexpr int side = 160;  // of resized images
constexpr int thumbnail_side = 40;
constexpr int result_bytes = side * side;
constexpr int thumbnail_bytes = thumbnail_side * thumbnail_side;
constexpr int levels = 256;

struct Image {
  int width;
  int height;
  std::vector<unsigned char> packed;  // each row: its first pixel, then differences modulo 256
};

uint32_t random_bits(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

/// A picture of soft waves and a little noise, darker than it needs to be.
Image make_image(uint32_t seed) {
  uint32_t state = seed;
  Image image;
  image.width = 320 + static_cast<int>(random_bits(state) % 321);
  image.height = 240 + static_cast<int>(random_bits(state) % 241);
  const int period = 40 + static_cast<int>(random_bits(state) % 60),
            slope = 1 + static_cast<int>(random_bits(state) % 3);
  image.packed.resize(static_cast<size_t>(image.width) * image.height);
  for (int y = 0; y < image.height; ++y) {
    int before = 0;
    for (int x = 0; x < image.width; ++x) {
      const int wave = std::abs((x + slope * y) % (2 * period) - period);
      const int pixel = 20 + wave + static_cast<int>(random_bits(state) % 5);
      image.packed[static_cast<size_t>(y) * image.width + x] = static_cast<unsigned char>(pixel - before);
      before = pixel;
    }
  }
  return image;
}

/// One warp to a row adds up its differences.
__global__ void unpack(const unsigned char* packed, unsigned char* pixels, size_t pitch, int width, int height) {
  const int y = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  if (y >= height) return;
  unsigned before = 0;
  for (int x = lane; x - lane < width; x += warpSize) {
    unsigned value = x < width ? packed[static_cast<size_t>(y) * width + x] : 0;
    for (int step = 1; step < warpSize; step *= 2) {
      const unsigned other = __shfl_up_sync(~0u, value, step);
      if (lane >= step) value += other;
    }
    value += before;
    if (x < width) pixels[y * pitch + x] = static_cast<unsigned char>(value);
    before = __shfl_sync(~0u, value, warpSize - 1);
  }
}

/// Where a pixel of the result lies between pixels of the original, in units of 1/256.
__host__ __device__ inline int place(int index, int original) {
  const int at = ((2 * index + 1) * original * 128) / side - 128;
  return at < 0 ? 0 : at > (original - 1) * 256 ? (original - 1) * 256 : at;
}

__host__ __device__ inline int blend(int a, int b, int c, int d, int x, int y) {
  return ((a * (256 - x) + b * x) * (256 - y) + (c * (256 - x) + d * x) * y + (1 << 15)) >> 16;
}

__global__ void resize(cudaTextureObject_t texture, int width, int height, unsigned char* result) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= side || y >= side) return;
  const int u = place(x, width), v = place(y, height);
  const float left = static_cast<float>(u >> 8), top = static_cast<float>(v >> 8);
  const int a = tex2D<unsigned char>(texture, left, top), b = tex2D<unsigned char>(texture, left + 1, top);
  const int c = tex2D<unsigned char>(texture, left, top + 1), d = tex2D<unsigned char>(texture, left + 1, top + 1);
  result[y * side + x] = static_cast<unsigned char>(blend(a, b, c, d, u & 255, v & 255));
}

/// The texture unit does the blending.
__global__ void shrink(cudaTextureObject_t texture, unsigned char* thumbnail) {
  const int x = threadIdx.x, y = blockIdx.x;
  const float value = tex2D<float>(texture, (x + 0.5f) / thumbnail_side, (y + 0.5f) / thumbnail_side);
  thumbnail[y * thumbnail_side + x] = static_cast<unsigned char>(__float2int_rn(value * 255));
}

__global__ void count_levels(const unsigned char* pixels, unsigned* histogram) {
  __shared__ unsigned counts[levels];
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * levels + threadIdx.x; i < result_bytes; i += gridDim.x * levels) {
    atomicAdd(&counts[pixels[i]], 1u);
  }
  __syncthreads();
  atomicAdd(&histogram[threadIdx.x], counts[threadIdx.x]);
}

__global__ void equalise(unsigned char* pixels, const unsigned* histogram) {
  __shared__ unsigned up_to[levels];
  __shared__ unsigned darkest;
  const int level = threadIdx.x;
  up_to[level] = histogram[level];
  for (int step = 1; step < levels; step *= 2) {
    __syncthreads();
    const unsigned before = level >= step ? up_to[level - step] : 0;
    __syncthreads();
    up_to[level] += before;
  }
  __syncthreads();
  if (histogram[level] > 0 && up_to[level] == histogram[level]) darkest = histogram[level];
  __syncthreads();
  for (int i = blockIdx.x * levels + level; i < result_bytes; i += gridDim.x * levels) {
    pixels[i] = static_cast<unsigned char>((up_to[pixels[i]] - darkest) * 255 / (result_bytes - darkest));
  }
}

std::vector<unsigned char> unpack_on_cpu(const Image& image) {
  std::vector<unsigned char> pixels(image.packed);
  for (size_t i = 0; i < pixels.size(); ++i) {
    if (i % image.width != 0) pixels[i] = static_cast<unsigned char>(pixels[i] + pixels[i - 1]);
  }
  return pixels;
}

std::vector<unsigned char> resize_and_equalise_on_cpu(const Image& image, const std::vector<unsigned char>& pixels) {
  std::vector<unsigned char> result(result_bytes);
  std::vector<unsigned> up_to(levels, 0);
  for (int i = 0; i < result_bytes; ++i) {
    const int u = place(i % side, image.width), v = place(i / side, image.height);
    const int left = u >> 8, top = v >> 8;
    const int right = std::min(left + 1, image.width - 1), bottom = std::min(top + 1, image.height - 1);
    const auto at = [&](int x, int y) { return pixels[static_cast<size_t>(y) * image.width + x]; };
    result[i] = static_cast<unsigned char>(
        blend(at(left, top), at(right, top), at(left, bottom), at(right, bottom), u & 255, v & 255));
    ++up_to[result[i]];
  }
  const unsigned darkest = *std::find_if(up_to.begin(), up_to.end(), [](unsigned count) { return count > 0; });
  for (int level = 1; level < levels; ++level) up_to[level] += up_to[level - 1];
  for (unsigned char& pixel : result) {
    pixel = static_cast<unsigned char>((up_to[pixel] - darkest) * 255 / (result_bytes - darkest));
  }
  return result;
}

/// The texture unit has fractions of 1/256 and rounds them, so that each of its two blends may be off by
/// 255 / 512 levels; the rounding to a whole level adds another half on each side.
void check_thumbnail(const Image& image, const std::vector<unsigned char>& pixels, const unsigned char* thumbnail) {
  for (int i = 0; i < thumbnail_bytes; ++i) {
    const double u = (i % thumbnail_side + 0.5) / thumbnail_side * image.width - 0.5;
    const double v = (i / thumbnail_side + 0.5) / thumbnail_side * image.height - 0.5;
    const int left = static_cast<int>(u), top = static_cast<int>(v);
    const auto at = [&](int x, int y) { return static_cast<double>(pixels[static_cast<size_t>(y) * image.width + x]); };
    const double above = at(left, top) + (at(left + 1, top) - at(left, top)) * (u - left);
    const double below = at(left, top + 1) + (at(left + 1, top + 1) - at(left, top + 1)) * (u - left);
    HOLDS(std::fabs(above + (below - above) * (v - top) - thumbnail[i]) <= 2);
  }
}

/// A pool of the program's own, which all cudaMallocAsync of the device take from.
class Pool {
 public:
  explicit Pool(int device) : device_(device) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    CUDA(cudaMemPoolCreate(&pool_, &properties));
    CUDA(cudaDeviceSetMemPool(device, pool_));
    cudaMemPool_t current = nullptr;
    CUDA(cudaDeviceGetMemPool(&current, device));
    HOLDS(current == pool_);
    HOLDS(read(cudaMemPoolAttrReleaseThreshold) == 0);
    HOLDS(read(cudaMemPoolAttrUsedMemCurrent) == 0 && read(cudaMemPoolAttrUsedMemHigh) == 0);
    set(cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
    HOLDS(read(cudaMemPoolAttrReleaseThreshold) == UINT64_MAX);
  }
  ~Pool() {
    cudaMemPool_t usual = nullptr;
    CUDA(cudaDeviceGetDefaultMemPool(&usual, device_));
    HOLDS(usual != pool_);
    CUDA(cudaDeviceSetMemPool(device_, usual));
    CUDA(cudaMemPoolDestroy(pool_));
  }

  uint64_t read(cudaMemPoolAttr attribute) const {
    uint64_t value = 0;
    CUDA(cudaMemPoolGetAttribute(pool_, attribute, &value));
    return value;
  }
  void set(cudaMemPoolAttr attribute, uint64_t value) { CUDA(cudaMemPoolSetAttribute(pool_, attribute, &value)); }

  uint64_t used() const { return read(cudaMemPoolAttrUsedMemCurrent); }
  uint64_t reserved() const { return read(cudaMemPoolAttrReservedMemCurrent); }
  uint64_t most_used() const { return read(cudaMemPoolAttrUsedMemHigh); }
  uint64_t most_reserved() const { return read(cudaMemPoolAttrReservedMemHigh); }

  void expect_plausible() const {
    HOLDS(used() <= reserved() && used() <= most_used() && reserved() <= most_reserved());
    HOLDS(most_used() <= most_reserved());
  }

  /// The marks can be set back, but only to zero.
  void restart_marks() {
    uint64_t one = 1;
    HOLDS(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &one) == cudaErrorInvalidValue);
    HOLDS(cudaGetLastError() == cudaErrorInvalidValue);
    set(cudaMemPoolAttrUsedMemHigh, 0);
    set(cudaMemPoolAttrReservedMemHigh, 0);
  }

  void trim(size_t kept) { CUDA(cudaMemPoolTrimTo(pool_, kept)); }

 private:
  int device_;
  cudaMemPool_t pool_ = nullptr;
};

/// The original as a texture: pixels as they are, or blended by the unit over coordinates from 0 to 1.
cudaTextureObject_t make_texture(cudaArray_t array, bool blended) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc description{};
  description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
  description.filterMode = blended ? cudaFilterModeLinear : cudaFilterModePoint;
  description.readMode = blended ? cudaReadModeNormalizedFloat : cudaReadModeElementType;
  description.normalizedCoords = blended;
  cudaTextureObject_t texture = 0;
  CUDA(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  return texture;
}

/// Images go from stream to stream: up, through the kernels, and down.
class Pipeline {
 public:
  Pipeline() {
    int least = 0, greatest = 0;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    HOLDS(greatest <= least);
    CUDA(cudaStreamCreateWithPriority(&up_, cudaStreamNonBlocking, least));
    CUDA(cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, greatest));
    CUDA(cudaStreamCreateWithFlags(&down_, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&uploaded_, &computed_}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  ~Pipeline() {
    for (cudaStream_t stream : {up_, compute_, down_}) CUDA(cudaStreamDestroy(stream));
    for (cudaEvent_t event : {uploaded_, computed_}) CUDA(cudaEventDestroy(event));
  }

  /// Of one image; `result` and `thumbnail` are pinned. What is allocated here is free again when the streams have come
  /// to the end.
  void submit(const Image& image, unsigned char* result, unsigned char* thumbnail) {
    const size_t pitch = (image.width + 255) / 256 * 256;
    unsigned char *packed = nullptr, *pixels = nullptr, *resized = nullptr, *small = nullptr;
    unsigned* histogram = nullptr;
    CUDA(cudaMallocAsync(&packed, image.packed.size(), up_));
    CUDA(cudaMemcpyAsync(packed, image.packed.data(), image.packed.size(), cudaMemcpyHostToDevice, up_));
    CUDA(cudaEventRecord(uploaded_, up_));

    CUDA(cudaStreamWaitEvent(compute_, uploaded_, 0));
    CUDA(cudaMallocAsync(&pixels, pitch * image.height, compute_));
    unpack<<<(image.height + 7) / 8, dim3(32, 8), 0, compute_>>>(packed, pixels, pitch, image.width, image.height);
    CUDA(cudaGetLastError());
    CUDA(cudaFreeAsync(packed, compute_));
    cudaArray_t array = nullptr;
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
    CUDA(cudaMallocArray(&array, &format, image.width, image.height));
    arrays_.push_back(array);
    CUDA(cudaMemcpy2DToArrayAsync(array, 0, 0, pixels, pitch, image.width, image.height, cudaMemcpyDeviceToDevice,
                                  compute_));
    CUDA(cudaFreeAsync(pixels, compute_));
    textures_.push_back(make_texture(array, false));
    textures_.push_back(make_texture(array, true));
    CUDA(cudaMallocAsync(&resized, result_bytes, compute_));
    CUDA(cudaMallocAsync(&small, thumbnail_bytes, compute_));
    CUDA(cudaMallocAsync(&histogram, levels * sizeof(unsigned), compute_));
    CUDA(cudaMemsetAsync(histogram, 0, levels * sizeof(unsigned), compute_));
    const dim3 grid((side + 31) / 32, (side + 7) / 8);
    resize<<<grid, dim3(32, 8), 0, compute_>>>(textures_[textures_.size() - 2], image.width, image.height, resized);
    CUDA(cudaGetLastError());
    shrink<<<thumbnail_side, thumbnail_side, 0, compute_>>>(textures_.back(), small);
    CUDA(cudaGetLastError());
    count_levels<<<4, levels, 0, compute_>>>(resized, histogram);
    CUDA(cudaGetLastError());
    equalise<<<4, levels, 0, compute_>>>(resized, histogram);
    CUDA(cudaGetLastError());
    CUDA(cudaFreeAsync(histogram, compute_));
    CUDA(cudaEventRecord(computed_, compute_));

    CUDA(cudaStreamWaitEvent(down_, computed_, 0));
    CUDA(cudaMemcpyAsync(result, resized, result_bytes, cudaMemcpyDeviceToHost, down_));
    CUDA(cudaMemcpyAsync(thumbnail, small, thumbnail_bytes, cudaMemcpyDeviceToHost, down_));
    CUDA(cudaFreeAsync(resized, down_));
    CUDA(cudaFreeAsync(small, down_));
  }

  void finish() {
    for (cudaStream_t stream : {up_, compute_, down_}) CUDA(cudaStreamSynchronize(stream));
    for (cudaTextureObject_t texture : textures_) CUDA(cudaDestroyTextureObject(texture));
    for (cudaArray_t array : arrays_) CUDA(cudaFreeArray(array));
    textures_.clear();
    arrays_.clear();
  }

 private:
  cudaStream_t up_ = nullptr, compute_ = nullptr, down_ = nullptr;
  cudaEvent_t uploaded_ = nullptr, computed_ = nullptr;
  std::vector<cudaArray_t> arrays_;
  std::vector<cudaTextureObject_t> textures_;
};

}  // namespace

int main(int count, char** words) {
  const int images_of_batch = images_at_scale_one * program::scale(count, words);
  int device = 0, has_pools = 0;
  CUDA(cudaGetDevice(&device));
  CUDA(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device));
  HOLDS(has_pools == 1);
  uint64_t sum = 0xcbf29ce484222325ull;
  {
    Pool pool(device);
    Pipeline pipeline;
    unsigned char* results = nullptr;
    unsigned char* thumbnails = nullptr;
    CUDA(cudaMallocHost(&results, static_cast<size_t>(images_of_batch) * result_bytes));
    CUDA(cudaMallocHost(&thumbnails, static_cast<size_t>(images_of_batch) * thumbnail_bytes));
    for (int batch = 0; batch < batches; ++batch) {
      std::vector<Image> images;
      size_t largest = 0;
      for (int i = 0; i < images_of_batch; ++i) {
        images.push_back(make_image(batch * 100000 + i));
        largest = std::max(largest, images.back().packed.size());
      }
      for (int i = 0; i < images_of_batch; ++i) {
        pipeline.submit(images[i], results + static_cast<size_t>(i) * result_bytes,
                        thumbnails + static_cast<size_t>(i) * thumbnail_bytes);
      }
      pipeline.finish();
      // Of the largest image, packed and unpacked pixels were there at the same time. Nothing is in use now, and the
      // threshold keeps all of it.
      pool.expect_plausible();
      HOLDS(pool.used() == 0);
      HOLDS(pool.most_used() >= 2 * largest);
      HOLDS(pool.reserved() >= pool.most_used());
      HOLDS(pool.reserved() == pool.most_reserved());
      for (int i = 0; i < images_of_batch; ++i) {
        const std::vector<unsigned char> pixels = unpack_on_cpu(images[i]);
        const std::vector<unsigned char> expected = resize_and_equalise_on_cpu(images[i], pixels);
        const unsigned char* result = results + static_cast<size_t>(i) * result_bytes;
        HOLDS(std::equal(expected.begin(), expected.end(), result));
        check_thumbnail(images[i], pixels, thumbnails + static_cast<size_t>(i) * thumbnail_bytes);
        for (unsigned char pixel : expected) sum = (sum ^ pixel) * 0x100000001b3ull;
      }
    }

    // What is in use stays when the pool is trimmed, and keeps its bytes.
    constexpr size_t kept_bytes = 3 << 20;
    unsigned char* kept = nullptr;
    CUDA(cudaMallocAsync(&kept, kept_bytes, nullptr));
    CUDA(cudaMemsetAsync(kept, 0x5a, kept_bytes, nullptr));
    CUDA(cudaStreamSynchronize(nullptr));
    HOLDS(pool.used() >= kept_bytes);
    const uint64_t before = pool.reserved();
    pool.trim(before);
    HOLDS(pool.reserved() == before);
    pool.trim(0);
    HOLDS(pool.reserved() <= before && pool.reserved() >= pool.used());
    pool.restart_marks();
    HOLDS(pool.most_used() >= kept_bytes && pool.most_used() == pool.used());
    HOLDS(pool.most_reserved() == pool.reserved());
    unsigned char last = 0;
    CUDA(cudaMemcpy(&last, kept + kept_bytes - 1, 1, cudaMemcpyDeviceToHost));
    HOLDS(last == 0x5a);
    CUDA(cudaFreeAsync(kept, nullptr));
    CUDA(cudaDeviceSynchronize());
    HOLDS(pool.used() == 0 && pool.most_used() >= kept_bytes);
    pool.trim(0);
    HOLDS(pool.reserved() == 0 && pool.most_reserved() >= kept_bytes);
    CUDA(cudaFreeHost(results));
    CUDA(cudaFreeHost(thumbnails));
  }
  char line[128];
  std::snprintf(line, sizeof(line), "%d images of %d x %d, sum %016llx", batches * images_of_batch, side, side,
                static_cast<unsigned long long>(sum));
  return program::passed(line);
}
