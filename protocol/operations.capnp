@0xb8c62d9e01f7354d;
# Requests and replies of the operations: what a client asks of its worker that is not one driver call field by field.
# Their opcodes stand in codegen/spec/opcodes.toml beside those of the calls, and they travel in the same frames, in the
# same order. The hand-written halves are client/api/<topic>.cpp and server/worker/api/<topic>.cpp.
#
# Handles are values of protocol/handle.h; `stream` is a stream handle or 1 for the context's legacy default stream.
# Addresses are equal on both sides. The context meant is the one of the frame header unless a field says otherwise.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("fargpu::wire");

# --- contexts --------------------------------------------------------------------------------------------------------

struct OpenContext {
  # Creates a context, or retains the primary one, under the id the client chose.
  context @0 :UInt64;
  device @1 :Int32;               # ordinal at the worker
  primary @2 :Bool;
  flags @3 :UInt32;
  resources @4 :UInt64;           # a description: a green context with these, of the device's primary context, which
                                  # must be open
}
struct OpenContextReply {
  number @0 :UInt64;              # cuCtxGetId
  leastPriority @1 :Int32;
  greatestPriority @2 :Int32;
  processorGroup @3 :Data;        # per TPC of the device: the GPC it belongs to (private table 1734dc26, see
                                  # client/tables)
  processorIndex @4 :Data;        # per TPC: its number within that GPC
}

struct CloseContext {
  # Destroys it (resets and releases the primary one) with everything made in it.
  context @0 :UInt64;
}

struct Resource {
  # CUdevResource: a number for what only the driver understands, and what the program may know of it. No number: there
  # is none.
  number @0 :UInt64;
  type @1 :UInt32;
  processors @2 :UInt32;
  smallestPart @3 :UInt32;
  alignment @4 :UInt32;
}

struct DeviceResource {
  # cuDeviceGetDevResource, cuCtxGetDevResource and cuGreenCtxGetDevResource.
  type @0 :UInt32;
  of :union {
    device @1 :Int32;
    context @2 :UInt64;
  }
}
struct DeviceResourceReply {
  resource @0 :Resource;
}

struct SplitResource {
  # cuDevSmResourceSplitByCount.
  resource @0 :UInt64;
  groups @1 :UInt32;              # how many at most
  simulate @2 :Bool;              # only the number of groups is wanted
  rest @3 :Bool;                  # what is in no group is wanted too
  flags @4 :UInt32;
  smallest @5 :UInt32;
}
struct SplitResourceReply {
  count @0 :UInt32;
  groups @1 :List(Resource);
  rest @2 :Resource;
}

struct DescribeResources {
  # cuDevResourceGenerateDesc.
  resources @0 :List(UInt64);
}
struct DescribeResourcesReply {
  description @0 :UInt64;
}

# --- device memory ---------------------------------------------------------------------------------------------------

struct BackMemory {
  # Puts physical memory of the device behind a range of the window. Charged before the driver is asked.
  address @0 :UInt64;
  bytes @1 :UInt64;               # multiple of 2 MiB
  device @2 :Int32;
  spares @3 :UInt32;              # further ranges of the same size right behind it, for which there may be no memory
}
struct BackMemoryReply {
  spares @0 :UInt32;              # so many of them have memory now
}

struct SetPeerAccess {
  # Whether kernels of device `from` may use what backMemory put, and will put, on device `to`.
  from @0 :Int32;
  to @1 :Int32;
  allowed @2 :Bool;
}

struct MakeMemory {
  # cuMemCreate. Charged before the driver is asked.
  bytes @0 :UInt64;
  device @1 :Int32;
  type @2 :UInt32;                # from here on: fields of CUmemAllocationProp
  requestedHandleTypes @3 :UInt32;
  compressionType @4 :UInt8;
  gpuDirectRDMACapable @5 :UInt8;
  usage @6 :UInt16;
  spares @7 :UInt32;              # so many more of the same kind, for which there may be no memory
}
struct MakeMemoryReply {
  allocations @0 :List(UInt64);   # what was asked for, and spares
  plenty @1 :Bool;                # there is so much left that none will be missing for the device's page tables
}

