// Thrust.

#include <thrust/adjacent_difference.h>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/functional.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/remove.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>
#include <thrust/tuple.h>
#include <thrust/unique.h>

#include <algorithm>

#include "harness.h"

namespace {

template <class T>
thrust::device_vector<T> on_device(size_t count, unsigned seed = 1) {
  const auto values = whole<T>(count, seed);
  return thrust::device_vector<T>(values.begin(), values.end());
}

template <class T>
std::vector<T> on_host(const thrust::device_vector<T>& vector) {
  std::vector<T> values(vector.size());
  thrust::copy(vector.begin(), vector.end(), values.begin());
  return values;
}

struct Square {
  __host__ __device__ int operator()(int x) const { return x * x; }
};
struct IsPositive {
  __host__ __device__ bool operator()(int x) const { return x > 0; }
};
struct Point {
  int x, y;
  __host__ __device__ bool operator<(const Point& other) const { return x != other.x ? x < other.x : y < other.y; }
};

constexpr size_t count = 50000;

}  // namespace

CASE(sorted) {
  auto x = on_device<int>(count);
  thrust::sort(x.begin(), x.end());
  auto expected = whole<int>(count);
  std::sort(expected.begin(), expected.end());
  HOLDS(on_host(x) == expected);
  auto y = on_device<float>(count);
  thrust::sort(y.begin(), y.end(), thrust::greater<float>());
  show("downwards", on_host(y));
}

CASE(sorted_by_key) {
  auto keys = on_device<int>(count);
  thrust::device_vector<int> places(count);
  thrust::sequence(places.begin(), places.end());
  thrust::stable_sort_by_key(keys.begin(), keys.end(), places.begin());
  show("places", on_host(places));
}

CASE(sorted_structs) {
  std::vector<Point> points;
  const auto x = whole<int>(5000), y = whole<int>(5000, 2);
  for (int i = 0; i < 5000; ++i) points.push_back({x[i], y[i] * 100 + i % 100});
  thrust::device_vector<Point> vector(points.begin(), points.end());
  thrust::sort(vector.begin(), vector.end());
  show("points", on_host(vector));
}

CASE(reduced) {
  const auto x = on_device<int>(count);
  std::printf("%d %d\n", thrust::reduce(x.begin(), x.end()),
              thrust::reduce(x.begin(), x.end(), -100, thrust::maximum<int>()));
  std::printf("%d\n", thrust::transform_reduce(x.begin(), x.end(), Square(), 0, thrust::plus<int>()));
  const auto y = on_device<int>(count, 2);
  std::printf("%d\n", thrust::inner_product(x.begin(), x.end(), y.begin(), 0));
  std::printf("%ld\n", static_cast<long>(thrust::count_if(x.begin(), x.end(), IsPositive())));
}

CASE(reduced_by_key) {
  auto keys = on_device<int>(count), values = on_device<int>(count, 2);
  thrust::sort(keys.begin(), keys.end());
  thrust::device_vector<int> unique(20), sums(20);
  const auto end = thrust::reduce_by_key(keys.begin(), keys.end(), values.begin(), unique.begin(), sums.begin());
  std::printf("%ld keys\n", static_cast<long>(end.first - unique.begin()));
  show("sums", on_host(sums));
}

CASE(scanned) {
  auto x = on_device<int>(count);
  thrust::device_vector<int> sums(count);
  thrust::inclusive_scan(x.begin(), x.end(), sums.begin());
  show("inclusive", on_host(sums));
  thrust::exclusive_scan(x.begin(), x.end(), sums.begin(), 10);
  show("exclusive", on_host(sums));
  thrust::inclusive_scan(x.begin(), x.end(), sums.begin(), thrust::maximum<int>());
  show("maxima", on_host(sums));
}

CASE(transformed) {
  auto x = on_device<int>(count), y = on_device<int>(count, 2);
  thrust::transform(x.begin(), x.end(), y.begin(), y.begin(), thrust::multiplies<int>());
  show("products", on_host(y));
  thrust::adjacent_difference(x.begin(), x.end(), y.begin());
  show("differences", on_host(y));
}

