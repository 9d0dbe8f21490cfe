// Texture and surface objects.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void read_1d(cudaTextureObject_t texture, const float* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex1D<float4>(texture, at[i]);
}

extern "C" __global__ void read_2d(cudaTextureObject_t texture, const float2* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex2D<float4>(texture, at[i].x, at[i].y);
}

extern "C" __global__ void read_3d(cudaTextureObject_t texture, const float4* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex3D<float4>(texture, at[i].x, at[i].y, at[i].z);
}

extern "C" __global__ void read_layers(cudaTextureObject_t texture, const float4* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex2DLayered<float4>(texture, at[i].x, at[i].y, static_cast<int>(at[i].z));
}

extern "C" __global__ void read_cube(cudaTextureObject_t texture, const float4* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = texCubemap<float4>(texture, at[i].x, at[i].y, at[i].z);
}

extern "C" __global__ void read_levels(cudaTextureObject_t texture, const float4* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex2DLod<float4>(texture, at[i].x, at[i].y, at[i].z);
}

extern "C" __global__ void gather(cudaTextureObject_t texture, const float2* at, float4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex2Dgather<float4>(texture, at[i].x, at[i].y, 1);
}

extern "C" __global__ void fetch(cudaTextureObject_t texture, int4* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex1Dfetch<int4>(texture, i);
}

extern "C" __global__ void rotate(cudaTextureObject_t texture, float* out, int width, int height, float angle) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float u = (x + 0.5f) / width - 0.5f, v = (y + 0.5f) / height - 0.5f;
  out[y * width + x] =
      tex2D<float>(texture, u * cosf(angle) - v * sinf(angle) + 0.5f, v * cosf(angle) + u * sinf(angle) + 0.5f);
}

// Takes some time, so that what follows in its stream waits.
extern "C" __global__ void linger() {
  for (int i = 0; i < 5000; ++i) __nanosleep(1000);
}

// Doubles every element of a surface and mirrors the rows.
extern "C" __global__ void change_surface(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  ushort4 value;
  surf2Dread(&value, from, x * 8, y);
  value = make_ushort4(value.x * 2, value.y * 2, value.z * 2, value.w * 2);
  surf2Dwrite(value, to, (width - 1 - x) * 8, y);
}

extern "C" __global__ void surface_edges(cudaSurfaceObject_t surface, int* out) {
  int x = static_cast<int>(threadIdx.x) - 4;
  out[threadIdx.x] = surf2Dread<int>(surface, x * 4, 0, cudaBoundaryModeZero);
  out[32 + threadIdx.x] = surf2Dread<int>(surface, x * 4, 1, cudaBoundaryModeClamp);
  surf2Dwrite(1000 + x, surface, x * 4, 2, cudaBoundaryModeZero);
}

extern "C" __global__ void fill_volume(cudaSurfaceObject_t surface, int width, int height) {
  int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
  if (x < width && y < height) surf3Dwrite(x + 10 * y + 100 * z, surface, x * 4, y, z);
}

#else

namespace {

struct Texel {
  float c[4];
};

bool is_same_texel(const Texel& a, const Texel& b, float tolerance) {
  for (int k = 0; k < 4; ++k)
    if (!(std::fabs(a.c[k] - b.c[k]) <= tolerance)) return false;
  return true;
}

/// Element formats of the texture tests.
struct ElementFormat {
  CUarray_format format;
  unsigned channels;
  unsigned channel_bytes;
  bool is_signed, is_float;
};
constexpr ElementFormat formats[] = {
    {CU_AD_FORMAT_FLOAT, 1, 4, true, true},
    {CU_AD_FORMAT_FLOAT, 4, 4, true, true},
    {CU_AD_FORMAT_UNSIGNED_INT8, 4, 1, false, false},
    {CU_AD_FORMAT_SIGNED_INT8, 2, 1, true, false},
    {CU_AD_FORMAT_UNSIGNED_INT16, 1, 2, false, false},
    {CU_AD_FORMAT_SIGNED_INT16, 4, 2, true, false},
};

/// An image in linear memory of the host whose elements read as numbers from -1 to 1.
class Image {
 public:
  Image(const ElementFormat& format, int width, int height, int depth)
      : format(format), width(width), height(height), depth(depth) {
    size_t values = static_cast<size_t>(width) * height * depth * format.channels;
    bytes.resize(values * format.channel_bytes);
    if (format.is_float) {
      std::vector<float> floats = random_values<float>(values, -1, 1);
      std::memcpy(bytes.data(), floats.data(), bytes.size());
    } else {
      bytes = random_values<unsigned char>(bytes.size(), 0, 255);
    }
  }