struct MapMemory {
  # cuMemMap of a handle that makeMemory made. Awaited only where it may fail: not for all of an allocation that the
  # client knows.
  address @0 :UInt64;
  bytes @1 :UInt64;
  offset @2 :UInt64;
  allocation @3 :UInt64;
}
struct MapMemoryReply {
  device @0 :Int32;               # where the memory lies
}

struct UnmapMemory {
  # Takes memory away again, whether backMemory, mapMemory or openSharedMemory put it there; the client has made sure
  # that the GPU is past all work that uses it. It is held up by nothing: the range may have other memory next.
  address @0 :UInt64;
  bytes @1 :UInt64;
}

struct FinishCopies {
  # Answered when the copies that the program takes for done by now are done, those that are held back too.
}

struct RetainAllocation {
  # cuMemRetainAllocationHandle.
  address @0 :UInt64;             # base of a mapping
}
struct RetainAllocationReply {
  allocation @0 :UInt64;
}

# --- order -----------------------------------------------------------------------------------------------------------

struct Fence {
  # The worker sends Control.passed with this number when the GPU has completed what was submitted before: on one
  # stream, or on all streams of all contexts if `stream` is 0.
  fence @0 :UInt64;
  stream @1 :UInt64;
}

struct WatchEvent {
  # Control.eventPassed is to tell when the event has happened, as it was recorded last.
  event @0 :UInt64;
}

struct ElapsedTimes {
  # cuEventElapsedTime_v2 for each pair: at most 512.
  pairs @0 :List(EventPair);
}

struct EventPair {
  start @0 :UInt64;
  end @1 :UInt64;
}

struct ElapsedTimesReply {
  first @0 :Int32;                # CUresult of the first pair
  milliseconds @1 :List(Float32); # of each pair; not a number where the driver tells no time
}

struct HostFunction {
  # Runs a function of the client when the stream gets here (Control.callback).
  stream @0 :UInt64;
  callback @1 :UInt64;
  always @2 :Bool;                # also when the stream has failed, as cuStreamAddCallback does
  part @3 :UInt64;                # on a stream that is captured: instead of `callback`, the number of a graph part
  watched @4 :Bool;               # it ends when memory of the host changes: until then, what the GPU writes there is
                                  # delivered
  ordered @5 :Bool;               # the client runs it behind those that it was told of before: it may be told before
                                  # they have run
  hearsSkips @6 :Bool;            # the client wants to hear of it also if it is not called (Callback.skipped)
}

struct MemoryOperation {
  # CUstreamBatchMemOpParams: one wait, write, flush or barrier, on memory of the GPU.
  operation @0 :UInt32;
  flags @1 :UInt32;
  address @2 :UInt64;
  value @3 :UInt64;
}

struct StreamMemory {
  # cuStreamWaitValue, cuStreamWriteValue and cuStreamBatchMemOp.
  stream @0 :UInt64;
  operations @1 :List(MemoryOperation);
}

struct StreamAttribute {
  # cuStreamGetAttribute and, if `set`, cuStreamSetAttribute.
  stream @0 :UInt64;
  set @1 :Bool;
  attribute @2 :LaunchAttribute;
}
struct StreamAttributeReply {
  attribute @0 :LaunchAttribute;
}

# --- copies ----------------------------------------------------------------------------------------------------------

struct Copy {
  # `depth` slices of `height` rows of `width` bytes, from one side to the other. What comes from or goes to host memory
  # has depth 1: the client takes such a copy apart; graph nodes have all three.
  width @0 :UInt64;
  height @1 :UInt64 = 1;
  depth @2 :UInt64 = 1;
  source @3 :CopySide;
  target @4 :CopySide;
}

