// A fluid by the lattice Boltzmann method (D2Q9) in whole numbers: populations in 3D arrays, obstacles in a texture.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.h"

namespace {

// Populations are fixed-point numbers, and what rounding loses stays at rest. So mass is conserved exactly, and the CPU
// computes the same numbers.
constexpr int directions = 9, unit = 1 << 16, phases = 4, steps_per_phase = 3, block_x = 32, block_y = 4;

struct Lattice {
  int width, height;
  __host__ __device__ size_t cells() const { return size_t(width) * height; }
};

struct Cell {
  int population[directions];
};

__constant__ int2 device_velocity[directions];
constexpr int2 velocity[directions] = {{0, 0}, {1, 0}, {0, 1}, {-1, 0}, {0, -1}, {1, 1}, {-1, 1}, {-1, -1}, {1, -1}};
__device__ unsigned long long total_mass;

/// Relaxes a cell halfway to its equilibrium. A solid cell sends everything back to where it came from.
__host__ __device__ void collide(Cell& cell, bool solid, const int2* v) {
  if (solid) {
    for (int i : {1, 2, 5, 6}) {
      const int there = i + 2, kept = cell.population[i];
      cell.population[i] = cell.population[there];
      cell.population[there] = kept;
    }
    return;
  }
  int64_t mass = 0, x = 0, y = 0;
  for (int i = 0; i < directions; ++i) {
    mass += cell.population[i];
    x += v[i].x * cell.population[i];
    y += v[i].y * cell.population[i];
  }
  const int64_t speed = mass == 0 ? 0 : (x * x + y * y) / mass;
  int64_t moved = 0;
  for (int i = 1; i < directions; ++i) {
    const int64_t along = v[i].x * x + v[i].y * y, square = mass == 0 ? 0 : along * along / mass;
    const int64_t equilibrium = (2 * mass + 6 * along + 9 * square - 3 * speed) / (i < 5 ? 18 : 72);
    const int64_t change = (equilibrium - cell.population[i]) / 2;
    cell.population[i] += int(change);
    moved += change;
  }
  cell.population[0] -= int(moved);
}

__global__ void advance(cudaSurfaceObject_t from, cudaSurfaceObject_t to, cudaTextureObject_t obstacles, int phase,
                        Lattice lattice) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= lattice.width || y >= lattice.height) return;
  Cell cell;
  for (int i = 0; i < directions; ++i) {
    const int source_x = (x - device_velocity[i].x + lattice.width) % lattice.width;
    const int source_y = (y - device_velocity[i].y + lattice.height) % lattice.height;
    surf3Dread(&cell.population[i], from, source_x * int(sizeof(int)), source_y, i, cudaBoundaryModeTrap);
  }
  const bool solid = tex2DLayered<unsigned char>(obstacles, x + 0.5f, y + 0.5f, phase) != 0;
  collide(cell, solid, device_velocity);
  for (int i = 0; i < directions; ++i) surf3Dwrite(cell.population[i], to, x * int(sizeof(int)), y, i);
}

/// Mass and momentum of each cell go to a 2D array, and the mass of all to a symbol.
__global__ void measure(cudaTextureObject_t populations, cudaSurfaceObject_t image, Lattice lattice) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  int mass = 0, momentum_x = 0, momentum_y = 0;
  if (x < lattice.width && y < lattice.height) {
    for (int i = 0; i < directions; ++i) {
      const int population = tex3D<int>(populations, x + 0.5f, y + 0.5f, i + 0.5f);
      mass += population;
      momentum_x += device_velocity[i].x * population;
      momentum_y += device_velocity[i].y * population;
    }
    const int packed = int(unsigned(momentum_x / 4) << 16 | (unsigned(momentum_y / 4) & 0xFFFF));
    surf2Dwrite(make_int2(mass, packed), image, x * int(sizeof(int2)), y);
  }
  unsigned long long sum = mass;
  for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
  if ((threadIdx.y * blockDim.x + threadIdx.x) % 32 == 0) atomicAdd(&total_mass, sum);
}

