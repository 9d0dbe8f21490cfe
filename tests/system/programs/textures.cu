// A program of the CUDA runtime with textures and surfaces in every kind of memory. Prints what it saw, or says what
// was wrong.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t status = (call);                                   \
    if (status != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

constexpr int width = 96, height = 40, depth = 6;

__global__ void read_picture(cudaTextureObject_t texture, float* out) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x < width) out[y * width + x] = tex2D<float>(texture, (x + 0.5f) / width, (y + 0.5f) / height);
}

__global__ void read_volume(cudaTextureObject_t texture, float* out) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
  if (x < width) out[(z * height + y) * width + x] = tex3D<float>(texture, x + 0.5f, y + 0.5f, z + 0.5f);
}

__global__ void read_level(cudaTextureObject_t texture, float level, float* out) {
  out[threadIdx.x] = tex2DLod<float>(texture, (threadIdx.x + 0.5f) / 8, 0.5f, level);
}

__global__ void read_memory(cudaTextureObject_t texture, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * tex1Dfetch<float>(texture, i);
}

__global__ void turn(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  float value;
  if (x >= width) return;
  surf2Dread(&value, from, x * static_cast<int>(sizeof(float)), y);
  surf2Dwrite(value, to, (width - 1 - x) * static_cast<int>(sizeof(float)), height - 1 - y);
}

const dim3 rows((width + 31) / 32, height), slices((width + 31) / 32, height, depth), threads(32);

cudaTextureObject_t texture_of(const cudaResourceDesc& resource, bool normalized,
                               cudaTextureFilterMode filter = cudaFilterModePoint) {
  cudaTextureDesc sampling{};
  sampling.normalizedCoords = normalized;
  sampling.filterMode = sampling.mipmapFilterMode = filter;
  sampling.readMode = cudaReadModeElementType;
  sampling.maxMipmapLevelClamp = 10;
  cudaTextureObject_t texture = 0;
  CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
  return texture;
}

cudaResourceDesc in_array(cudaArray_t array) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  return resource;
}

void expect(const std::vector<float>& seen, const std::vector<float>& wanted, const char* what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (seen[i] == wanted[i]) continue;
    std::fprintf(stderr, "%s: element %zu is %g instead of %g\n", what, i, static_cast<double>(seen[i]),
                 static_cast<double>(wanted[i]));
    std::exit(1);
  }
  std::printf("%s: %zu\n", what, wanted.size());
}

std::vector<float> fetch(const float* memory, std::size_t count) {
  std::vector<float> values(count);
  CHECK(cudaMemcpy(values.data(), memory, count * sizeof(float), cudaMemcpyDeviceToHost));
  return values;
}