struct CopySide {
  # Where a copy's rows lie on one side; each operation says which places it takes. In memory of the device row r of
  # slice s begins at address + (z + s) * height * pitch + (y + r) * pitch + x; in an array it is row y + r of slice (or
  # layer) z + s, from byte x on. In the other places the rows lie behind each other, and these numbers have no meaning.
  # A side that is not given is `frame`.
  place :union {
    frame @0 :Void;               # the bulk bytes of this frame; of a copy out: data frames before the reply
    device @1 :UInt64;            # an address; also of host memory that kernels see
    array @2 :UInt64;
    block @3 :UInt64;             # an address within a host block of which the worker has the contents
    part @4 :UInt64;              # memory of the client that has no other name: the number of a graph part
    pull @5 :UInt64;              # an address in pinned memory of the client, which the worker asks for when the stream
                                  # gets there
    lanes @6 :UInt32;             # they travel in chunks on the bulk lanes, as the transfer of this number
                                  # (protocol/row_chunks.h)
    peer @13 :UInt64;             # on a link to another host's worker: the link's number in the upper half, that of the
                                  # transfer in the lower one
    changes @14 :Void;            # as `frame`, and behind the bytes as many that the client knew to be there. Words of
                                  # four bytes (the last may be shorter) in which the two differ are copied; of one that
                                  # had become something else the client is told (LateError.address)
  }
  level @7 :UInt64;               # of an array
  x @8 :UInt64;                   # bytes
  y @9 :UInt64;
  z @10 :UInt64;
  pitch @11 :UInt64;
  height @12 :UInt64;             # rows from one slice to the next
}

struct CopyIn {
  # From the host (frame, changes, lanes, block, pull, or a part, which is released when it has been pulled) to the
  # device or an array; changes go to one row in memory. A large copy is several of these.
  stream @0 :UInt64;
  copy @1 :Copy;
  takenForDone @2 :Bool;          # the program's call was synchronous: nothing submitted later, on any stream, may
                                  # overtake it
  early @3 :UInt32;               # lanes: so many chunks are sent unasked; the worker asks for the others
                                  # (Control.wanted)
  inOrder @4 :Bool;               # lanes: the worker asks when what the stream was given before is complete, which may
                                  # write the source
  leads @5 :Bool;                 # peer: the program's stream is this one. The transfer begins when the stream gets
                                  # here, and it waits until all bytes are there. Exactly one of the two sides leads
}

struct CopyOut {
  # From the device or an array to the host. To a frame: barrier. To a block: deferred, the bytes are delivered when
  # they are there (Control.deliver), but for a block that is shared. To lanes: either. To a peer: deferred.
  stream @0 :UInt64;
  copy @1 :Copy;
  leads @2 :Bool;                 # as in CopyIn
  delivery @3 :UInt32;            # to a block: the number by which the client knows what is delivered; 0: none
}

struct CopyDevice {
  # Between device memory and arrays, also of several devices. Deferred.
  stream @0 :UInt64;
  copy @1 :Copy;
  targetContext @2 :UInt64;       # of that memory or array; 0: an array is the stream's, memory tells by its address
  sourceContext @3 :UInt64;
}

# --- links between workers -------------------------------------------------------------------------------------------
# A link has the same number at both of its workers, which the client gives. It goes one way.

struct OfferPeer {
  # To the target's worker: it expects the connections of a link.
  link @0 :UInt32;
}
struct OfferPeerReply {
  key @0 :Data;                   # by which they are let in, each once: 48 bytes, of which 16 are shown where TLS is
                                  # spoken. Empty: there is none, because of
  failure @1 :Text;
}

struct JoinPeer {
  # To the source's worker: its broker connects it with the target's, and it answers when they have met, or why they
  # cannot.
  link @0 :UInt32;
  host @1 :Text;                  # of the target's broker
  port @2 :UInt16;
  session @3 :UInt64;             # the target's
  key @4 :Data;                   # as the target gave it
  encrypted @5 :Bool;             # the target's broker speaks TLS
}
struct JoinPeerReply {
  failure @0 :Text;               # empty: they have met
  rdma @1 :Bool;                  # what goes by the link goes by RDMA
}

struct ClosePeer {
  # The link is needed no more, or its other end is lost. What waits for it goes on with an error.
  link @0 :UInt32;
}

