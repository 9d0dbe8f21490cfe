// How fast the software GPU executes kernels: million thread-instructions per second and core.
//
//   softgpu [--rounds N] [--json FILE] [--check]
//
// A thread-instruction is one PTX instruction executed by one thread. Their number is known: each
// kernel is a loop over a text whose instructions are counted, see `Workload`. Time is the CPU time
// of the whole process, so that the figure is one core's, whatever else the machine does.

#include <cuda.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr unsigned block_threads = 256;
constexpr unsigned grid_blocks = 64;
constexpr unsigned thread_count = block_threads * grid_blocks;
constexpr uint64_t stream_bytes = uint64_t{64} << 20;  // of each array, much more than caches hold

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "softgpu: %s\n", what.c_str());
  std::exit(2);
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "an unknown error";
  cuGetErrorName(result, &name);
  fail(std::string(call) + " gives " + name);
}
#define OK(call) check((call), #call)

/// A kernel: `setup`, then `iterations` times `body`. Where lanes part, one half of them executes
/// `even` and the other half `odd`.
struct Workload {
  const char* name;
  double goal;  // million thread-instructions per second and core; 0: for information
  uint32_t iterations;
  std::string setup, body, even, odd;
  double bytes_per_iteration = 0;  // of a thread, to and from memory

  std::string ptx() const;
  double instructions_of_a_thread() const;
};

const std::string loop_end = "add.u32 %i, %i, 1; setp.lt.u32 %more, %i, %n; @%more bra LOOP;";
const std::string part = "@%is_odd bra ODD;";
const std::string skip_odd = "bra MEET;";

std::string repeat(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string Workload::ptx() const {
  std::string ways = even.empty() ? "" : part + even + skip_odd + "ODD: " + odd + "MEET: ";
  return R"(.version 7.8
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 memory, .param .u32 iterations) {
  .reg .pred %more, %is_odd;
  .reg .b32 %i, %n, %t, %a<4>, %k<2>;
  .reg .f32 %f<4>, %x, %y;
  .reg .b64 %from, %other, %sum, %to, %offset;
)" + setup +
         "LOOP: " + body + ways + loop_end + "st.global.u32 [%to], %a0; ret; }\n";
}

double Workload::instructions_of_a_thread() const {
  auto count = [](const std::string& text) { return static_cast<double>(std::count(text.begin(), text.end(), ';')); };
  double each = count(body) + count(loop_end);
  if (!even.empty()) each += count(part) + (count(even) + count(skip_odd) + count(odd)) / 2;
  return count(setup) + each * iterations + 2;  // the store and the return
}

std::vector<Workload> workloads() {
  // %t: the thread's number in the grid; %to: a word of its own.
  const std::string common =
      "ld.param.u64 %from, [memory]; ld.param.u32 %n, [iterations]; mov.u32 %i, %ctaid.x;"
      "mov.u32 %k0, %ntid.x; mov.u32 %k1, %tid.x; mad.lo.u32 %t, %i, %k0, %k1;"
      "mul.wide.u32 %offset, %t, 4; add.u64 %to, %from, %offset; mov.u32 %i, 0;"
      "mov.u32 %a0, %t; mov.u32 %a1, 1; mov.u32 %a2, 2; mov.u32 %a3, 3;"
      "mov.f32 %f0, 0f3f800000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;"
      "mov.f32 %x, 0f3f7fff00; mov.f32 %y, 0f3a83126f;";
  const std::string integer_chains =
      "mad.lo.s32 %a0, %a0, %k0, %k1; mad.lo.s32 %a1, %a1, %k0, %k1;"
      "mad.lo.s32 %a2, %a2, %k0, %k1; mad.lo.s32 %a3, %a3, %k0, %k1;";
  const std::string float_chains =
      "fma.rn.f32 %f0, %f0, %x, %y; fma.rn.f32 %f1, %f1, %x, %y;"
      "fma.rn.f32 %f2, %f2, %x, %y; fma.rn.f32 %f3, %f3, %x, %y;";
  constexpr uint64_t words = stream_bytes / 4;

  std::vector<Workload> all;
  all.push_back({.name = "arithmetic: mad.lo.s32 and fma.rn.f32",
                 .goal = 150,
                 .iterations = 2000,
                 .setup = common,
                 .body = repeat(4, integer_chains + float_chains)});
  all.push_back({.name = "integer alone: mad.lo.s32",
                 .goal = 0,
                 .iterations = 2000,
                 .setup = common,
                 .body = repeat(8, integer_chains)});
  all.push_back({.name = "fp32 alone: fma.rn.f32",
                 .goal = 0,
                 .iterations = 2000,
                 .setup = common,
                 .body = repeat(8, float_chains)});
  all.push_back({.name = "memory stream: two loads, one add, one store",
                 .goal = 0,
                 .iterations = static_cast<uint32_t>(words / thread_count),
                 .setup = common + "mov.u64 %from, %to; add.u64 %other, %from, " + std::to_string(stream_bytes) +
                          "; add.u64 %sum, %other, " + std::to_string(stream_bytes) + ";",
                 .body = "ld.global.f32 %f0, [%from]; ld.global.f32 %f1, [%other]; add.f32 %f2, %f0, %f1;"
                         "st.global.f32 [%sum], %f2;" +
                         repeat(1, "add.u64 %from, %from, " + std::to_string(thread_count * 4) +
                                       "; add.u64 %other, %other, " + std::to_string(thread_count * 4) +
                                       "; add.u64 %sum, %sum, " + std::to_string(thread_count * 4) + ";"),
                 .bytes_per_iteration = 12});
  all.push_back({.name = "divergent: even and odd lanes part and meet",
                 .goal = 0,
                 .iterations = 1000,
                 .setup = common + "and.b32 %t, %t, 1; setp.ne.u32 %is_odd, %t, 0;",
                 .even = repeat(2, integer_chains),
                 .odd = repeat(2, float_chains)});
  return all;
}