bool is_obstacle(Lattice lattice, int x, int y, int phase) {
  const int center_x = lattice.width / 4 + 10 * phase, center_y = lattice.height / 2, radius = lattice.height / 10;
  return y == 0 || (x - center_x) * (x - center_x) + (y - center_y) * (y - center_y) < radius * radius;
}

cudaArray_t new_array(const cudaChannelFormatDesc& format, size_t width, size_t height, size_t depth,
                      unsigned int flags) {
  cudaArray_t array = nullptr;
  CUDA(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, height, depth), flags));
  cudaChannelFormatDesc found{};
  cudaExtent extent{};
  unsigned int found_flags = 0;
  CUDA(cudaArrayGetInfo(&found, &extent, &found_flags, array));
  HOLDS(found.x == format.x && found.y == format.y && found.f == format.f && found_flags == flags);
  HOLDS(extent.width == width && extent.height == height && extent.depth == depth);
  return array;
}

cudaResourceDesc resource_of(cudaArray_t array) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  return resource;
}

cudaSurfaceObject_t surface_of(cudaArray_t array) {
  const cudaResourceDesc resource = resource_of(array);
  cudaSurfaceObject_t surface = 0;
  CUDA(cudaCreateSurfaceObject(&surface, &resource));
  return surface;
}

cudaTextureObject_t texture_of(cudaArray_t array) {
  const cudaResourceDesc resource = resource_of(array);
  cudaTextureDesc description{};
  for (cudaTextureAddressMode& mode : description.addressMode) mode = cudaAddressModeClamp;
  description.filterMode = cudaFilterModePoint;
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  CUDA(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  cudaResourceDesc found{};
  CUDA(cudaGetTextureObjectResourceDesc(&found, texture));
  HOLDS(found.resType == cudaResourceTypeArray && found.res.array.array == array);
  return texture;
}

cudaPitchedPtr pitched(void* memory, Lattice lattice, size_t element) {
  return make_cudaPitchedPtr(memory, lattice.width * element, lattice.width, lattice.height);
}

/// The channel flows to the right, and denser cells are strewn over it.
std::vector<int> first_populations(Lattice lattice) {
  std::vector<int> populations(lattice.cells() * directions);
  uint32_t state = 12345;
  for (size_t i = 0; i < lattice.cells(); ++i) {
    state = state * 1664525u + 1013904223u;
    const int mass = unit + int(state >> 20);
    for (int d = 0; d < directions; ++d) {
      const int share = d == 0 ? 16 : d < 5 ? 4 : 1;
      populations[d * lattice.cells() + i] = mass / 36 * share + velocity[d].x * mass / 400 * share / 4;
    }
  }
  return populations;
}

void advance_on_host(Lattice lattice, std::vector<int>& populations, const std::vector<unsigned char>& obstacles) {
  std::vector<int> next(populations.size());
  for (int y = 0; y < lattice.height; ++y)
    for (int x = 0; x < lattice.width; ++x) {
      Cell cell;
      const size_t here = size_t(y) * lattice.width + x;
      for (int i = 0; i < directions; ++i) {
        const int source_x = (x - velocity[i].x + lattice.width) % lattice.width;
        const int source_y = (y - velocity[i].y + lattice.height) % lattice.height;
        cell.population[i] = populations[i * lattice.cells() + size_t(source_y) * lattice.width + source_x];
      }
      collide(cell, obstacles[here] != 0, velocity);
      for (int i = 0; i < directions; ++i) next[i * lattice.cells() + here] = cell.population[i];
    }
  populations.swap(next);
}

}  // namespace