struct AwaitPeer {
  # To the target's worker: the stream goes on when the source has said `passed` with this number.
  stream @0 :UInt64;
  link @1 :UInt32;
  number @2 :UInt64;
}

struct TellPeer {
  # To the source's worker: it says `passed` when the GPU has completed what the stream was given before.
  stream @0 :UInt64;
  link @1 :UInt32;
  number @2 :UInt64;
}

# --- sharing between sessions ----------------------------------------------------------------------------------------
# What a session shares is named by a key of 16 random bytes, which programs pass to each other in CUDA's IPC and
# shareable handles. The host's broker keeps what is behind it until the session that shared it takes it back or ends.
# All of these are awaited: another program acts on what this one says it has done.

struct ShareMemory {
  # The piece of memory that backMemory put at this address.
  address @0 :UInt64;
}
struct ShareAllocation {
  # Memory of cuMemCreate, made to be exported.
  allocation @0 :UInt64;
}
struct ShareEvent {
  # An event made with CU_EVENT_INTERPROCESS.
  event @0 :UInt64;
}
struct Shared {
  key @0 :Data;
  bytes @1 :UInt64;               # of memory
}

struct OpenSharedMemory {
  # Puts shared memory at a range of the window, as long as the memory, with access for the device of the frame's
  # context.
  key @0 :Data;
  address @1 :UInt64;
  bytes @2 :UInt64;
}
struct OpenSharedMemoryReply {
  device @0 :Int32;               # where the memory lies
}
struct ImportAllocation {
  # Shared memory as one that cuMemCreate made.
  key @0 :Data;
}
struct ImportAllocationReply {
  allocation @0 :UInt64;
}
struct OpenSharedEvent {
  # A shared event under a handle that the client gives.
  key @0 :Data;
  event @1 :UInt64;
}

# --- host memory -----------------------------------------------------------------------------------------------------

struct OpenHostBlock {
  # Tells the worker of pinned or registered memory of the client that takes part in a copy it must remember, or that
  # kernels use. `mapped`: kernels may use it, at `address` (which lies in the host window), and its contents follow in
  # WriteHostBlock frames; it is awaited. Else the worker keeps a copy of its own that kernels cannot reach, and nobody
  # waits.
  address @0 :UInt64;             # as the client's programs know it
  bytes @1 :UInt64;
  mapped @2 :Bool;
  device @3 :UInt64;              # mapped: address at which kernels see it
  paged @4 :Bool;                 # mapped: the client asks for what kernels write (ReadHostBlock); else it is delivered
                                  # when it has changed
  shared @5 :Bool;                # on a connection of shared memory: pinned memory of both sides, page-aligned in the
                                  # host window, which the worker makes, and whose descriptor it sends beside the frames
                                  # before the reply; kernels use it; awaited
}

struct MapGraphPart {
  # Where kernels see memory that a graph copies from or to: from the next launch on, the graph's copies go there. The
  # device address 0 says that kernels see it no more, and that the copies are the client's again. A part that is gone
  # is no error.
  part @0 :UInt64;
  place @1 :CopySide;
}

struct CloseHostBlock {
  # The block is gone. The client has made sure that nothing pending uses it.
  address @0 :UInt64;
}

struct WriteHostBlock {
  # Followed by bulk bytes: new contents of a mapped block, before the launch that may read them.
  address @0 :UInt64;
  heard @1 :UInt64;               # how many `deliver` for host blocks had come before, and one more; 0: not said
}

struct ChangeHostBlock {
  # Followed by bulk bytes: new contents of a part of a mapped block, and behind them what the client knew to be there,
  # both of the same length. Words of four bytes (the last may be shorter) in which the two differ get the new contents.
  # Of one that had become something else at the worker the client is told (LateError.address).
  address @0 :UInt64;
}

struct ReadHostBlock {
  # What a mapped block contains at this moment; the bytes come in data frames before the reply.
  address @0 :UInt64;
  bytes @1 :UInt64;               # at most limits::host_read_bytes_max
}

# --- images ----------------------------------------------------------------------------------------------------------