CASE(selected) {
  auto x = on_device<int>(count);
  thrust::device_vector<int> positive(count);
  const auto end = thrust::copy_if(x.begin(), x.end(), positive.begin(), IsPositive());
  positive.resize(end - positive.begin());
  show("positive", on_host(positive));
  x.erase(thrust::remove_if(x.begin(), x.end(), IsPositive()), x.end());
  show("others", on_host(x));
}

CASE(unique) {
  auto x = on_device<int>(count);
  x.erase(thrust::unique(x.begin(), x.end()), x.end());
  show("neighbours", on_host(x));
}

CASE(partitioned) {
  auto x = on_device<int>(count);
  const auto middle = thrust::stable_partition(x.begin(), x.end(), IsPositive());
  std::printf("%ld\n", static_cast<long>(middle - x.begin()));
  show("x", on_host(x));
}

CASE(sets) {
  thrust::device_vector<int> x(1000), y(1000), out(2000);
  thrust::sequence(x.begin(), x.end(), 0, 2);
  thrust::sequence(y.begin(), y.end(), 0, 3);
  auto end = thrust::set_intersection(x.begin(), x.end(), y.begin(), y.end(), out.begin());
  show("both", std::vector<int>(out.begin(), end));
  end = thrust::set_difference(x.begin(), x.end(), y.begin(), y.end(), out.begin());
  show("one", std::vector<int>(out.begin(), end));
  thrust::merge(x.begin(), x.end(), y.begin(), y.end(), out.begin());
  show("merged", on_host(out));
}

CASE(searched) {
  thrust::device_vector<int> x(1000), found(500);
  thrust::sequence(x.begin(), x.end(), 0, 5);
  const auto wanted = on_device<int>(500);
  thrust::lower_bound(x.begin(), x.end(), wanted.begin(), wanted.end(), found.begin());
  show("found", on_host(found));
  const auto y = on_device<int>(count);
  std::printf("%ld %ld\n", static_cast<long>(thrust::max_element(y.begin(), y.end()) - y.begin()),
              static_cast<long>(thrust::min_element(y.begin(), y.end()) - y.begin()));
}

CASE(moved) {
  auto x = on_device<int>(1000);
  thrust::device_vector<int> map(1000), out(1000);
  thrust::transform(thrust::counting_iterator<int>(0), thrust::counting_iterator<int>(1000), map.begin(),
                    [] __host__ __device__(int i) { return i * 37 % 1000; });
  thrust::gather(map.begin(), map.end(), x.begin(), out.begin());
  show("gathered", on_host(out));
  thrust::scatter(x.begin(), x.end(), map.begin(), out.begin());
  show("scattered", on_host(out));
}

CASE(zipped) {
  auto x = on_device<int>(count), y = on_device<int>(count, 2);
  thrust::device_vector<int> out(count);
  const auto first = thrust::make_zip_iterator(thrust::make_tuple(x.begin(), y.begin()));
  thrust::transform(first, first + count, out.begin(), [] __host__ __device__(const thrust::tuple<int, int>& pair) {
    return thrust::get<0>(pair) * 10 + thrust::get<1>(pair);
  });
  show("out", on_host(out));
}

CASE(on_streams) {
  cudaStream_t streams[3];
  std::vector<thrust::device_vector<int>> x;
  for (unsigned i = 0; i < 3; ++i) {
    OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    x.push_back(on_device<int>(count, i + 1));
  }
  for (int i = 0; i < 3; ++i) thrust::sort(thrust::cuda::par.on(streams[i]), x[i].begin(), x[i].end());
  for (int i = 0; i < 3; ++i) {
    OK(cudaStreamSynchronize(streams[i]));
    show("x", on_host(x[i]));
  }
}

CASE(elements) {
  // Each access to an element is a copy of its own.
  thrust::device_vector<int> x(100);
  for (int i = 0; i < 100; ++i) x[i] = i * i;
  int sum = 0;
  for (int i = 0; i < 100; ++i) sum += x[i];
  std::printf("%d\n", sum);
}
