// Kernel launches and what is asked about them.

#include <algorithm>
#include <array>
#include <chrono>

#include "protocol/launch_shape.h"
#include "server/worker/code/arguments.h"
#include "server/worker/code/launch_attributes.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

// Shape and attributes of a launch; the attributes must outlive it.
template <class Request>
CUlaunchConfig read_config(Request in, std::vector<CUlaunchAttribute>& attributes) {
  CUlaunchConfig config{};
  read_shape(in, config);
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  return config;
}

void tell_cluster(DriverTable& driver, CUfunction function, wire::LaunchReply::Builder out) {
  const auto size = [&](CUfunction_attribute attribute) {
    int value = 0;
    return driver.cuFuncGetAttribute(&value, attribute, function) == CUDA_SUCCESS ? static_cast<unsigned>(value) : 0u;
  };
  out.setClusterX(size(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH));
  out.setClusterY(size(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT));
  out.setClusterZ(size(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH));
}

// What comes of it is told later, as of all launches that nobody waits for.
CUresult give_to_crew(Session& session, Call& call, wire::Launch::Reader in, StreamState& stream) {
  Launch& launch = session.ordering().next_launch(stream);
  if (const CUresult bad = launch.arguments.read(session.code().layouts, in.getFunction(), in.getParameters(),
                                                 launch.function, stream.context, /*copy=*/true);
      bad != CUDA_SUCCESS)
    return bad;
  launch.id = call.id();
  launch.context = stream.context->cuda;
  launch.grid = {in.getGridX(), in.getGridY(), in.getGridZ()};
  launch.block = {in.getBlockX(), in.getBlockY(), in.getBlockZ()};
  launch.shared_bytes = in.getSharedBytes();
  launch.stream = stream.cuda;
  session.ordering().give_launch(stream);
  return CUDA_SUCCESS;
}

// The answers for clusters of other shapes, unasked. About shapes that the driver refuses here the client asks when its
// program does.
void tell_other_clusters(DriverTable& driver, CUfunction function, CUlaunchConfig& config,
                         std::vector<CUlaunchAttribute>& attributes, wire::ClusterOccupancyReply::Builder out) {
  constexpr auto time_max = std::chrono::milliseconds(2);  // in which nothing else is done for the session
  constexpr unsigned row_max = 32;                         // cuDNN tries rows of all lengths up to this one
  static const std::vector<std::array<unsigned, 2>> shapes = [] {
    std::vector<std::array<unsigned, 2>> all{{2, 2}, {4, 2}, {2, 4}, {8, 2}, {4, 4}, {2, 8}};
    for (unsigned n = 1; n <= row_max; ++n) {
      all.push_back({n, 1});
      if (n > 1) all.push_back({1, n});
    }
    return all;
  }();
  const auto asked = std::find_if(attributes.begin(), attributes.end(), [](const CUlaunchAttribute& a) {
    return a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  });
  if (asked == attributes.end()) return;
  auto& cluster = asked->value.clusterDim;
  const auto first = cluster;
  const bool whole_grid = config.gridDimX == first.x && config.gridDimY == first.y && config.gridDimZ == first.z;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::array<int, 3>> found;
  for (const auto& [x, y] : shapes) {
    if (x == first.x && y == first.y && first.z == 1) continue;
    if (std::chrono::steady_clock::now() - begin > time_max) break;
    cluster.x = x;
    cluster.y = y;
    cluster.z = 1;
    if (whole_grid) {
      config.gridDimX = x;
      config.gridDimY = y;
      config.gridDimZ = 1;
    }
    int value = 0;
    if (driver.cuOccupancyMaxActiveClusters(&value, function, &config) == CUDA_SUCCESS)
      found.push_back({static_cast<int>(x), static_cast<int>(y), value});
  }
  auto others = out.initOthers(static_cast<unsigned>(found.size()));
  for (unsigned i = 0; i < found.size(); ++i) {
    others[i].setX(static_cast<unsigned>(found[i][0]));
    others[i].setY(static_cast<unsigned>(found[i][1]));
    others[i].setZ(1);
    others[i].setValue(found[i][2]);
  }
}

}  // namespace