struct Option {
  # One CUjit_option or CUlibraryOption. Log buffers travel as their size; what the driver wrote comes back in the
  # reply.
  option @0 :UInt32;
  value @1 :UInt64;
}

struct SendImage {
  # Followed by bulk bytes: a part of an image that the host lacks. The worker checks the hash when it is complete.
  hash @0 :Data;                  # SHA-256
  bytes @1 :UInt64;               # of the whole image
  offset @2 :UInt64;
}

struct LoadImage {
  # Loads a library or, into the context, a module. If the host lacks the image it says so (`known` false, the
  # result is success); the client then sends it and asks again.
  hash @0 :Data;
  bytes @1 :UInt64;
  module @2 :Bool;
  jit @3 :List(Option);
  library @4 :List(Option);
  wrapped @5 :Bool;               # the program gave a fatbin wrapper, of which the image is the container
}
struct LoadImageReply {
  known @0 :Bool;
  handle @1 :UInt64;
  infoLog @2 :Data;
  errorLog @3 :Data;
  wallMilliseconds @4 :Float32;
  kernels @5 :List(FunctionReply);  # some that will be looked for, by what earlier sessions did
  ahead @6 :List(LoadedAhead);    # of a library: what earlier sessions loaded next is loaded already
  threadsPerBlock @7 :UInt32;     # that were compiled for, where that was asked; else 0
}
struct LoadedAhead {
  # An answer to a loadImage that was not sent yet.
  # A client whose program comes to load that image says so by takeLoaded.
  request @0 :Data;               # the message that it answers
  reply @1 :Data;                 # LoadImageReply
}
struct ExamineKernel {
  # A kernel is about to use memory of which the program has a copy. Where its code orders itself with the whole system,
  # a line says what may go wrong.
  owner @0 :UInt64;               # module or library
  name @1 :Text;
}
struct ExamineKernelReply {
  wholeSystem @0 :Bool;           # it has atomics or fences of the whole system
}

struct TakeLoaded {
  library @0 :UInt64;
}

# --- linking ---------------------------------------------------------------------------------------------------------

struct CreateLink {
  # cuLinkCreate.
  jit @0 :List(Option);
}
struct CreateLinkReply {
  link @0 :UInt64;
}

struct AddToLink {
  # cuLinkAddData, cuLinkAddFile. If the host lacks the input it says so, as with loadImage.
  link @0 :UInt64;
  type @1 :UInt32;                # CUjitInputType
  hash @2 :Data;
  bytes @3 :UInt64;
  name @4 :Text;
  jit @5 :List(Option);           # for this input only
}
struct CompleteLink {
  link @0 :UInt64;
}
struct LinkReply {
  # What has been logged since the link was created; `linkedBytes` is the length of the result, once it is complete.
  known @0 :Bool;
  infoLog @1 :Data;
  errorLog @2 :Data;
  wallMilliseconds @3 :Float32;
  linkedBytes @4 :UInt64;
  threadsPerBlock @5 :UInt32;  # as in LoadImageReply
}

struct FetchLinked {
  # A part of the result, which comes in data frames before the reply.
  link @0 :UInt64;
  offset @1 :UInt64;
  bytes @2 :UInt64;
}

# --- functions -------------------------------------------------------------------------------------------------------

struct FindFunction {
  # cuModuleGetFunction, cuLibraryGetKernel, cuKernelGetFunction.
  owner @0 :UInt64;               # module, library or kernel
  name @1 :Text;
}
struct KernelFunction {
  # cuKernelGetFunction of a kernel of which the client knows all that the answer would say: the function gets the
  # handle that the client gives.
  kernel @0 :UInt64;
  function @1 :UInt64;
}
struct DescribeFunction {
  # Facts of a function or kernel that came by enumeration.
  function @0 :UInt64;
}
struct FunctionReply {
  # Parameter i lies at offset and size of entry i.
  function @0 :UInt64;
  parameters @1 :List(Parameter);
  name @2 :Text;
  owner @3 :UInt64;               # module or library
  attributes @4 :FunctionAttributesReply;  # a kernel's for the context's device; empty without a context
}
struct Parameter {
  offset @0 :UInt32;
  bytes @1 :UInt32;
}

