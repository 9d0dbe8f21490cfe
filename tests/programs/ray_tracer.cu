// Spheres and a plane below an environment: textures to look up, surfaces to draw on, frames copied while others
// render.

#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace {

constexpr int sphere_count = 6;
constexpr int frames = 4;
constexpr int bounces = 3;
constexpr int env_width = 2048, env_height = 1024;
constexpr int tile_size = 64;
constexpr float pi = 3.14159265358979F;

struct Sphere {
  float3 center;
  float radius;
  float3 color;
  float mirror;
};

__constant__ Sphere device_spheres[sphere_count];

__host__ __device__ float3 operator+(float3 a, float3 b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
__host__ __device__ float3 operator-(float3 a, float3 b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__host__ __device__ float3 operator*(float3 a, float3 b) { return {a.x * b.x, a.y * b.y, a.z * b.z}; }
__host__ __device__ float3 operator*(float3 a, float b) { return {a.x * b, a.y * b, a.z * b}; }
__host__ __device__ float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__host__ __device__ float3 unit(float3 a) { return a * (1 / sqrtf(dot(a, a))); }

/// What rays meet, by the textures of the device.
struct DeviceScene {
  cudaTextureObject_t environment, tiles;
  __device__ const Sphere* spheres() const { return device_spheres; }
  __device__ float3 sky(float u, float v) const {
    const float4 color = tex2D<float4>(environment, u, v);
    return {color.x, color.y, color.z};
  }
  __device__ float tile(float x, float z) const { return tex2D<float>(tiles, x, z); }
};

/// What the kernel sees, by the rules of the CUDA programming guide for wrapped, clamped, filtered and nearest texels.
struct HostScene {
  const uchar4* environment;
  const float* tiles;
  const Sphere* all;
  const Sphere* spheres() const { return all; }
  float3 texel(int x, int y) const {
    x = (x + env_width) % env_width;
    y = std::clamp(y, 0, env_height - 1);
    const uchar4 color = environment[y * env_width + x];
    return float3{float(color.x), float(color.y), float(color.z)} * (1 / 255.0F);
  }
  float3 sky(float u, float v) const {
    const float x = (u - std::floor(u)) * env_width - 0.5F, y = v * env_height - 0.5F;
    const int left = static_cast<int>(std::floor(x)), top = static_cast<int>(std::floor(y));
    const float right = x - left, below = y - top;
    return (texel(left, top) * (1 - right) + texel(left + 1, top) * right) * (1 - below) +
           (texel(left, top + 1) * (1 - right) + texel(left + 1, top + 1) * right) * below;
  }
  float tile(float x, float z) const {
    const int column = static_cast<int>((x - std::floor(x)) * tile_size) % tile_size;
    return tiles[static_cast<int>((z - std::floor(z)) * tile_size) % tile_size * tile_size + column];
  }
};

/// The sphere that a ray meets first, or -1.
__host__ __device__ int nearest(const Sphere* spheres, float3 from, float3 along, float& distance) {
  int found = -1;
  for (int i = 0; i < sphere_count; ++i) {
    const float3 to = spheres[i].center - from;
    const float b = dot(to, along), square = b * b - dot(to, to) + spheres[i].radius * spheres[i].radius;
    if (square <= 0) continue;
    const float at = b - sqrtf(square);
    if (at > 1e-3F && at < distance) {
      distance = at;
      found = i;
    }
  }
  return found;
}

// The scene of the device is used in kernels only, the one of the host outside of them.
#pragma nv_exec_check_disable
template <class Scene>
__host__ __device__ uchar4 color_of(const Scene& scene, int x, int y, int width, int height) {
  float3 from = {0, 1.5F, -5};
  float3 along = unit({(x + 0.5F) / height * 2 - float(width) / height, 1 - (y + 0.5F) / height * 2 - 0.2F, 1.7F});
  float3 weight = {1, 1, 1}, sum = {0, 0, 0};
  for (int bounce = 0; bounce <= bounces; ++bounce) {
    float distance = 1e9F;
    const int hit = nearest(scene.spheres(), from, along, distance);
    const float ground = along.y < 0 ? -from.y / along.y : 1e9F;
    if (hit >= 0 && distance < ground) {
      const Sphere& sphere = scene.spheres()[hit];
      from = from + along * distance;
      const float3 normal = (from - sphere.center) * (1 / sphere.radius);
      const float light = fmaxf(0.1F, dot(normal, unit({1, 2, -1})));
      sum = sum + weight * sphere.color * (light * (1 - sphere.mirror));
      weight = weight * sphere.mirror;
      along = along - normal * (2 * dot(along, normal));
    } else if (ground < 40) {
      from = from + along * ground;
      const float shade = scene.tile(from.x * 0.5F, from.z * 0.5F);
      sum = sum + weight * (shade * 0.8F);
      weight = weight * 0.2F;
      along.y = -along.y;
    } else {
      sum = sum + weight * scene.sky(atan2f(along.z, along.x) / (2 * pi) + 0.5F, acosf(along.y) / pi);
      break;
    }
  }
  const auto level = [](float value) { return static_cast<unsigned char>(fminf(value, 1.0F) * 255 + 0.5F); };
  return {level(sum.x), level(sum.y), level(sum.z), 255};
}

__global__ void render(DeviceScene scene, cudaSurfaceObject_t image, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < width && y < height) surf2Dwrite(color_of(scene, x, y, width, height), image, x * sizeof(uchar4), y);
}

/// Draws a picture of half the size, into memory with a pitch.
__global__ void halve(cudaSurfaceObject_t image, uchar4* half, size_t pitch, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  int red = 0, green = 0, blue = 0;
  for (int i = 0; i < 4; ++i) {
    const uchar4 color = surf2Dread<uchar4>(image, (2 * x + i % 2) * sizeof(uchar4), 2 * y + i / 2);
    red += color.x, green += color.y, blue += color.z;
  }
  auto* row = reinterpret_cast<uchar4*>(reinterpret_cast<char*>(half) + y * pitch);
  row[x] = make_uchar4(red / 4, green / 4, blue / 4, 255);
}

std::vector<Sphere> spheres_at(int frame) {
  std::vector<Sphere> spheres(sphere_count);
  for (int i = 0; i < sphere_count; ++i) {
    const float angle = 2 * pi * (i + 0.2F * frame) / sphere_count, radius = 0.5F + 0.08F * i;
    spheres[i] = {{2 * std::cos(angle), radius, 2 * std::sin(angle)},
                  radius,
                  {0.3F + 0.1F * i, 0.9F - 0.1F * i, 0.5F},
                  i % 2 == 0 ? 0.7F : 0.2F};
  }
  return spheres;
}

unsigned char wave(float angle) { return static_cast<unsigned char>(128 + 100 * std::sin(angle)); }

cudaTextureObject_t environment_texture(cudaArray_t array) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc texture = {};
  texture.addressMode[0] = cudaAddressModeWrap;
  texture.addressMode[1] = cudaAddressModeClamp;
  texture.filterMode = cudaFilterModeLinear;
  texture.readMode = cudaReadModeNormalizedFloat;
  texture.normalizedCoords = 1;
  cudaTextureObject_t object;
  CUDA(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
  cudaResourceDesc resource_back;
  cudaTextureDesc texture_back;
  CUDA(cudaGetTextureObjectResourceDesc(&resource_back, object));
  CUDA(cudaGetTextureObjectTextureDesc(&texture_back, object));
  HOLDS(resource_back.resType == cudaResourceTypeArray && resource_back.res.array.array == array);
  HOLDS(texture_back.filterMode == cudaFilterModeLinear && texture_back.readMode == cudaReadModeNormalizedFloat);
  HOLDS(texture_back.addressMode[0] == cudaAddressModeWrap && texture_back.addressMode[1] == cudaAddressModeClamp);
  HOLDS(texture_back.normalizedCoords == 1);
  return object;
}

/// Over memory with a pitch, read by the nearest texel.
cudaTextureObject_t tile_texture(float* memory, size_t pitch) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D = {memory, cudaCreateChannelDesc<float>(), tile_size, tile_size, pitch};
  cudaTextureDesc texture = {};
  texture.addressMode[0] = texture.addressMode[1] = cudaAddressModeWrap;
  texture.normalizedCoords = 1;
  cudaTextureObject_t object;
  CUDA(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
  return object;
}

/// Two images to draw on, in turns.
struct Canvas {
  cudaArray_t array;
  cudaSurfaceObject_t surface;
  cudaEvent_t rendered, copied;

  Canvas(int width, int height) {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    CUDA(cudaMallocArray(&array, &format, width, height, cudaArraySurfaceLoadStore));
    cudaChannelFormatDesc format_back;
    cudaExtent extent;
    unsigned flags = 0;
    CUDA(cudaArrayGetInfo(&format_back, &extent, &flags, array));
    HOLDS(format_back.x == 8 && format_back.w == 8 && format_back.f == cudaChannelFormatKindUnsigned);
    HOLDS(extent.width == size_t(width) && extent.height == size_t(height) && extent.depth == 0);
    HOLDS(flags == cudaArraySurfaceLoadStore);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    CUDA(cudaCreateSurfaceObject(&surface, &resource));
    CUDA(cudaEventCreateWithFlags(&rendered, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  }

  void free() {
    CUDA(cudaDestroySurfaceObject(surface));
    CUDA(cudaFreeArray(array));
    CUDA(cudaEventDestroy(rendered));
    CUDA(cudaEventDestroy(copied));
  }
};

bool alike(uchar4 a, uchar4 b) {
  return std::abs(a.x - b.x) <= 2 && std::abs(a.y - b.y) <= 2 && std::abs(a.z - b.z) <= 2 && a.w == b.w;
}

bool equal(uchar4 a, uchar4 b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; }

}  // namespace

int main(int count, char** words) {
  const int size = static_cast<int>(std::sqrt(program::scale(count, words)));
  const int width = 320 * size, height = 240 * size;
  const size_t row = width * sizeof(uchar4), pixels = static_cast<size_t>(width) * height;
  cudaStream_t rendering, copying;
  CUDA(cudaStreamCreateWithFlags(&rendering, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&copying, cudaStreamNonBlocking));

  uchar4* environment;
  CUDA(cudaMallocHost(&environment, env_width * env_height * sizeof(uchar4)));
  for (int y = 0; y < env_height; ++y)
    for (int x = 0; x < env_width; ++x)
      environment[y * env_width + x] = {wave(6 * pi * x / env_width),
                                        wave(4 * pi * x / env_width + 2 * pi * y / env_height),
                                        wave(3.0F * y / env_height), 255};
  std::vector<float> tiles(tile_size * tile_size);
  for (int i = 0; i < tile_size * tile_size; ++i)
    tiles[i] = (i / tile_size < tile_size / 2) == (i % tile_size < tile_size / 2) ? 0.9F : 0.1F;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
  cudaArray_t env_array;
  CUDA(cudaMallocArray(&env_array, &format, env_width, env_height));
  const size_t env_row = env_width * sizeof(uchar4);
  CUDA(cudaMemcpy2DToArrayAsync(env_array, 0, 0, environment, env_row, env_row, env_height, cudaMemcpyHostToDevice,
                                rendering));
  float* tile_memory;
  size_t tile_pitch;
  CUDA(cudaMallocPitch(&tile_memory, &tile_pitch, tile_size * sizeof(float), tile_size));
  CUDA(cudaMemcpy2DAsync(tile_memory, tile_pitch, tiles.data(), tile_size * sizeof(float), tile_size * sizeof(float),
                         tile_size, cudaMemcpyHostToDevice, rendering));
  const DeviceScene scene = {environment_texture(env_array), tile_texture(tile_memory, tile_pitch)};

  Canvas canvases[2] = {Canvas(width, height), Canvas(width, height)};
  Sphere* spheres;  // pinned, of each frame, as a copy may still be read when the next is made
  uchar4* images;
  CUDA(cudaMallocHost(&spheres, frames * sphere_count * sizeof(Sphere)));
  CUDA(cudaMallocHost(&images, frames * pixels * sizeof(uchar4)));
  const dim3 block(16, 8), grid((width + 15) / 16, (height + 7) / 8);
  for (int frame = 0; frame < frames; ++frame) {
    Canvas& canvas = canvases[frame % 2];
    Sphere* const mine = spheres + frame * sphere_count;
    const std::vector<Sphere> now = spheres_at(frame);
    std::copy(now.begin(), now.end(), mine);
    CUDA(cudaMemcpyToSymbolAsync(device_spheres, mine, sizeof device_spheres, 0, cudaMemcpyHostToDevice, rendering));
    CUDA(cudaStreamWaitEvent(rendering, canvas.copied, 0));  // nothing waits for an event that was not recorded yet
    render<<<grid, block, 0, rendering>>>(scene, canvas.surface, width, height);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(canvas.rendered, rendering));
    CUDA(cudaStreamWaitEvent(copying, canvas.rendered, 0));
    CUDA(cudaMemcpy2DFromArrayAsync(images + frame * pixels, row, canvas.array, 0, 0, row, height,
                                    cudaMemcpyDeviceToHost, copying));
    CUDA(cudaEventRecord(canvas.copied, copying));
  }
  const uchar4* const last = images + (frames - 1) * pixels;
  Canvas& canvas = canvases[(frames - 1) % 2];
  uchar4* half;
  size_t half_pitch;
  CUDA(cudaMallocPitch(&half, &half_pitch, row / 2, height / 2));
  HOLDS(half_pitch >= row / 2);
  halve<<<grid, block, 0, rendering>>>(canvas.surface, half, half_pitch, width / 2, height / 2);
  CUDA(cudaGetLastError());
  std::vector<uchar4> small(pixels / 4), part(64 * 32);
  CUDA(cudaMemcpy2DAsync(small.data(), row / 2, half, half_pitch, row / 2, height / 2, cudaMemcpyDeviceToHost,
                         rendering));
  CUDA(cudaStreamSynchronize(rendering));
  CUDA(cudaStreamSynchronize(copying));

  // A rectangle of the last image, at once and by way of the other array, and one that is not all within the image.
  CUDA(cudaMemcpy2DArrayToArray(canvases[0].array, 16, 8, canvas.array, 40, 20, 256, 32, cudaMemcpyDeviceToDevice));
  CUDA(cudaMemcpy2DFromArray(part.data(), 256, canvases[0].array, 16, 8, 256, 32, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 64 * 32; ++i) HOLDS(equal(part[i], last[(20 + i / 64) * width + 10 + i % 64]));
  HOLDS(cudaMemcpy2DFromArray(part.data(), 256, canvas.array, row - 128, 0, 256, 32, cudaMemcpyDeviceToHost) ==
        cudaErrorInvalidValue);
  HOLDS(cudaGetLastError() == cudaErrorInvalidValue);
  for (int y = 0; y < height / 2; ++y)
    for (int x = 0; x < width / 2; ++x) {
      const uchar4 *a = last + 2 * y * width + 2 * x, *b = a + width;
      HOLDS(equal(small[y * (width / 2) + x],
                  make_uchar4((a->x + a[1].x + b->x + b[1].x) / 4, (a->y + a[1].y + b->y + b[1].y) / 4,
                              (a->z + a[1].z + b->z + b[1].z) / 4, 255)));
    }

  // The GPU filters with 8 bits of fraction and contracts products, which is far below 2 levels of 255, except at the
  // edges of spheres and tiles, where a ray of one side meets something else than one of the other.
  size_t different = 0;
  for (int frame = 0; frame < frames; ++frame) {
    const std::vector<Sphere> now = spheres_at(frame);
    const HostScene host = {environment, tiles.data(), now.data()};
    for (size_t i = 0; i < pixels; ++i)
      if (!alike(images[frame * pixels + i], color_of(host, int(i % width), int(i / width), width, height)))
        ++different;
  }
  HOLDS(different <= frames * pixels / 500);
  CUDA(cudaDestroyTextureObject(scene.environment));
  CUDA(cudaDestroyTextureObject(scene.tiles));
  for (Canvas& each : canvases) each.free();
  CUDA(cudaFreeArray(env_array));
  for (void* memory : {static_cast<void*>(tile_memory), static_cast<void*>(half)}) CUDA(cudaFree(memory));
  CUDA(cudaFreeHost(environment));
  CUDA(cudaFreeHost(spheres));
  CUDA(cudaFreeHost(images));
  CUDA(cudaStreamDestroy(rendering));
  CUDA(cudaStreamDestroy(copying));
  char line[120];
  std::snprintf(line, sizeof line, "%d frames of %d x %d, at most one pixel in 500 differs", frames, width, height);
  return program::passed(line);
}