  size_t row_bytes() const { return static_cast<size_t>(width) * format.channels * format.channel_bytes; }
  Texel at(int x, int y, int z) const {
    Texel texel = {};
    for (unsigned k = 0; k < format.channels; ++k) {
      size_t index = ((static_cast<size_t>(z) * height + y) * width + x) * format.channels + k;
      const unsigned char* p = &bytes[index * format.channel_bytes];
      texel.c[k] = decode(p);
    }
    return texel;
  }

  const ElementFormat& format;
  int width, height, depth;
  std::vector<unsigned char> bytes;

 private:
  float decode(const unsigned char* p) const {
    if (format.is_float) {
      float value;
      std::memcpy(&value, p, 4);
      return value;
    }
    if (format.channel_bytes == 1)
      return format.is_signed ? std::max(static_cast<float>(static_cast<signed char>(*p)) / 127, -1.0f)
                              : static_cast<float>(*p) / 255;
    uint16_t word;
    std::memcpy(&word, p, 2);
    return format.is_signed ? std::max(static_cast<float>(static_cast<int16_t>(word)) / 32767, -1.0f)
                            : static_cast<float>(word) / 65535;
  }
};

class Array {
 public:
  Array(const Image& image, unsigned dimensions, unsigned flags = 0) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
    descriptor.Width = static_cast<size_t>(image.width);
    descriptor.Height = dimensions >= 2 ? static_cast<size_t>(image.height) : 0;
    descriptor.Depth = dimensions == 3 ? static_cast<size_t>(image.depth) : 0;
    descriptor.Format = image.format.format;
    descriptor.NumChannels = image.format.channels;
    descriptor.Flags = flags;
    OK(cuArray3DCreate(&array_, &descriptor));
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = image.bytes.data();
    copy.srcPitch = image.row_bytes();
    copy.srcHeight = static_cast<size_t>(image.height);
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array_;
    copy.WidthInBytes = image.row_bytes();
    copy.Height = static_cast<size_t>(image.height);
    copy.Depth = static_cast<size_t>(image.depth);
    OK(cuMemcpy3D(&copy));
  }
  ~Array() { cuArrayDestroy(array_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  CUarray get() const { return array_; }
  CUDA_RESOURCE_DESC resource() const {
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array_;
    return resource;
  }

 private:
  CUarray array_ = nullptr;
};

class Texture {
 public:
  Texture(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& description) {
    OK(cuTexObjectCreate(&object_, &resource, &description, nullptr));
  }
  ~Texture() { cuTexObjectDestroy(object_); }
  Texture(const Texture&) = delete;
  Texture& operator=(const Texture&) = delete;
  CUtexObject get() const { return object_; }

 private:
  CUtexObject object_ = 0;
};

CUDA_TEXTURE_DESC description_of(CUaddress_mode address, CUfilter_mode filter, bool normalized,
                                 unsigned dimensions = 3) {
  CUDA_TEXTURE_DESC description = {};
  for (unsigned d = 0; d < dimensions; ++d) description.addressMode[d] = address;
  description.filterMode = filter;
  if (normalized) description.flags |= CU_TRSF_NORMALIZED_COORDINATES;
  return description;
}

/// Where an index outside of the image leads; -1 is the border.
int addressed(int i, int size, CUaddress_mode mode) {
  switch (mode) {
    case CU_TR_ADDRESS_MODE_WRAP: return ((i % size) + size) % size;
    case CU_TR_ADDRESS_MODE_MIRROR: {
      int k = ((i % (2 * size)) + 2 * size) % (2 * size);
      return k < size ? k : 2 * size - 1 - k;
    }
    case CU_TR_ADDRESS_MODE_CLAMP: return std::min(std::max(i, 0), size - 1);
    default: return i >= 0 && i < size ? i : -1;
  }
}

/// CUDA C++ Programming Guide, "Texture Fetching": nearest element, or linear interpolation with
/// weights of eight fractional bits.
Texel sample(const Image& image, const float* at, unsigned dimensions, CUaddress_mode mode, CUfilter_mode filter,
             bool normalized) {
  int size[3] = {image.width, image.height, image.depth}, low[3] = {0, 0, 0};
  float weight[3] = {0, 0, 0};
  for (unsigned d = 0; d < dimensions; ++d) {
    float x = normalized ? at[d] * static_cast<float>(size[d]) : at[d];
    if (filter == CU_TR_FILTER_MODE_LINEAR) x -= 0.5f;
    low[d] = static_cast<int>(std::floor(x));
    if (filter == CU_TR_FILTER_MODE_LINEAR) weight[d] = std::nearbyint((x - std::floor(x)) * 256) / 256;
  }
  Texel result = {{0, 0, 0, 0}};
  for (int corner = 0; corner < 8; ++corner) {
    float part = 1;
    int index[3];
    bool is_inside = true;
    for (int d = 0; d < 3; ++d) {
      int high = corner >> d & 1;
      part *= high ? weight[d] : 1 - weight[d];
      index[d] = addressed(low[d] + high, size[d], mode);
      is_inside &= index[d] >= 0;
    }
    if (part == 0 || !is_inside) continue;
    Texel texel = image.at(index[0], index[1], index[2]);
    for (int k = 0; k < 4; ++k) result.c[k] += part * texel.c[k];
  }
  return result;
}

constexpr CUaddress_mode all_modes[] = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_BORDER, CU_TR_ADDRESS_MODE_WRAP,
                                        CU_TR_ADDRESS_MODE_MIRROR};

/// Reads an image through every mode and filter at random places and compares.
void check_sampling(const char* kernel, unsigned dimensions, int coordinates) {
  Kernels kernels;
  constexpr int count = 500;
  for (const ElementFormat& format : formats) {
    Image image(format, 13, dimensions >= 2 ? 9 : 1, dimensions == 3 ? 5 : 1);
    Array array(image, dimensions);
    for (CUaddress_mode mode : all_modes) {
      for (CUfilter_mode filter : {CU_TR_FILTER_MODE_POINT, CU_TR_FILTER_MODE_LINEAR}) {
        for (bool normalized : {false, true}) {
          bool repeats = mode == CU_TR_ADDRESS_MODE_WRAP || mode == CU_TR_ADDRESS_MODE_MIRROR;
          if (repeats && !normalized) continue;
          // In dimensions that the image does not have the mode is left alone: an H200 mixes a border there with the
          // elements.
          Texture texture(array.resource(), description_of(mode, filter, normalized, dimensions));
          std::vector<float> at = random_values<float>(static_cast<size_t>(count * coordinates),
                                                       normalized ? -1.5f : -6.0f, normalized ? 2.5f : 18.0f);
          Buffer<float> places(at);
          Buffer<Texel> out(count);
          kernels.run(kernel, {blocks_for(count)}, {block_size}, texture.get(), places.address(), out.address(), count);
          std::vector<Texel> got = out.get();
          for (int i = 0; i < count; ++i) {
            const float* place = &at[static_cast<size_t>(i * coordinates)];
            Texel wanted = sample(image, place, dimensions, mode, filter, normalized);
            // The fractions of places round in ways that are not documented.
            float tolerance = filter == CU_TR_FILTER_MODE_LINEAR ? 0.03f : 1e-6f;
            for (unsigned k = format.channels; k < 4; ++k) wanted.c[k] = got[i].c[k];
            if (is_same_texel(got[i], wanted, tolerance)) continue;
            report("%s, format %#x x%u, mode %d, filter %d%s, at %g %g: %g %g %g %g, not %g %g %g %g", kernel,
                   format.format, format.channels, mode, filter, normalized ? ", normalized" : "", place[0],
                   coordinates > 1 ? place[1] : 0.0f, got[i].c[0], got[i].c[1], got[i].c[2], got[i].c[3], wanted.c[0],
                   wanted.c[1], wanted.c[2], wanted.c[3]);
            throw kernels::Failed();
          }
        }
      }
    }
  }
}

}  // namespace