struct ListFunctions {
  # Functions of a module or kernels of a library, in the driver's order.
  owner @0 :UInt64;
}
struct FunctionList {
  functions @0 :List(UInt64);
}

struct FunctionAttributes {
  # All attributes of a function (of a kernel: for the device of the context, or the one named). Asked once.
  function @0 :UInt64;
  device @1 :Int32 = -1;
}
struct FunctionAttributesReply {
  values @0 :List(Int32);         # by CUfunction_attribute
  results @1 :List(UInt32);       # CUresult of asking for each
}

struct SetFunctionAttribute {
  # cuFuncSetAttribute, cuKernelSetAttribute. Awaited unless the driver cannot but accept the value: tuners probe what
  # is allowed by trying.
  function @0 :UInt64;
  device @1 :Int32 = -1;
  attribute @2 :UInt32;
  value @3 :Int32;
}

struct FindGlobal {
  owner @0 :UInt64;               # module or library
  name @1 :Text;
  managed @2 :Bool;               # only a managed one
}
struct FindGlobalReply {
  address @0 :UInt64;
  bytes @1 :UInt64;
  managed @2 :Bool;
}

# --- launches --------------------------------------------------------------------------------------------------------

struct Launch {
  # The first of its class is awaited. `parameters` is the kernel's parameter block, laid out as
  # FunctionReply says.
  function @0 :UInt64;
  stream @1 :UInt64;
  gridX @2 :UInt32;
  gridY @3 :UInt32;
  gridZ @4 :UInt32;
  blockX @5 :UInt32;
  blockY @6 :UInt32;
  blockZ @7 :UInt32;
  sharedBytes @8 :UInt32;
  form @9 :Form;
  parameters @10 :Data;
  attributes @11 :List(LaunchAttribute);
  enum Form {
    plain @0;                     # cuLaunchKernel
    cooperative @1;               # cuLaunchCooperativeKernel
    extended @2;                  # cuLaunchKernelEx
  }
}
struct LaunchReply {
  # The cluster that the kernel was compiled for, which grids must be multiples of; zeros for none.
  clusterX @0 :UInt32;
  clusterY @1 :UInt32;
  clusterZ @2 :UInt32;
}
struct LaunchAttribute {
  # One CUlaunchAttribute. `words` is its value, as much of it as the attribute uses; a handle in it stands in `handle`.
  attribute @0 :UInt32;
  words @1 :List(UInt64);
  handle @2 :UInt64;
}

struct LaunchTogether {
  # cuLaunchCooperativeKernelMultiDevice: cooperative launches of one kernel, each on a stream of its own, of another
  # device. Awaited where nothing in the client can hold it up.
  launches @0 :List(Launch);
  flags @1 :UInt32;
}

struct ClusterOccupancy {
  # cuOccupancyMaxActiveClusters and cuOccupancyMaxPotentialClusterSize. Asked once. Programs that ask about clusters of
  # one shape ask about others next: the answers for those come with it. A grid that is one cluster gets answers for
  # such grids.
  function @0 :UInt64;
  gridX @1 :UInt32;
  gridY @2 :UInt32;
  gridZ @3 :UInt32;
  blockX @4 :UInt32;
  blockY @5 :UInt32;
  blockZ @6 :UInt32;
  sharedBytes @7 :UInt32;
  attributes @8 :List(LaunchAttribute);
  potential @9 :Bool;             # the cluster size that is possible, rather than the number of clusters active at once
}
struct ClusterOccupancyReply {
  value @0 :Int32;
  others @1 :List(ClusterAnswer);
}
struct ClusterAnswer {
  x @0 :UInt32;
  y @1 :UInt32;
  z @2 :UInt32;
  value @3 :Int32;
}

# --- graphs ----------------------------------------------------------------------------------------------------------

struct Edge {
  fromPort @0 :UInt8;
  toPort @1 :UInt8;
  type @2 :UInt8;
}