Outcome launch(Session& session, Call& call, wire::Launch::Reader in) {
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (in.getForm() == wire::Launch::Form::PLAIN && !call.id().wants_reply &&
      session.ordering().crew_helps(*stream, session.unread_bytes()))
    return give_to_crew(session, call, in, *stream);
  session.ordering().wait_for_launches(*stream);
  CUfunction function{};
  Arguments arguments;
  const CUresult bad =
      arguments.read(session.code().layouts, in.getFunction(), in.getParameters(), function, stream->context);
  if (bad != CUDA_SUCCESS) return bad;
  DriverTable& driver = session.driver();
  CUresult result;
  switch (in.getForm()) {
    case wire::Launch::Form::PLAIN:
      result =
          driver.cuLaunchKernel(function, in.getGridX(), in.getGridY(), in.getGridZ(), in.getBlockX(), in.getBlockY(),
                                in.getBlockZ(), in.getSharedBytes(), stream->cuda, arguments.pointers(), nullptr);
      break;
    case wire::Launch::Form::COOPERATIVE:
      result = driver.cuLaunchCooperativeKernel(function, in.getGridX(), in.getGridY(), in.getGridZ(), in.getBlockX(),
                                                in.getBlockY(), in.getBlockZ(), in.getSharedBytes(), stream->cuda,
                                                arguments.pointers());
      break;
    default: {
      std::vector<CUlaunchAttribute> attributes;
      if (const CUresult bad = read_attributes(session.objects(), in.getAttributes(), attributes); bad != CUDA_SUCCESS)
        return bad;
      CUlaunchConfig config = read_config(in, attributes);
      config.hStream = stream->cuda;
      result = driver.cuLaunchKernelEx(&config, function, arguments.pointers(), nullptr);
    }
  }
  if (result == CUDA_SUCCESS) {
    session.ordering().submitted(*stream);
    if (call.id().wants_reply) tell_cluster(driver, function, call.out<wire::LaunchReply>());
  }
  return result;
}

Outcome launchTogether(Session& session, Call& call, wire::LaunchTogether::Reader in) {
  const auto list = in.getLaunches();
  if (list.size() == 0 || list.size() > limits::devices_max) return CUDA_ERROR_INVALID_VALUE;
  std::vector<StreamState*> streams;
  for (const auto launch : list) {
    // A default stream is some context's, which is not told here.
    StreamState* const stream = launch.getStream() == legacy_stream
                                    ? nullptr
                                    : session.contexts().stream(launch.getStream(), call.id().context);
    if (!stream || std::find(streams.begin(), streams.end(), stream) != streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    streams.push_back(stream);
  }
  if (const auto waits = session.ordering().behind_streams(call, streams)) return *waits;
  std::vector<Arguments> arguments(list.size());
  std::vector<CUDA_LAUNCH_PARAMS> launches(list.size());
  for (unsigned i = 0; i < list.size(); ++i) {
    CUDA_LAUNCH_PARAMS& to = launches[i];
    if (const CUresult bad = arguments[i].read(session.code().layouts, list[i].getFunction(), list[i].getParameters(),
                                               to.function, streams[i]->context);
        bad != CUDA_SUCCESS)
      return bad;
    read_shape(list[i], to);
    to.hStream = streams[i]->cuda;
    to.kernelParams = arguments[i].pointers();
  }
  const CUresult result = session.driver().cuLaunchCooperativeKernelMultiDevice(
      launches.data(), static_cast<unsigned>(launches.size()), in.getFlags());
  if (result == CUDA_SUCCESS)
    for (StreamState* const stream : streams)
      if (session.contexts().make_current(*stream->context)) session.ordering().submitted(*stream);
  return result;
}

Outcome clusterOccupancy(Session& session, Call& call, wire::ClusterOccupancy::Reader in) {
  CUfunction function{};
  if (!session.objects().resolve(HandleKind::function, in.getFunction(), function)) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<CUlaunchAttribute> attributes;
  if (const CUresult bad = read_attributes(session.objects(), in.getAttributes(), attributes); bad != CUDA_SUCCESS)
    return bad;
  CUlaunchConfig config = read_config(in, attributes);
  int value = 0;
  const CUresult result = in.getPotential()
                              ? session.driver().cuOccupancyMaxPotentialClusterSize(&value, function, &config)
                              : session.driver().cuOccupancyMaxActiveClusters(&value, function, &config);
  if (result != CUDA_SUCCESS) return result;
  auto out = call.out<wire::ClusterOccupancyReply>();
  out.setValue(value);
  if (!in.getPotential()) tell_other_clusters(session.driver(), function, config, attributes, out);
  return result;
}

}  // namespace fargpu::server::hand