CASE(sampling_1d) { check_sampling("read_1d", 1, 1); }
CASE(sampling_2d) { check_sampling("read_2d", 2, 2); }
CASE(sampling_3d) { check_sampling("read_3d", 3, 4); }

CASE(layers) {
  constexpr int count = 200, layers = 5;
  Image image(formats[1], 8, 6, layers);
  Array array(image, 3, CUDA_ARRAY3D_LAYERED);
  Texture texture(array.resource(), description_of(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, false));
  std::vector<Texel> at(count), wanted(count);
  for (Texel& place : at) {
    for (float& c : place.c) c = random_values<float>(1, 0, 5.99f)[0];
    place.c[2] = std::floor(place.c[2]);  // one too many: the last layer is read
  }
  Kernels kernels;
  Buffer<Texel> places(at), out(count);
  kernels.run("read_layers", {blocks_for(count)}, {block_size}, texture.get(), places.address(), out.address(), count);
  std::vector<Texel> got = out.get();
  for (int i = 0; i < count; ++i) {
    int layer = std::min(static_cast<int>(at[i].c[2]), layers - 1);
    HOLDS(is_same_texel(got[i], image.at(static_cast<int>(at[i].c[0]), static_cast<int>(at[i].c[1]), layer), 0));
  }
}

// Programs let go of a texture right behind the launch that reads it, as with memory from a pool.
CASE(destroyed_behind_its_launch) {
  constexpr int count = 64;
  Image image(formats[1], 8, 6, 1);
  Array array(image, 2);
  std::vector<float> at = random_values<float>(count * 2, 0, 5.9f);
  Kernels kernels;
  Buffer<float> places(at);
  Buffer<Texel> out(count);
  {
    Texture texture(array.resource(), description_of(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, false));
    OK(kernels.try_launch("linger", {}, {1}, 0, nullptr));
    OK(kernels.try_launch("read_2d", {}, {count}, 0, nullptr, texture.get(), places.address(), out.address(), count));
  }
  std::vector<Texel> got = out.get();
  for (int i = 0; i < count; ++i)
    HOLDS(is_same_texel(got[i], image.at(static_cast<int>(at[2 * i]), static_cast<int>(at[2 * i + 1]), 0), 0));
}