struct KernelNode {
  function @0 :UInt64;
  gridX @1 :UInt32;
  gridY @2 :UInt32;
  gridZ @3 :UInt32;
  blockX @4 :UInt32;
  blockY @5 :UInt32;
  blockZ @6 :UInt32;
  sharedBytes @7 :UInt32;
  parameters @8 :Data;
  context @9 :UInt64;             # 0: the current one
  asKernel @10 :Bool;             # named by CUDA_KERNEL_NODE_PARAMS.kern, not by its func
  kernel @11 :UInt64;             # in answers: of a library, which the driver tells beside func; 0: none
}

struct MemsetNode {
  address @0 :UInt64;
  pitch @1 :UInt64;
  value @2 :UInt32;
  elementBytes @3 :UInt32;
  width @4 :UInt64;
  height @5 :UInt64;
  context @6 :UInt64;
}

struct CopyNode {
  # Between device memory, arrays and parts.
  copy @0 :Copy;
  context @1 :UInt64;
}

struct MemoryOperations {
  operations @0 :List(MemoryOperation);
  flags @1 :UInt32;
  context @2 :UInt64;
}

struct ConditionalNode {
  handle @0 :UInt64;              # as kernels know it
  type @1 :UInt32;
  size @2 :UInt32;
  context @3 :UInt64;
}

struct AllocationNode {
  # Memory of the session that the program sees from this node on. It is there before and after; its graph part goes
  # when no graph holds the node any more.
  address @0 :UInt64;
  bytes @1 :UInt64;
  part @2 :UInt64;
}

struct NodeParameters {
  # What a graph node does, by its kind. A graph part is what only the client can do for a graph: the client gives it a
  # number, under which the worker asks for it (Control.callback, pull, deliver) and at last gives it back
  # (Control.released).
  union {
    empty @0 :Void;
    kernel @1 :KernelNode;
    child @2 :UInt64;             # graph
    memset @3 :MemsetNode;
    copy @4 :CopyNode;
    eventRecord @5 :UInt64;
    eventWait @6 :UInt64;
    host @7 :UInt64;              # graph part: a function
    memory @8 :MemoryOperations;
    conditional @9 :ConditionalNode;
    allocation @11 :AllocationNode;
    free @12 :UInt64;             # address that an allocation node gave
  }
  moved @10 :Bool;                # the child graph is not cloned into the node but goes over to it
}

struct AddNode {
  # cuGraphAdd<Kind>Node, cuGraphAddNode(_v2).
  graph @0 :UInt64;
  dependencies @1 :List(UInt64);
  edges @2 :List(Edge);           # empty, or one for each dependency
  parameters @3 :NodeParameters;
}
struct AddNodeReply {
  node @0 :UInt64;
  bodies @1 :List(UInt64);        # of a conditional node: its graphs
}

struct SetNode {
  # cuGraph<Kind>NodeSetParams, or cuGraphExec<Kind>NodeSetParams if `exec` is given.
  exec @0 :UInt64;
  node @1 :UInt64;
  parameters @2 :NodeParameters;
}

struct GetNode {
  # cuGraph<Kind>NodeGetParams.
  node @0 :UInt64;
  type @1 :UInt32;                # CUgraphNodeType that the node must have
}
struct GetNodeReply {
  parameters @0 :NodeParameters;
}

struct NodeAttribute {
  # cuGraphKernelNodeGetAttribute and, if `set`, cuGraphKernelNodeSetAttribute.
  node @0 :UInt64;
  set @1 :Bool;
  attribute @2 :LaunchAttribute;
}
struct NodeAttributeReply {
  attribute @0 :LaunchAttribute;
}

struct CaptureCopy {
  # A copy from or to memory of the client on a stream that is captured: becomes a node of the graph. Sides as of a
  # CopyNode.
  stream @0 :UInt64;
  copy @1 :Copy;
}

struct CaptureMemory {
  # cuMemAllocAsync and cuMemFreeAsync on a stream that is captured: an allocation or free node.
  stream @0 :UInt64;
  parameters @1 :NodeParameters;
}

