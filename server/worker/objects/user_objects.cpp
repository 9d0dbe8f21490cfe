#include "user_objects.h"

#include <algorithm>
#include <limits>

namespace fargpu::server {
namespace {

bool possible(unsigned count) { return count > 0 && count <= unsigned{std::numeric_limits<int>::max()}; }

CUuserObject cuda_of(Handles& handles, Handle object) {
  return reinterpret_cast<CUuserObject>(handles.find(HandleKind::userobject, object)->value);
}
CUgraph graph_of(Handles& handles, Handle graph) {
  return reinterpret_cast<CUgraph>(handles.find(HandleKind::graph, graph)->value);
}

}  // namespace

void UserObjects::add(std::uint64_t part, Handle object, unsigned references) {
  objects_[object.value()].program = references;
  by_part_[part] = object;
}

Handle UserObjects::ended(std::uint64_t part) {
  const auto found = by_part_.find(part);
  if (found == by_part_.end()) return Handle();
  const Handle object = found->second;
  by_part_.erase(found);
  objects_.erase(object.value());
  return object;
}

UserObjects::Object* UserObjects::find(Handle object) {
  const auto found = objects_.find(object.value());
  return found == objects_.end() ? nullptr : &found->second;
}

// Whether an owner that is certainly there has it. Executable graphs and graphs within others may have it too, but end
// unseen.
bool UserObjects::lives(const Object& object) {
  return object.program > 0 || std::any_of(object.graphs.begin(), object.graphs.end(), [&](const auto& owned) {
           const Handle graph(owned.first);
           return handles_.find(HandleKind::graph, graph) && handles_.root_of(graph) == graph;
         });
}

void UserObjects::sweep(Object& object) {
  if (object.graphs.size() < object.graphs_max) return;
  std::erase_if(object.graphs,
                [&](const auto& owned) { return !handles_.find(HandleKind::graph, Handle(owned.first)); });
  object.graphs_max = std::max<std::size_t>(64, 2 * object.graphs.size());
}

CUresult UserObjects::retain(Handle handle, unsigned count) {
  Object* const object = find(handle);
  if (!object || !possible(count) || !lives(*object)) return CUDA_ERROR_INVALID_VALUE;
  if (object->program == 0) {
    if (const CUresult bad = driver_.cuUserObjectRetain(cuda_of(handles_, handle), 1); bad != CUDA_SUCCESS) return bad;
  }
  object->program += count;
  return CUDA_SUCCESS;
}

CUresult UserObjects::release(Handle handle, unsigned count) {
  Object* const object = find(handle);
  if (!object || !possible(count) || count > object->program) return CUDA_ERROR_INVALID_VALUE;
  if (object->program == count) {
    if (const CUresult bad = driver_.cuUserObjectRelease(cuda_of(handles_, handle), 1); bad != CUDA_SUCCESS) return bad;
  }
  object->program -= count;
  return CUDA_SUCCESS;
}

CUresult UserObjects::graph_retain(Handle graph, Handle handle, unsigned count, unsigned flags) {
  Object* const object = find(handle);
  if (!object || !possible(count) || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE})) return CUDA_ERROR_INVALID_VALUE;
  const bool moved = flags & CU_GRAPH_USER_OBJECT_MOVE;
  if (moved ? count > object->program : !lives(*object)) return CUDA_ERROR_INVALID_VALUE;
  const bool first = !object->graphs.contains(graph.value()), last = moved && count == object->program;
  const CUuserObject cuda = cuda_of(handles_, handle);
  CUresult result = CUDA_SUCCESS;
  if (first)
    result = driver_.cuGraphRetainUserObject(graph_of(handles_, graph), cuda, 1, last ? CU_GRAPH_USER_OBJECT_MOVE : 0);
  else if (last) result = driver_.cuUserObjectRelease(cuda, 1);
  if (result != CUDA_SUCCESS) return result;
  sweep(*object);
  object->graphs[graph.value()] += count;
  if (moved) object->program -= count;
  return result;
}

CUresult UserObjects::graph_release(Handle graph, Handle handle, unsigned count) {
  Object* const object = find(handle);
  if (!object || !possible(count)) return CUDA_ERROR_INVALID_VALUE;
  const auto owned = object->graphs.find(graph.value());
  if (owned == object->graphs.end() || count > owned->second) return CUDA_ERROR_INVALID_VALUE;
  if (count < owned->second) {
    owned->second -= count;
    return CUDA_SUCCESS;
  }
  const CUresult result = driver_.cuGraphReleaseUserObject(graph_of(handles_, graph), cuda_of(handles_, handle), 1);
  if (result == CUDA_SUCCESS) object->graphs.erase(owned);
  return result;
}

void UserObjects::copied(Handle from, Handle to) {
  for (auto& [handle, object] : objects_) {
    const auto owned = object.graphs.find(from.value());
    if (owned == object.graphs.end()) continue;
    const std::uint64_t count = owned->second;
    sweep(object);
    object.graphs[to.value()] = count;
  }
}

}  // namespace fargpu::server