int main(int count, char** words) {
  const int scale = program::scale(count, words);
  const Lattice lattice{160 * std::max(1, scale / 64), 128 * std::min(scale, 64)};
  const size_t width = lattice.width, height = lattice.height, cells = lattice.cells();
  cudaDeviceProp device{};
  CUDA(cudaGetDeviceProperties(&device, 0));
  HOLDS(device.maxTexture3D[0] >= 2048 && device.maxTexture2DLayered[2] >= phases);
  cudaStream_t stream, reading;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamCreateWithFlags(&reading, cudaStreamNonBlocking));
  cudaEvent_t moved, saved;
  for (cudaEvent_t* event : {&moved, &saved}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  CUDA(cudaMemcpyToSymbol(device_velocity, velocity, sizeof velocity));

  cudaArray_t fluid[2], snapshot, image, masks;
  for (cudaArray_t& array : fluid)
    array = new_array(cudaCreateChannelDesc<int>(), width, height, directions, cudaArraySurfaceLoadStore);
  snapshot = new_array(cudaCreateChannelDesc<int>(), width, height, directions, cudaArrayDefault);
  image = new_array(cudaCreateChannelDesc<int2>(), width, height, 0, cudaArraySurfaceLoadStore);
  masks = new_array(cudaCreateChannelDesc<unsigned char>(), width, height, phases, cudaArrayLayered);
  const cudaSurfaceObject_t surfaces[] = {surface_of(fluid[0]), surface_of(fluid[1])}, picture = surface_of(image);
  const cudaTextureObject_t obstacles = texture_of(masks), populations = texture_of(snapshot);

  // Host and device hold the fluid direction by direction, as the array does.
  std::vector<int> expected = first_populations(lattice);
  cudaMemcpy3DParms copy{};
  copy.srcPtr = pitched(expected.data(), lattice, sizeof(int));
  copy.dstArray = fluid[0];
  copy.extent = make_cudaExtent(width, height, directions);
  copy.kind = cudaMemcpyHostToDevice;
  CUDA(cudaMemcpy3D(&copy));
  uint64_t mass = 0;
  for (int population : expected) mass += population;

  int* saved_fluid = nullptr;
  int2* saved_image = nullptr;
  CUDA(cudaMallocHost(&saved_fluid, cells * directions * sizeof(int)));
  CUDA(cudaHostAlloc(&saved_image, cells * sizeof(int2), cudaHostAllocPortable));
  cudaPitchedPtr device_copy{};
  CUDA(cudaMalloc3D(&device_copy, make_cudaExtent(width * sizeof(int), height, directions)));
  HOLDS(device_copy.pitch >= width * sizeof(int) && device_copy.ysize == height);
  const dim3 threads(block_x, block_y), blocks((width + block_x - 1) / block_x, (height + block_y - 1) / block_y);

  int now = 0;
  uint64_t fast_cells = 0;
  for (int phase = 0; phase < phases; ++phase) {
    // Each phase has its layer of obstacles, which arrives just before it is needed.
    std::vector<unsigned char> mask(cells);
    for (size_t i = 0; i < cells; ++i) mask[i] = is_obstacle(lattice, int(i % width), int(i / width), phase);
    cudaMemcpy3DParms layer{};
    layer.srcPtr = pitched(mask.data(), lattice, 1);
    layer.dstArray = masks;
    layer.dstPos = make_cudaPos(0, 0, phase);
    layer.extent = make_cudaExtent(width, height, 1);
    layer.kind = cudaMemcpyDefault;
    CUDA(cudaMemcpy3DAsync(&layer, stream));
    for (int step = 0; step < steps_per_phase; ++step, now ^= 1) {
      advance<<<blocks, threads, 0, stream>>>(surfaces[now], surfaces[now ^ 1], obstacles, phase, lattice);
      CUDA(cudaGetLastError());
      advance_on_host(lattice, expected, mask);
    }

    // A snapshot, from array to array, so that the next steps need not wait for what is read.
    if (phase > 0) CUDA(cudaStreamWaitEvent(stream, saved));
    cudaMemcpy3DParms keep{};
    keep.srcArray = fluid[now];
    keep.dstArray = snapshot;
    keep.extent = make_cudaExtent(width, height, directions);
    keep.kind = cudaMemcpyDeviceToDevice;
    CUDA(cudaMemcpy3DAsync(&keep, stream));
    CUDA(cudaEventRecord(moved, stream));
    CUDA(cudaStreamWaitEvent(reading, moved));
    const unsigned long long zero = 0;
    unsigned long long measured = 0;
    CUDA(cudaMemcpyToSymbolAsync(total_mass, &zero, sizeof zero, 0, cudaMemcpyHostToDevice, reading));
    measure<<<blocks, threads, 0, reading>>>(populations, picture, lattice);
    CUDA(cudaGetLastError());
    cudaMemcpy3DParms fetch{};
    fetch.srcArray = snapshot;
    fetch.dstPtr = device_copy;
    fetch.extent = keep.extent;
    fetch.kind = cudaMemcpyDeviceToDevice;
    CUDA(cudaMemcpy3DAsync(&fetch, reading));
    CUDA(cudaEventRecord(saved, reading));
    cudaMemcpy3DParms home{};
    home.srcPtr = device_copy;
    home.dstPtr = pitched(saved_fluid, lattice, sizeof(int));
    home.extent = make_cudaExtent(width * sizeof(int), height, directions);
    home.kind = cudaMemcpyDeviceToHost;
    CUDA(cudaMemcpy3DAsync(&home, reading));
    CUDA(cudaMemcpy2DFromArrayAsync(saved_image, width * sizeof(int2), image, 0, 0, width * sizeof(int2), height,
                                    cudaMemcpyDeviceToHost, reading));
    CUDA(cudaMemcpyFromSymbolAsync(&measured, total_mass, sizeof measured, 0, cudaMemcpyDeviceToHost, reading));
    CUDA(cudaStreamSynchronize(reading));
    HOLDS(measured == mass);
    HOLDS(std::equal(expected.begin(), expected.end(), saved_fluid));
    fast_cells = 0;
    for (size_t i = 0; i < cells; ++i) {
      int sum = 0, x = 0, y = 0;
      for (int d = 0; d < directions; ++d) {
        const int population = expected[d * cells + i];
        sum += population;
        x += velocity[d].x * population;
        y += velocity[d].y * population;
      }
      HOLDS(saved_image[i].x == sum);
      HOLDS(saved_image[i].y == int(unsigned(x / 4) << 16 | (unsigned(y / 4) & 0xFFFF)));
      fast_cells += x > 0;
    }
  }

  // A window of the last direction comes straight from the array.
  std::vector<int> window(8 * 4);
  cudaMemcpy3DParms part{};
  part.srcArray = fluid[now];
  part.srcPos = make_cudaPos(16, 8, directions - 1);
  part.dstPtr = make_cudaPitchedPtr(window.data(), 8 * sizeof(int), 8, 4);
  part.extent = make_cudaExtent(8, 4, 1);
  part.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaMemcpy3D(&part));
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 8; ++x)
      HOLDS(window[y * 8 + x] == expected[(directions - 1) * cells + size_t(8 + y) * width + 16 + x]);
  part.srcPos.z = directions;
  HOLDS(cudaMemcpy3D(&part) == cudaErrorInvalidValue);  // beyond the array
  HOLDS(cudaGetLastError() == cudaErrorInvalidValue);

  for (cudaSurfaceObject_t surface : {surfaces[0], surfaces[1], picture}) CUDA(cudaDestroySurfaceObject(surface));
  for (cudaTextureObject_t texture : {obstacles, populations}) CUDA(cudaDestroyTextureObject(texture));
  for (cudaArray_t array : {fluid[0], fluid[1], snapshot, image, masks}) CUDA(cudaFreeArray(array));
  CUDA(cudaFree(device_copy.ptr));
  CUDA(cudaFreeHost(saved_fluid));
  CUDA(cudaFreeHost(saved_image));
  for (cudaEvent_t event : {moved, saved}) CUDA(cudaEventDestroy(event));
  for (cudaStream_t each : {stream, reading}) CUDA(cudaStreamDestroy(each));
  char line[140];
  std::snprintf(line, sizeof line, "%zu cells keep their mass of %llu units; %llu flow to the right", cells,
                static_cast<unsigned long long>(mass), static_cast<unsigned long long>(fast_cells));
  return program::passed(line);
}