CASE(cube) {
  Image image(formats[1], 4, 4, 6);
  Array array(image, 3, CUDA_ARRAY3D_CUBEMAP);
  Texture texture(array.resource(), description_of(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, true));
  // Along each axis, a little beside the middle: the face and the place on it follow from the
  // table in the CUDA C++ Programming Guide, "Cubemap Textures".
  std::vector<Texel> at = {{{1, 0.3f, 0.6f, 0}},  {{-1, 0.3f, 0.6f, 0}}, {{0.3f, 1, 0.6f, 0}},
                           {{0.3f, -1, 0.6f, 0}}, {{0.3f, 0.6f, 1, 0}},  {{0.3f, 0.6f, -1, 0}}};
  float s[] = {-0.6f, 0.6f, 0.3f, 0.3f, 0.3f, -0.3f}, t[] = {-0.3f, -0.3f, 0.6f, -0.6f, -0.6f, -0.6f};
  Kernels kernels;
  Buffer<Texel> places(at), out(6);
  kernels.run("read_cube", {}, {32}, texture.get(), places.address(), out.address(), 6);
  std::vector<Texel> got = out.get();
  for (int face = 0; face < 6; ++face)
    HOLDS(is_same_texel(got[face],
                        image.at(static_cast<int>((s[face] + 1) * 2), static_cast<int>((t[face] + 1) * 2), face), 0));
}