struct Measured {
  double cpu_seconds = 0, seconds = 0;
};

struct Figure {
  Workload workload;
  double rate = 0;   // million thread-instructions per CPU second: median of the rounds
  double least = 0;  // the slowest round's
  double whole = 0;  // per second of time, with all threads of the software GPU: median
};

double cpu_seconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Measured run_once(CUfunction kernel, CUdeviceptr memory, uint32_t iterations) {
  void* arguments[] = {&memory, &iterations};
  auto began = std::chrono::steady_clock::now();
  double cpu_began = cpu_seconds();
  OK(cuLaunchKernel(kernel, grid_blocks, 1, 1, block_threads, 1, 1, 0, nullptr, arguments, nullptr));
  OK(cuCtxSynchronize());
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  return {cpu_seconds() - cpu_began, took.count()};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Figure measure(const Workload& workload, CUdeviceptr memory, int rounds) {
  CUmodule module;
  CUfunction kernel;
  std::string ptx = workload.ptx();
  OK(cuModuleLoadData(&module, ptx.c_str()));
  OK(cuModuleGetFunction(&kernel, module, "kernel"));
  run_once(kernel, memory, workload.iterations);  // memory is backed when it is first written
  double executed = workload.instructions_of_a_thread() * thread_count / 1e6;
  std::vector<double> rates, wholes;
  for (int i = 0; i < rounds; ++i) {
    Measured measured = run_once(kernel, memory, workload.iterations);
    rates.push_back(executed / measured.cpu_seconds);
    wholes.push_back(executed / measured.seconds);
  }
  OK(cuModuleUnload(module));
  return {workload, median(rates), *std::min_element(rates.begin(), rates.end()), median(wholes)};
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

void print_table(const std::vector<Figure>& figures) {
  std::printf("million thread-instructions per second; median of the rounds\n\n");
  std::printf("%-46s %9s %9s %6s %11s\n", "kernel", "a core", "slowest", "goal", "all threads");
  for (const Figure& figure : figures) {
    std::string goal = figure.workload.goal > 0 ? std::to_string(int(figure.workload.goal)) : "-";
    std::printf("%-46s %9.0f %9.0f %6s %11.0f", figure.workload.name, figure.rate, figure.least, goal.c_str(),
                figure.whole);
    if (figure.workload.bytes_per_iteration > 0)
      std::printf("  (%.1f GB/s)", figure.whole / figure.workload.instructions_of_a_thread() *
                                       figure.workload.bytes_per_iteration * figure.workload.iterations / 1e3);
    std::printf("\n");
  }
}

void write_json(const std::string& path, const std::vector<Figure>& figures) {
  std::ofstream out(path);
  out << "{\"benchmark\": \"softgpu\", \"unit\": \"million thread-instructions per second\", "
      << "\"processor\": \"" << processor() << "\", \"figures\": [";
  for (size_t i = 0; i < figures.size(); ++i) {
    const Figure& figure = figures[i];
    out << (i == 0 ? "\n" : ",\n") << "  {\"kernel\": \"" << figure.workload.name << "\", \"per_core\": " << figure.rate
        << ", \"per_core_slowest\": " << figure.least << ", \"all_threads\": " << figure.whole
        << ", \"goal_per_core\": ";
    if (figure.workload.goal > 0) out << figure.workload.goal << "}";
    else out << "null}";
  }
  out << "\n]}\n";
  if (!out.flush()) fail("cannot write " + path);
}

}  // namespace

int main(int count, char** words) {
  int rounds = 5;
  bool is_check = false;
  std::string json;
  for (int i = 1; i < count; ++i) {
    std::string word = words[i];
    if (word == "--check") {
      is_check = true;
    } else if (word == "--json" && i + 1 < count) {
      json = words[++i];
    } else if (word == "--rounds" && i + 1 < count && std::atoi(words[i + 1]) > 0) {
      rounds = std::atoi(words[++i]);
    } else {
      std::fprintf(stderr, "usage: %s [--rounds N] [--json FILE] [--check]\n", words[0]);
      return word == "--help" ? 0 : 2;
    }
  }
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuCtxCreate(&context, nullptr, 0, device));
  OK(cuMemAlloc(&memory, 3 * stream_bytes));

  std::vector<Figure> figures;
  for (const Workload& workload : workloads()) figures.push_back(measure(workload, memory, rounds));
  std::printf("%s, %u cores\n", processor().c_str(), std::thread::hardware_concurrency());
  print_table(figures);
  if (!json.empty()) write_json(json, figures);

  bool is_good = std::all_of(figures.begin(), figures.end(),
                             [](const Figure& figure) { return figure.rate >= figure.workload.goal; });
  OK(cuCtxDestroy(context));
  return is_check && !is_good ? 1 : 0;
}