int main() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  std::vector<float> picture(width * height), volume(width * height * depth);
  for (std::size_t i = 0; i < volume.size(); ++i) volume[i] = static_cast<float>(i % 1009);
  for (std::size_t i = 0; i < picture.size(); ++i) picture[i] = static_cast<float>(i * 7 % 1013);
  float* out;
  CHECK(cudaMalloc(&out, volume.size() * sizeof(float)));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));

  // A picture in an array, from pageable memory.
  cudaArray_t array, turned;
  CHECK(cudaMallocArray(&array, &format, width, height, cudaArraySurfaceLoadStore));
  CHECK(cudaMallocArray(&turned, &format, width, height, cudaArraySurfaceLoadStore));
  cudaChannelFormatDesc seen_format;
  cudaExtent extent;
  CHECK(cudaArrayGetInfo(&seen_format, &extent, nullptr, array));
  if (extent.width != width || extent.height != height || seen_format.x != 32) std::fprintf(stderr, "another array\n");
  CHECK(cudaMemcpy2DToArray(array, 0, 0, picture.data(), width * sizeof(float), width * sizeof(float), height,
                            cudaMemcpyHostToDevice));
  const cudaTextureObject_t texture = texture_of(in_array(array), true);
  read_picture<<<rows, threads>>>(texture, out);
  expect(fetch(out, picture.size()), picture, "picture");
  cudaResourceDesc seen;
  CHECK(cudaGetTextureObjectResourceDesc(&seen, texture));
  if (seen.resType != cudaResourceTypeArray || seen.res.array.array != array)
    std::fprintf(stderr, "another resource\n");
  CHECK(cudaDestroyTextureObject(texture));

  // Turned by a kernel from surface to surface, and back to the host.
  cudaSurfaceObject_t from, to;
  const cudaResourceDesc from_resource = in_array(array), to_resource = in_array(turned);
  CHECK(cudaCreateSurfaceObject(&from, &from_resource));
  CHECK(cudaCreateSurfaceObject(&to, &to_resource));
  turn<<<rows, threads>>>(from, to);
  std::vector<float> back(picture.size()), reversed(picture.rbegin(), picture.rend());
  CHECK(cudaMemcpy2DFromArray(back.data(), width * sizeof(float), turned, 0, 0, width * sizeof(float), height,
                              cudaMemcpyDeviceToHost));
  expect(back, reversed, "turned");
  CHECK(cudaDestroySurfaceObject(from));
  CHECK(cudaDestroySurfaceObject(to));
  CHECK(cudaMemcpy2DArrayToArray(array, 0, 0, turned, 0, 0, width * sizeof(float), height, cudaMemcpyDeviceToDevice));

  // A volume from pinned memory, all in a stream.
  float* pinned;
  CHECK(cudaMallocHost(&pinned, volume.size() * sizeof(float)));
  std::memcpy(pinned, volume.data(), volume.size() * sizeof(float));
  cudaArray_t space;
  CHECK(cudaMalloc3DArray(&space, &format, make_cudaExtent(width, height, depth)));
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(pinned, width * sizeof(float), width, height);
  copy.dstArray = space;
  copy.extent = make_cudaExtent(width, height, depth);
  copy.kind = cudaMemcpyHostToDevice;
  CHECK(cudaMemcpy3DAsync(&copy, stream));
  const cudaTextureObject_t solid = texture_of(in_array(space), false);
  read_volume<<<slices, threads, 0, stream>>>(solid, out);
  CHECK(cudaMemcpyAsync(pinned, out, volume.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  expect(std::vector<float>(pinned, pinned + volume.size()), volume, "volume");
  CHECK(cudaDestroyTextureObject(solid));

  // A picture goes out into pinned memory and from there into another array, with nobody waiting in between.
  CHECK(cudaMemcpy2DFromArrayAsync(pinned, width * sizeof(float), turned, 0, 0, width * sizeof(float), height,
                                   cudaMemcpyDeviceToHost, stream));
  CHECK(cudaMemcpy2DToArrayAsync(array, 0, 0, pinned, width * sizeof(float), width * sizeof(float), height,
                                 cudaMemcpyHostToDevice, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemcpy2DFromArray(back.data(), width * sizeof(float), array, 0, 0, width * sizeof(float), height,
                              cudaMemcpyDeviceToHost));
  expect(back, reversed, "through pinned memory");

  // Levels, each of one value.
  cudaMipmappedArray_t mipmap;
  CHECK(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(8, 8, 0), 3));
  for (unsigned level = 0; level < 3; ++level) {
    cudaArray_t part;
    CHECK(cudaGetMipmappedArrayLevel(&part, mipmap, level));
    const std::vector<float> values(64, static_cast<float>(10 * level));
    const std::size_t size = 8u >> level;
    CHECK(cudaMemcpy2DToArray(part, 0, 0, values.data(), size * sizeof(float), size * sizeof(float), size,
                              cudaMemcpyHostToDevice));
  }
  cudaResourceDesc levels{};
  levels.resType = cudaResourceTypeMipmappedArray;
  levels.res.mipmap.mipmap = mipmap;
  const cudaTextureObject_t pyramid = texture_of(levels, true, cudaFilterModeLinear);
  read_level<<<1, 8>>>(pyramid, 1.5f, out);
  expect(fetch(out, 8), std::vector<float>(8, 15), "levels");
  CHECK(cudaDestroyTextureObject(pyramid));

  // Plain memory.
  float* memory;
  CHECK(cudaMalloc(&memory, picture.size() * sizeof(float)));
  CHECK(cudaMemcpy(memory, picture.data(), picture.size() * sizeof(float), cudaMemcpyHostToDevice));
  cudaResourceDesc linear{};
  linear.resType = cudaResourceTypeLinear;
  linear.res.linear.devPtr = memory;
  linear.res.linear.desc = format;
  linear.res.linear.sizeInBytes = picture.size() * sizeof(float);
  const cudaTextureObject_t plain = texture_of(linear, false);
  read_memory<<<(width * height + 255) / 256, 256>>>(plain, out, width * height);
  std::vector<float> twice(picture);
  for (float& value : twice) value *= 2;
  expect(fetch(out, picture.size()), twice, "plain memory");
  CHECK(cudaDestroyTextureObject(plain));

  for (const cudaArray_t one : {array, turned, space}) CHECK(cudaFreeArray(one));
  CHECK(cudaFreeMipmappedArray(mipmap));
  CHECK(cudaFree(memory));
  CHECK(cudaFree(out));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaDeviceSynchronize());
  return 0;
}