CASE(levels) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  descriptor.Width = descriptor.Height = 16;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 1;
  CUmipmappedArray mipmaps;
  OK(cuMipmappedArrayCreate(&mipmaps, &descriptor, 5));
  for (unsigned level = 0; level < 5; ++level) {
    CUarray array;
    OK(cuMipmappedArrayGetLevel(&array, mipmaps, level));
    size_t size = 16u >> level;
    std::vector<float> values(size * size, static_cast<float>(level));
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = values.data();
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = size * 4;
    copy.Height = size;
    OK(cuMemcpy2D(&copy));
  }
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  resource.res.mipmap.hMipmappedArray = mipmaps;
  CUDA_TEXTURE_DESC description = description_of(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, true);
  description.mipmapFilterMode = CU_TR_FILTER_MODE_LINEAR;
  description.maxMipmapLevelClamp = 10;
  std::vector<Texel> at = {{{0.5f, 0.5f, 0, 0}},     {{0.5f, 0.5f, 1, 0}}, {{0.2f, 0.9f, 2.5f, 0}},
                           {{0.5f, 0.5f, 3.25f, 0}}, {{0.1f, 0.1f, 9, 0}}, {{0.1f, 0.1f, -3, 0}}};
  float wanted[] = {0, 1, 2.5f, 3.25f, 4, 0};
  Kernels kernels;
  Buffer<Texel> places(at), out(at.size());
  {
    Texture texture(resource, description);
    kernels.run("read_levels", {}, {32}, texture.get(), places.address(), out.address(), static_cast<int>(at.size()));
  }
  std::vector<Texel> got = out.get();
  for (size_t i = 0; i < at.size(); ++i) HOLDS(std::fabs(got[i].c[0] - wanted[i]) < 0.01f);
  OK(cuMipmappedArrayDestroy(mipmaps));
}

CASE(gather) {
  constexpr int count = 100;
  Image image(formats[1], 8, 8, 1);
  Array array(image, 2, CUDA_ARRAY3D_TEXTURE_GATHER);
  Texture texture(array.resource(), description_of(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, false));
  std::vector<float> at;
  for (int i = 0; i < 2 * count; ++i)  // away from the borders between elements
    at.push_back(static_cast<float>(random_values<int>(1, 0, 31)[0]) / 4 + 0.1f);
  Kernels kernels;
  Buffer<float> places(at);
  Buffer<Texel> out(count);
  kernels.run("gather", {}, {block_size}, texture.get(), places.address(), out.address(), count);
  std::vector<Texel> got = out.get();
  for (int i = 0; i < count; ++i) {
    int x = static_cast<int>(std::floor(at[2 * i] - 0.5f));
    int y = static_cast<int>(std::floor(at[2 * i + 1] - 0.5f));
    auto green = [&](int dx, int dy) {
      return image.at(addressed(x + dx, 8, CU_TR_ADDRESS_MODE_CLAMP), addressed(y + dy, 8, CU_TR_ADDRESS_MODE_CLAMP), 0)
          .c[1];
    };
    HOLDS(is_same_texel(got[i], {{green(0, 1), green(1, 1), green(1, 0), green(0, 0)}}, 0));
  }
}