struct GraphMemory {
  # What a launch of an executable graph does to memory of allocation nodes, by address.
  allocated @0 :List(UInt64);     # and not freed by the same graph
  freed @1 :List(UInt64);         # and not allocated by the same graph
  within @2 :List(UInt64);        # allocated and freed
}

struct MapArrays {
  # cuMemMapArrayAsync: memory goes into arrays, or is taken out of them, when the stream gets there. It is memory of
  # the stream's device.
  stream @0 :UInt64;
  items @1 :List(ArrayMapping);
}
struct ArrayMapping {
  array @0 :UInt64;               # either this one
  mipmap @1 :UInt64;              # or that
  union {
    level :group {                # tiles of one level
      level @2 :UInt32;
      layer @3 :UInt32;
      x @4 :UInt32;
      y @5 :UInt32;
      z @6 :UInt32;
      width @7 :UInt32;
      height @8 :UInt32;
      depth @9 :UInt32;
    }
    tail :group {                 # levels too small for tiles
      layer @10 :UInt32;
      offset @11 :UInt64;
      bytes @12 :UInt64;
    }
  }
  allocation @13 :UInt64;         # what is mapped; 0 to take away what is there
  offset @14 :UInt64;
}

struct Decompress {
  # cuMemBatchDecompressAsync.
  stream @0 :UInt64;
  items @1 :List(Item);
  struct Item {
    source @0 :UInt64;
    sourceBytes @1 :UInt64;
    target @2 :UInt64;
    targetBytes @3 :UInt64;       # as far as the program knows; 0 if it does not
    written @4 :UInt64;           # where the number of bytes goes
    algorithm @5 :UInt32;
  }
}
struct DecompressReply {
  failed @0 :UInt64;              # the item that an error is about, from 1 on; 0 for none
}

struct CreateUserObject {
  # cuUserObjectCreate. When its last reference goes, the worker calls the graph part, and gives it back.
  part @0 :UInt64;
  references @1 :UInt32;
}
struct CreateUserObjectReply {
  object @0 :UInt64;
}

struct PrintGraph {
  # cuGraphDebugDotPrint: the text from `offset` on, as much as a message carries.
  graph @0 :UInt64;
  flags @1 :UInt32;
  offset @2 :UInt64;
}
struct PrintGraphReply {
  text @0 :Data;
  bytes @1 :UInt64;               # of the whole text
}

struct CaptureInfo {
  # cuStreamGetCaptureInfo with graph and dependencies.
  stream @0 :UInt64;
}
struct CaptureInfoReply {
  status @0 :UInt32;
  id @1 :UInt64;
  graph @2 :UInt64;
  dependencies @3 :List(UInt64);
  edges @4 :List(Edge);
}

struct InstantiateGraph {
  # cuGraphInstantiateWithFlags and cuGraphInstantiateWithParams.
  graph @0 :UInt64;
  flags @1 :UInt64;
  upload @2 :UInt64;              # stream to upload on, or 0
}
struct InstantiateGraphReply {
  exec @0 :UInt64;
  outcome @1 :UInt32;             # CUgraphInstantiateResult
  errorNode @2 :UInt64;
  attended @3 :Bool;              # launches are attended by the worker: by operation launchGraph, not cuGraphLaunch
  refusal @4 :Text;               # what of the graph is not served, if that is why there is none
  memory @5 :GraphMemory;
}

struct UpdateGraph {
  # cuGraphExecUpdate.
  exec @0 :UInt64;
  graph @1 :UInt64;
}
struct UpdateGraphReply {
  outcome @0 :UInt32;             # CUgraphExecUpdateResult
  errorNode @1 :UInt64;
  errorFromNode @2 :UInt64;
  attended @3 :Bool;
  refusal @4 :Text;
  memory @5 :GraphMemory;         # what launches do from now on
}

struct LaunchGraph {
  # cuGraphLaunch of a graph with parts or events: the worker runs it in pieces where it must. When all is done, also if
  # it failed, the worker sends Control.callback with `done`.
  exec @0 :UInt64;
  stream @1 :UInt64;
  done @2 :UInt64;
}