CASE(linear_memory) {
  constexpr int count = 1000;
  std::vector<int> values = random_values<int>(4 * count, -1000000, 1000000);
  Kernels kernels;
  Buffer<int> memory(values), out(4 * count);
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = memory.address();
  resource.res.linear.format = CU_AD_FORMAT_SIGNED_INT32;
  resource.res.linear.numChannels = 4;
  resource.res.linear.sizeInBytes = memory.bytes();
  CUDA_TEXTURE_DESC description = {};
  description.flags = CU_TRSF_READ_AS_INTEGER;
  Texture texture(resource, description);
  kernels.run("fetch", {blocks_for(count)}, {block_size}, texture.get(), out.address(), count);
  expect_same(out.get(), values);
}

CASE(pitched_memory) {
  constexpr int width = 40, height = 30;
  std::vector<float> values = random_values<float>(width * height, 0, 1);
  CUdeviceptr memory;
  size_t pitch;
  OK(cuMemAllocPitch(&memory, &pitch, width * 4, height, 4));
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = values.data();
  copy.srcPitch = width * 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = pitch;
  copy.WidthInBytes = width * 4;
  copy.Height = height;
  OK(cuMemcpy2D(&copy));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D.devPtr = memory;
  resource.res.pitch2D.format = CU_AD_FORMAT_FLOAT;
  resource.res.pitch2D.numChannels = 1;
  resource.res.pitch2D.width = width;
  resource.res.pitch2D.height = height;
  resource.res.pitch2D.pitchInBytes = pitch;
  Kernels kernels;
  Buffer<float> out(width * height);
  {
    Texture texture(resource, description_of(CU_TR_ADDRESS_MODE_WRAP, CU_TR_FILTER_MODE_POINT, true));
    // Half a turn, so that every element lands on the middle of another one.
    kernels.run("rotate", {(width + 7) / 8, (height + 7) / 8}, {8, 8}, texture.get(), out.address(), width, height,
                static_cast<float>(M_PI));
  }
  expect_same(out.get(), std::vector<float>(values.rbegin(), values.rend()));
  OK(cuMemFree(memory));
}

CASE(surfaces) {
  constexpr int width = 20, height = 10;
  Image image(formats[5], width, height, 1);
  Array from(image, 2, CUDA_ARRAY3D_SURFACE_LDST), to(image, 2, CUDA_ARRAY3D_SURFACE_LDST);
  CUDA_RESOURCE_DESC from_resource = from.resource(), to_resource = to.resource();
  CUsurfObject from_surface, to_surface;
  OK(cuSurfObjectCreate(&from_surface, &from_resource));
  OK(cuSurfObjectCreate(&to_surface, &to_resource));
  Kernels kernels;
  kernels.run("change_surface", {3, 2}, {8, 8}, from_surface, to_surface, width, height);
  OK(cuSurfObjectDestroy(from_surface));
  OK(cuSurfObjectDestroy(to_surface));
  std::vector<uint16_t> got(width * height * 4), in(got.size()), wanted(got.size());
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = to.get();
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = got.data();
  copy.WidthInBytes = width * 8;
  copy.Height = height;
  OK(cuMemcpy2D(&copy));
  std::memcpy(in.data(), image.bytes.data(), image.bytes.size());
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int k = 0; k < 4; ++k)
        wanted[(y * width + width - 1 - x) * 4 + k] = static_cast<uint16_t>(2 * in[(y * width + x) * 4 + k]);
  expect_same(got, wanted);
}

CASE(surface_edges) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  descriptor.Width = 16;
  descriptor.Height = 4;
  descriptor.Format = CU_AD_FORMAT_SIGNED_INT32;
  descriptor.NumChannels = 1;
  descriptor.Flags = CUDA_ARRAY3D_SURFACE_LDST;
  CUarray array;
  OK(cuArray3DCreate(&array, &descriptor));
  std::vector<int> values(64);
  for (int i = 0; i < 64; ++i) values[i] = i + 1;
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = values.data();
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 64;
  copy.Height = 4;
  OK(cuMemcpy2D(&copy));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUsurfObject surface;
  OK(cuSurfObjectCreate(&surface, &resource));
  Kernels kernels;
  Buffer<int> out(64);
  kernels.run("surface_edges", {}, {32}, surface, out.address());
  std::vector<int> wanted(64), row(16), wanted_row(16);
  for (int i = 0; i < 32; ++i) {
    int x = i - 4;
    wanted[i] = x >= 0 && x < 16 ? x + 1 : 0;
    wanted[32 + i] = std::min(std::max(x, 0), 15) + 17;
    if (x >= 0 && x < 16) wanted_row[x] = 1000 + x;
  }
  expect_same(out.get(), wanted);
  copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.srcY = 2;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = row.data();
  copy.WidthInBytes = 64;
  copy.Height = 1;
  OK(cuMemcpy2D(&copy));
  expect_same(row, wanted_row);
  OK(cuSurfObjectDestroy(surface));
  OK(cuArrayDestroy(array));
}

// Objects of two contexts may have equal values.
CASE(textures_of_two_contexts) {
  CUcontext contexts[2];
  CUdeviceptr memories[2];
  CUtexObject textures[2];
  OK(cuCtxGetCurrent(&contexts[0]));
#if CUDA_VERSION >= 13000
  OK(cuCtxCreate(&contexts[1], nullptr, 0, 0));
#else
  OK(cuCtxCreate(&contexts[1], 0, 0));
#endif
  for (int i = 0; i < 2; ++i) {
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuMemAlloc(&memories[i], 4096));
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear.devPtr = memories[i];
    resource.res.linear.format = CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = 4096;
    CUDA_TEXTURE_DESC description = {};
    OK(cuTexObjectCreate(&textures[i], &resource, &description, nullptr));
  }
  CUDA_RESOURCE_DESC found;
  for (int i : {1, 0}) {
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuTexObjectGetResourceDesc(&found, textures[i]));
    HOLDS(found.res.linear.devPtr == memories[i]);
    OK(cuTexObjectDestroy(textures[i]));
    OK(cuMemFree(memories[i]));
  }
  OK(cuCtxDestroy(contexts[1]));
  OK(cuCtxSetCurrent(contexts[0]));
}

CASE(volume) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  descriptor.Width = 7;
  descriptor.Height = 5;
  descriptor.Depth = 3;
  descriptor.Format = CU_AD_FORMAT_SIGNED_INT32;
  descriptor.NumChannels = 1;
  descriptor.Flags = CUDA_ARRAY3D_SURFACE_LDST;
  CUarray array;
  OK(cuArray3DCreate(&array, &descriptor));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUsurfObject surface;
  OK(cuSurfObjectCreate(&surface, &resource));
  Kernels kernels;
  kernels.run("fill_volume", {3}, {8, 8}, surface, 7, 5);
  // A part of it, to a place within a larger volume of the host.
  std::vector<int> got(4 * 4 * 4, -1), wanted(4 * 4 * 4, -1);
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.srcXInBytes = 2 * 4;
  copy.srcY = 1;
  copy.srcZ = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = got.data();
  copy.dstPitch = 16;
  copy.dstHeight = 4;
  copy.dstXInBytes = 4;
  copy.dstY = 1;
  copy.dstZ = 2;
  copy.WidthInBytes = 12;
  copy.Height = 3;
  copy.Depth = 2;
  OK(cuMemcpy3D(&copy));
  for (int z = 0; z < 2; ++z)
    for (int y = 0; y < 3; ++y)
      for (int x = 0; x < 3; ++x) wanted[(z + 2) * 16 + (y + 1) * 4 + x + 1] = x + 2 + 10 * (y + 1) + 100 * (z + 1);
  expect_same(got, wanted);
  OK(cuSurfObjectDestroy(surface));
  OK(cuArrayDestroy(array));
}

#endif
