@0xd6b1f0a7c3e45a91;
# The control messages of fargpu: the sender of each, when it is sent, and what the receiver must do.
#
# Vocabulary: a *client* is the library in a program's process (or the command line tool); a *broker* (fargpud) admits
# clients on a GPU host; a *worker* is the process there that executes one session; a *session* is one client process at
# one host. How frames carry these messages is said in docs/internals/wire-format.md.
#
# Connections. A client opens three kinds of connection, all to the broker's address, and all begin with one frame that
# holds a Control message:
#
#   control connection   begins with `hello`. The broker answers `helloAnswer`; then each request is answered in turn
#                        until the client closes it. It carries no calls.
#   session connection   begins with `attach`. The broker reads just that frame, checks the ticket, and hands the
#                        connection to the worker that the ticket names; whatever follows is between client and worker.
#                        The worker answers `attachAnswer`; from then on calls may be sent.
#   bulk lane            begins with `lane`. The broker hands the connection to the session's worker, which answers
#                        `laneAnswer`. From then on it carries chunks of transfers, either way
#                        (docs/internals/wire-format.md).
#
# A *link* goes from the worker of one host to that of another, for a program with devices of both. Its connections
# begin with `lane` too: the first worker's broker makes them, and that worker has the key from the client
# (operations `offerPeer` and `joinPeer`). Channel 0 is the link's own connection, on which `peer` is said; the others
# carry chunks.
#
# A session or lane whose connection broke is resumed by a further one, which also begins with `lane`. Once the worker
# has it, the client sends `resume` and the worker answers `resumeAnswer`; then both go on where the other has received
# (docs/internals/resuming.md).
#
# Where the broker speaks TLS, a control connection begins with a handshake of TLS 1.3 instead, and everything said
# above comes within. A session connection begins with one frame in the clear, `route`, which says nothing but whose it
# is; then follows a handshake of TLS 1.3 with the worker, whose pre-shared key is the ticket and whose identity is the
# ticket's name; then `attach`, with an empty ticket. So the keys of a session are known to client, broker and worker
# alone, and a state of TLS, which cannot be handed from one process to another, never needs to be. A bulk lane begins
# so too: with `lane` in the clear, which shows only the first 16 bytes of the key that the worker gave; the handshake's
# identity are these, its pre-shared key is the rest; the answer comes within.
#
# A peer that sends anything else first, or an over-long frame, is cut off with one log line. A frame that arrives where
# this file does not allow it is a protocol error and ends the connection.
#
# Compatibility. Each side says which versions of the protocol it speaks, from `oldestProtocol` to `protocolVersion`. A
# connection uses the newest version that both speak; the side that answers names it. If there is none, the answer
# refuses. The spec (set of calls and their shapes) may differ: the worker names the opcodes that it serves, a client
# never sends one that the worker lacks, and the call then returns CUDA_ERROR_NOT_SUPPORTED.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("fargpu::wire");

const protocolVersion :UInt32 = 3;
const oldestProtocol :UInt32 = 3;

struct Control {
  union {
    # --- control connection -------------------------------------------------------------------------------------------
    hello @0 :Hello;                  # client -> broker, first
    helloAnswer @1 :HelloAnswer;      # broker -> client
    leaseRequest @2 :LeaseRequest;    # client -> broker
    leaseAnswer @3 :LeaseAnswer;      # broker -> client
    statusRequest @4 :Void;           # client -> broker
    status @5 :Status;                # broker -> client

    # --- session connection, opening ---------------------------------------------------------------------------------
    attach @6 :Attach;                # client -> worker, first
    attachAnswer @7 :AttachAnswer;    # worker -> client

    # --- session connection, worker -> client, at any time after attachAnswer ----------------------------------------
    lateError @8 :LateError;
    passed @9 :Passed;
    callback @10 :Callback;
    pull @11 :Pull;
    deliver @12 :Deliver;

    # --- session connection, client -> worker, at any time after attachAnswer ----------------------------------------
    callbackDone @13 :CallbackDone;
    pulled @14 :Pulled;

    # --- either way --------------------------------------------------------------------------------------------------
    goodbye @15 :Goodbye;

    # --- session connection, worker -> client, at any time after attachAnswer ----------------------------------------
    printed @16 :Printed;
    released @17 :Released;

    # --- session connection, opening, where the broker speaks TLS: client -> broker, in the clear --------------------
    route @18 :Route;

    # --- control connection ------------------------------------------------------------------------------------------
    administrationRequest @19 :AdministrationRequest;   # client -> broker
    administrationAnswer @20 :AdministrationAnswer;     # broker -> client

    # --- bulk lane ---------------------------------------------------------------------------------------------------
    lane @21 :Lane;                   # client -> worker, first
    laneAnswer @22 :Failure;          # worker -> client

    # --- session connection, worker -> client, at any time after attachAnswer ----------------------------------------
    wanted @23 :Wanted;
    arriving @24 :Arriving;
    settled @25 :Settled;

    # --- session connection, client -> worker, at any time after attachAnswer ----------------------------------------
    laneLost @26 :LaneLost;

    # --- session connection, worker -> client, at any time after attachAnswer ----------------------------------------
    notice @27 :Text;                 # a line for the person who runs the program; only to a client that `hearsNotices`
    eventPassed @28 :EventPassed;

    # --- a connection by which a session or lane is resumed -----------------------------------------------------------
    resume @29 :Resume;               # client -> worker, first (within TLS, if that is spoken)
    resumeAnswer @30 :ResumeAnswer;   # worker -> client

    # --- session, bulk lane and link, either way, opening, where both want RDMA (docs/internals/rdma.md) --------------
    rdma @31 :RdmaEnd;                # first the worker after `attach`; first the target of a link; either of both on a
                                      # lane, and on a connection that comes back, before `resume`
    rdmaMet @32 :Text;                # whether the sender has met the other end by RDMA: empty, or why not. If both
                                      # have, everything else goes by RDMA; if not, nothing does

    # --- a link between two workers of one program (docs/internals/wire-format.md) ------------------------------------
    peer @33 :PeerWord;               # on the link's own connection, either way

    # --- session connection, worker -> client, at any time after attachAnswer ----------------------------------------
    linkLost @34 :LinkLost;

    # --- control connection ------------------------------------------------------------------------------------------
    contentsRequest @35 :ContentsRequest;   # client -> broker
    contentsAnswer @36 :ContentsAnswer;     # broker -> client
    giveUp @37 :Text;                 # client -> broker: a `placement` that this broker has named and that the client
                                      # makes no use of. Its leases end; those that a client has come to go on
    givenUp @38 :Void;                # broker -> client

    # --- session connection, worker -> client, at any time after attachAnswer ----------------------------------------
    returned @39 :Returned;           # only to a client that `hearsReturns`
  }
}

struct Failure {
  # Why a request was not granted. Sent instead of the wanted answer; the connection is then closed by its sender.
  enum Reason {
    none @0;
    versionMismatch @1;   # protocol or driver level; the client reports CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    noCapacity @2;        # the host has no device or session to offer now; trying later may help
    denied @3;            # not allowed: a wrong, used or expired ticket, an unknown tenant
    badRequest @4;        # malformed or out of range
    hostError @5;         # the host cannot serve: driver missing, worker did not start
    draining @6;          # the broker is shutting down
  }
  reason @0 :Reason;
  text @1 :Text;          # one line for a person: what was wrong and what to do
}

# --- hello -----------------------------------------------------------------------------------------------------------

struct Hello {
  # The broker checks the version, remembers the client (for logs and `fargpu ls`), and answers at once.
  protocolVersion @0 :UInt32;
  driverVersion @1 :UInt32;   # CUDA version the client's programs see, for example 13000
  program @2 :Text;           # file name of the program, for people
  hostName @3 :Text;
  processId @4 :UInt32;
  token @5 :Text;             # names the client if no certificate or key does; never sent where strangers can read it
  job @6 :Data;               # 16 bytes: the job that this process belongs to; `status` then tells of that job's
                              # devices
  localKey @7 :Data;          # on a Unix socket that an answer by TCP has named: the key that came with the name
  oldestProtocol @8 :UInt32;  # 0: protocolVersion
}

struct HelloAnswer {
  protocolVersion @0 :UInt32; # of this connection; if the answer refuses for the version, the broker's newest
  failure @1 :Failure;        # reason none: welcome
  version @2 :Text;           # of the broker's build
  hostName @3 :Text;
  tenant @4 :Text;            # the client's, as the broker knows it

  # Two processes on one machine use shared memory, which begins with a Unix socket. To a client that came by TCP from
  # this machine the broker names its socket, in the abstract namespace, with two random numbers of 16 bytes that are
  # good while that connection is open. The client says hello there with the key, and is answered with the proof.
  # Through a tunnel, a client's loopback port leads to another machine. A process of the client's machine that has
  # taken the name does not know the proof: the broker tells it on this connection and on its own socket only.
  localSocket @5 :Text;       # without the leading zero byte; empty: there is none, or the client is on another machine
  localKey @6 :Data;
  localProof @7 :Data;
  pool @8 :Text;              # of which the host is a member (docs/internals/registry.md); empty: of none
  host @9 :Text;              # a random name, one for all addresses of the host, by which a client sees that two of
                              # them lead there; empty: the broker is older than this
}

# --- lease -----------------------------------------------------------------------------------------------------------

enum Priority {
  normal @0;
  latencyCritical @1;         # while such a lease has work for a device, best-effort ones are held back
  bestEffort @2;
}

struct LeaseRequest {
  # Asks for a session, once a connection. The broker finds the lease that it comes under, or makes it of what is asked
  # for here, and reserves a worker: a warm one if it offers the lease's devices and `environment` equals that with
  # which the warm ones were started, else a new one (CUDA reads these variables once, in cuInit).
  environment @0 :List(Variable);

  # What the lease is to be. Read only by the request that makes it.
  gpus @1 :UInt32;            # devices; 0: all that the tenant may use
  memoryBytes @2 :UInt64;     # of each device, and kept for the lease; 0: whatever is there, up to the tenant's quota
  computePercent @3 :UInt32;  # of each device, 1 to 100; 0: no limit and no guarantee
  priority @4 :Priority;
  waitMs @5 :UInt32;          # how long to wait while there is not enough; 0: be refused at once

  job @6 :Data;               # 16 bytes, by the starter of a job: all that name it share one lease. Empty: no sharing
  hold @7 :Bool;              # no session: the lease itself, which lasts while this connection is open or it has
                              # sessions
  priorityAsked @8 :Bool;     # false, and `priority` is normal: the client asks for none, and gets the tenant's
                              # highest, at most normal
  wantsFacts @9 :Bool;        # of a lease that is held: the answer has `facts`

  # At a host that is a member of a pool.
  followsPlaces @10 :Bool;    # the client understands an answer with `places`. If not, it has a lease of this host, or
                              # none
  hosts @11 :UInt32;          # over which the lease's devices may be spread; 0: one
  placement @12 :Text;        # as an answer with `places` gave it, to each host that it named
  unreached @13 :List(Text);  # names of at most 64 hosts of the pool that do not answer this client: none of them is
                              # chosen. If no other host could ever serve it, the request is refused at once. The
                              # broker remembers them for ten minutes: for clients of the same address they are chosen
                              # only where others do not suffice
}

struct Variable {
  name @0 :Text;
  value @1 :Text;
}

struct LeaseAnswer {
  failure @0 :Failure;
  ticket @1 :Data;            # 32 random bytes, good for one attach, within the broker's handshake time and while this
                              # connection is open
  ticketName @2 :Data;        # 16 random bytes that name the ticket in the clear; where the broker speaks TLS
  lease @3 :UInt64;           # its number at this host
  devices @4 :List(UInt32);   # of the lease, by their places in `status`
  memoryBytes @5 :UInt64;     # of each of them that the lease may hold; 0: no limit of its own
  facts @6 :HostFacts;        # of its devices, as a session of the lease will find them; where they were asked for

  places @7 :List(LeasePlace);  # not empty: the lease is at these hosts of the pool, and kept for the client for half a
                                # minute. It asks each of them, with `placement` and `placementJob`; nothing else of
                                # this answer counts
  placement @8 :Text;
  placementJob @9 :Data;      # the request's `job`, or one that was made up for it
}

struct LeasePlace {
  address @0 :Text;           # as in FARGPU_POOL
  gpus @1 :UInt32;
  host @2 :Text;              # its name in the pool
  identity @3 :Text;          # `HelloAnswer.host` of it; empty: the placer is older than this
}

# --- attach ----------------------------------------------------------------------------------------------------------

struct Range {
  base @0 :UInt64;
  bytes @1 :UInt64;
}

struct Route {
  ticketName @0 :Data;
}

struct Attach {
  ticket @0 :Data;                # empty if the connection's keys were made from it
  protocolVersion @1 :UInt32;
  driverVersion @2 :UInt32;
  deviceWindows @3 :List(Range);  # in order of preference: ranges the client has reserved in its own address space
  hostWindows @4 :List(Range);
  sharedMemory @5 :Bool;          # on a Unix socket: the client wants to share memory
  compression @6 :Compression;    # of contents of memory, either way. Not through shared memory
  oldestProtocol @7 :UInt32;      # 0: protocolVersion
  hearsNotices @8 :Bool;          # the client understands `notice`
  resumes @9 :Bool;               # the client comes back when its connection breaks
  rdma @10 :Bool;                  # the client wants RDMA. A worker that offers it says `rdma` before `attachAnswer`
  origin @11 :UInt8;              # number of the session among those of the client's process, which all its handles
                                   # have (protocol/handle.h)
  hearsReturns @12 :Bool;         # the client wants to hear `returned`
}

enum Compression {
  never @0;                       # and the client would not understand it
  automatic @1;                   # where the sender finds that it gains time
  always @2;                      # whatever becomes smaller
}

struct AttachAnswer {
  # The worker takes the first window of each list that is free in its process too, and says so; the client gives up the
  # others. Device addresses of the session lie in `deviceWindow` or, for what the driver places by itself (module
  # globals), in `driverBand`, which the client reserves as well.
  failure @0 :Failure;
  sessionId @1 :UInt64;
  deviceWindow @2 :Range;
  hostWindow @3 :Range;
  driverBand @4 :Range;           # empty if the worker's address space is not displaced (sanitizer builds, tests)
  facts @5 :HostFacts;
  opcodes @6 :Data;               # bit n of byte n/8: the worker serves opcode n
  silenceMs @7 :UInt32;           # milliseconds after which either side takes the other's silence for its death; each
                                  # sends something several times within. 0: 30 seconds
  laneKey @8 :Data;               # random bytes by which bulk lanes are let in: 32, or 48 where the session speaks TLS
  ringBytes @9 :UInt64;           # not 0: a byte with a descriptor follows on the socket. It is sealed memory of two
                                  # rings of so many bytes, through which every further frame goes
                                  # (docs/internals/wire-format.md)
  compression @10 :Bool;          # the worker understands compressed frames, and sends them as it was asked to
  creditBytes @11 :UInt64;        # of calls that take credit (docs/internals/ordering.md) that the client may have sent
                                  # and that are not settled
  protocolVersion @12 :UInt32;     # of this connection
  resumeSecret @13 :Data;          # 32 random bytes by which the session's connections are resumed for the first time.
                                   # Empty: they are not; else what follows on this connection is resumable
  resumeMs @14 :UInt32;            # for how long the worker waits for a client whose connection broke
  rdmaRefusal @15 :Text;           # why the worker offers no RDMA to a client that wants it
  origin @16 :UInt8;               # as the client said
  contentBytes @17 :UInt64;        # so many bytes of contents the host keeps of the tenant's, and the worker hears
                                   # words about them on the lanes (docs/internals/wire-format.md). 0: it hears none
}

struct RdmaEnd {
  # The sender's end of a connection by RDMA. Never sent where strangers can read it, but for sessions without TLS.
  failure @0 :Text;               # not empty: there is none, and why
  address @1 :Data;               # as UCX has it
  key @2 :Data;                   # by which the receiver may write the sender's ring, and nothing else
  ring @3 :UInt64;                # the ring's address, for UCX
  ringBytes @4 :UInt64;
  secret @5 :Data;                # 16 random bytes, in each message to the sender: it hears no others
}

struct Lane {
  # A further connection of a session, for contents of memory.
  sessionId @0 :UInt64;
  key @1 :Data;                   # as `attachAnswer` gave it; its first 16 bytes if a handshake of TLS follows
  channel @2 :UInt32;             # number of this connection in the session: 0 is the session's own, lanes count from
                                  # 1. A lane with 0 is not resumable
  resumes @3 :Bool;               # that connection broke, and this one takes its place: `resume` follows
  rdma @4 :Bool;                  # of a link: its source has RDMA for this connection. If the target has it too, `rdma`
                                  # comes ahead of `laneAnswer`
}

struct Resume {
  # The client is back, and has received so many bytes on this channel (docs/internals/resuming.md).
  channel @0 :UInt32;
  epoch @1 :UInt32;               # of the connection that broke: how often the channel was resumed before
  secret @2 :Data;                # for that epoch
  received @3 :UInt64;
}

struct ResumeAnswer {
  failure @0 :Failure;            # `denied`: the session is over for this client; `noCapacity`: not now
  epoch @1 :UInt32;               # of this connection
  secret @2 :Data;                # for the next time; the former one is good until something comes by this connection
  received @3 :UInt64;            # that the worker has received on this channel
  pending @4 :Bool;               # the worker has something for this channel that the client has not received
}

struct HostFacts {
  # Everything about the devices that does not change, so that queries are answered in the client.
  driverVersion @0 :UInt32;
  moduleLoadingMode @1 :UInt32;
  devices @2 :List(DeviceFacts);
  peers @3 :List(PeerFacts);
  driverRelease @5 :Text;           # such as 580.95.05; empty if unknown
  errorTexts @4 :List(ErrorText);   # what the driver says of each CUresult, so that programs print the same as locally
}

struct ErrorText {
  result @0 :UInt32;
  text @1 :Text;
}

struct DeviceFacts {
  name @0 :Text;
  uuid @1 :Data;                  # 16 bytes
  luid @2 :Data;                  # 8 bytes; empty where the driver has none
  luidNodeMask @3 :UInt32;
  memoryBytes @4 :UInt64;
  attributes @5 :List(AttributeValue);
  execAffinity @6 :List(AttributeValue);
}

struct AttributeValue {
  attribute @0 :UInt32;
  value @1 :Int32;
}

struct PeerFacts {
  from @0 :UInt32;
  to @1 :UInt32;
  canAccess @2 :Bool;
  attributes @3 :List(AttributeValue);
}

# --- while the session runs ------------------------------------------------------------------------------------------

struct LateError {
  # A call that nobody waited for failed. The client keeps the error and gives it to the thread that made the call, at
  # its next call that may report; a sticky error (the context is lost) goes to every thread.
  thread @0 :UInt32;
  opcode @1 :UInt16;
  result @2 :UInt32;              # CUresult
  context @3 :UInt32;
  address @4 :UInt64;             # of writeHostBlock, changeHostBlock, copyIn of changes: the word there was changed by
                                  # the GPU too, and the change of the GPU is lost
}

struct Passed {
  # The GPU has completed everything that was submitted before the fence of this number (operation `fence`).
  fence @0 :UInt64;
}

struct EventPassed {
  # The event has happened, of which a call (`cuEventQuery`) was told that it had not, or about which one (`watchEvent`)
  # wanted to hear: as it was recorded then, or later. Sent once after each such call, or after several together.
  event @0 :UInt64;
  call @1 :UInt32;                # number of the last of these calls, low 32 bits
  failed @2 :Bool;                # its work has; the client asks again, to hear how
}

struct Callback {
  # The stream has reached the host function of this number (operation `hostFunction`). The client runs it on its
  # service thread and answers `callbackDone`, unless it is `skipped`. Each number is sent once. The worker submits
  # nothing behind it before the answer.
  callback @0 :UInt64;
  result @1 :UInt32;              # CUresult of the stream, for cuStreamAddCallback
  part @2 :UInt64;                # not 0: a launch has reached this function of a graph; the worker made up `callback`
  skipped @3 :Bool;               # the worker does not call it: its stream has failed (and it is not `always`), or its
                                  # operation was refused. Nothing is answered. Only where the operation `hearsSkips`
}

struct CallbackDone {
  callback @0 :UInt64;
}

struct Pull {
  # A copy from pinned memory of the client has its turn on the stream: the client answers with one or more `pulled`
  # frames, in order, that hold what the memory contains now.
  pull @0 :UInt64;
  address @1 :UInt64;
  bytes @2 :UInt64;
  part @3 :UInt64;                # not 0: instead, all rows, packed, of this memory of a graph, which must be of so
                                  # many bytes
}

struct Pulled {
  # Followed by bulk bytes.
  pull @0 :UInt64;
  gone @1 :Bool;                  # no bytes: the program has freed the memory that a graph copies from
}

struct Deliver {
  # Followed by bulk bytes, which the client stores at this address of a pinned or coherent host block of its own.
  # Always sent before the reply or `passed` that tells of the completion of the work that produced it.
  address @0 :UInt64;
  part @1 :UInt64;                # not 0: `address` is an offset within the packed rows of this memory of a graph
  copy @2 :UInt32;                # not 0: the bytes are of the copy that was given this number (CopyOut.delivery)
  over @3 :Bool;                  # and there are none, for none come of it any more
}

struct Wanted {
  # Chunks of a transfer that the client offered with a `copyIn` from lanes. The first one says that the call is being
  # executed, and gives the chunks that were sent unasked back to what the client may so send
  # (limits::lane_early_chunks, over all transfers).
  transfer @0 :UInt32;
  chunks @1 :UInt32;              # those with a lower number may be sent now; never fewer than were said before
  over @2 :Bool;                  # the call has failed, or, of a `copyOut` to lanes, it has: no more chunks are wanted,
                                  # or come
}

struct Arriving {
  # What follows on this connection may tell of the completion of work whose bytes went by the lanes: nothing more is
  # read of it until the client has so many chunks.
  chunks @0 :UInt32;              # all that the worker has sent on the lanes, low 32 bits
}

struct LaneLost {
  # A bulk lane is of no use any more, which the worker may not have seen: it ends the session.
  text @0 :Text;
}

struct PeerWord {
  # What the workers at the ends of a link tell each other. The *source* has joined the link, the *target* was joined:
  # contents go from the source to the target.
  union {
    wanted @0 :Wanted;            # target -> source: chunks of a transfer may be sent
    begins @1 :UInt32;            # source -> target: the stream that the transfer waits for, at the source, is there
    landed @2 :UInt32;            # target -> source: all of the transfer lies where it belongs
    passed @3 :UInt64;            # source -> target: the event has happened that the client gave this number
  }
}

struct LinkLost {
  # A link of this session's worker is of no use any more. What went by it has ended with an error.
  link @0 :UInt32;
  text @1 :Text;
}

struct Released {
  # No graph needs this part any more (see NodeParameters in operations.capnp); the worker does not name it again.
  part @0 :UInt64;
}

struct Printed {
  # A kernel printed, an assertion of one failed, or the worker has a word for the person who runs the program: the
  # client writes the text to its own standard output (1) or standard error (2). Always sent before the reply that tells
  # of the completion of the kernel.
  descriptor @0 :UInt8;
  text @1 :Data;
}

struct Returned {
  # The session's device memory was away (docs/internals/eviction.md), and is back now. Microseconds, each after the one
  # before.
  bytes @0 :UInt64;
  leavingUs @1 :UInt64;           # until it had left
  awayUs @2 :UInt64;              # until the program needed it
  waitingUs @3 :UInt64;           # until there was room for it
  returningUs @4 :UInt64;
}

struct Settled {
  # Calls that took credit have been executed, or dropped with an error: so many bytes of them since the session began.
  # Sent now and then, and whenever the client may be waiting for it. A client that takes more credit than it has breaks
  # the protocol, as does a worker that settles more than was sent, or less than it has settled before.
  bytes @0 :UInt64;
}

struct Goodbye {
  # The sender ends the session in good order; it sends nothing more. To a client the text says why.
  text @0 :Text;
}

# --- status ----------------------------------------------------------------------------------------------------------

struct Status {
  hostName @0 :Text;
  version @1 :Text;
  driver @2 :Text;                # path of the driver library
  driverVersion @3 :UInt32;
  draining @4 :Bool;
  startedSeconds @5 :UInt64;      # Unix time
  devices @6 :List(DeviceStatus);
  sessions @7 :List(SessionStatus);
  warmWorkers @8 :UInt32;
  failure @9 :Failure;            # why there are no devices, if so
  sessionsMax @10 :UInt32;
  driverRelease @11 :Text;        # such as 580.95.05; empty if unknown
  sessionsTaken @12 :UInt32;      # of sessionsMax: those that run and those promised to clients on the way
  distances @13 :List(Distance);  # between devices, where the host's NVML tells
  peers @14 :List(PeerFacts);
  leases @15 :List(LeaseStatus);  # those of the asking tenant
  tenant @16 :Text;               # the asking tenant, as the broker sees it
  policy @17 :Text;               # how devices are shared
  quantumMs @18 :UInt32;
  graceMs @19 :UInt32;
  state @20 :HostState;           # of a host that serves no new session, `draining` is true as well
  stateUntil @21 :UInt64;         # Unix time at which that state ends; 0: it does not end by itself
  tenants @22 :List(TenantStatus);  # the tenant that asks; all, for an administrator
  waiting @23 :List(WaiterStatus);  # requests for leases that wait, in the order of their arrival, of the same tenants
  identity @24 :Identity;         # of the client that asks
  links @25 :List(Link);          # of devices, where the host's NVML tells
  pool @26 :PoolStatus;           # of the pool of which the host is a member; null: of none
}

struct PoolStatus {
  # A pool as its registry has it (docs/internals/registry.md).
  name @0 :Text;
  trouble @1 :Text;               # why the registry is of no use now; empty: it answers
  placer @2 :Text;                # the host that places leases now; empty: none
  hosts @3 :List(PoolHost);
  waiting @4 :List(WaiterStatus); # of the asking tenant, or all for an administrator, in the order in which they are
                                  # served
  tenants @5 :List(TenantStatus); # what the pool allows and what they have of it; which ones, as in Status
  member @6 :Text;                # the host's own name in the pool
  more @7 :UInt32;                # hosts that are not told of, because there are too many
  away @8 :List(PoolHost);        # hosts that were members lately
  ageSeconds @9 :UInt32;          # while there is trouble: how long ago all this was so
  nameTaken @10 :Bool;            # the trouble is another host of this one's name
}

struct PoolHost {
  name @0 :Text;
  address @1 :Text;               # as in FARGPU_POOL
  state @2 :HostState;
  model @3 :Text;                 # of its first device
  devices @4 :UInt32;
  freeDevices @5 :UInt32;         # on which no lease has anything
  memoryBytes @6 :UInt64;         # of all its devices
  freeBytes @7 :UInt64;           # of that, not kept for leases and not used
  leases @8 :UInt32;
  sessionsMax @9 :UInt32;
  version @10 :Text;
  identity @11 :Text;             # as in LeasePlace
}

struct Identity {
  # By what the broker knows a client.
  enum Kind {
    unknown @0;                   # the broker is older than this message
    nothing @1;                   # the client has shown nothing: it is of the tenant `default`
    token @2;
    certificate @3;
    key @4;                       # a shared key
    user @5;                      # of the GPU host, by its Unix socket
  }
  kind @0 :Kind;
  name @1 :Text;                  # of the token or the key, the certificate's common name, the user's number
  expiresSeconds @2 :UInt64;      # Unix time at which the token or the certificate ends; 0: it does not
  administrator @3 :Bool;         # the client may administer the host
}

enum HostState {
  serving @0;
  draining @1;                    # no new sessions; those that run go on
  stopping @2;                    # no new sessions; those that run end at `stateUntil`, and fargpud with them
}

struct TenantStatus {
  # What a tenant may have of this host, and what it has. A limit of 0 is none.
  name @0 :Text;
  memoryLimitBytes @1 :UInt64;    # on all devices together
  memoryBytes @2 :UInt64;         # kept for its leases, or used by them
  computeLimitPercent @3 :UInt32; # of all devices together, 100 for each
  computePercent @4 :UInt32;
  sessionsLimit @5 :UInt64;
  sessions @6 :UInt64;
  leases @7 :UInt32;
  waiting @8 :UInt32;             # requests for leases in the queue
  priority @9 :Priority;          # the highest that it may ask for
  weight @10 :UInt32;
  devices @11 :List(UInt32);      # that it may use, by their numbers at the host; empty: all
  hostMemoryLimitBytes @12 :UInt64;  # of the host's memory, for the sessions of each lease together
  hostMemoryBytes @13 :UInt64;    # what the lease that holds most of it holds
}

struct WaiterStatus {
  tenant @0 :Text;
  program @1 :Text;
  hostName @2 :Text;
  processId @3 :UInt32;           # of the client
  sinceSeconds @4 :UInt64;        # Unix time
  gpus @5 :UInt32;                # what it asks for, as in LeaseRequest
  memoryBytes @6 :UInt64;
  computePercent @7 :UInt32;
  reason @8 :Text;                # what it waits for
}

struct AdministrationRequest {
  # What an administrator of the host asks for (see Broker::may_administer). All of it lasts until the broker ends.
  union {
    policy @0 :Text;              # how devices are shared
    share @1 :ShareChange;
    endSession @2 :UInt64;        # the session ends, and its program is told so; a second request kills its worker
    drain @3 :UInt64;             # no new sessions for so many seconds; 0: until `resume`
    resume @4 :Void;              # new sessions again
    evict @5 :UInt64;             # the session's device memory goes to the host's, until the session needs it
    poolTenant @6 :PoolTenant;    # of the pool of which the host is a member
  }
}

struct PoolTenant {
  # What a tenant may have of all hosts of a pool together. A limit of 0 is none. It lasts until it is changed.
  name @0 :Text;
  memoryBytes @1 :UInt64;
  computePercent @2 :UInt32;      # of all devices together, 100 for each
  leases @3 :UInt32;
  weight @4 :UInt32;              # in the queue, against other tenants; 0: 100
  forget @5 :Bool;                # no limits any more, and the usual weight
}

struct ShareChange {
  session @0 :UInt64;             # any of the lease
  computePercent @1 :UInt32;      # 0: as it is
  weight @2 :UInt32;              # 0: as it is
}

struct ContentsRequest {
  # What the host keeps of a tenant's contents of memory.
  tenant @0 :Text;                # empty: the client's own; another one's only for an administrator
  clear @1 :Bool;                 # it is to keep nothing any more, until something is sent again
}

struct ContentsAnswer {
  failure @0 :Failure;            # reason none: what follows is told
  tenant @1 :Text;
  bytes @2 :UInt64;               # that are kept; after `clear`: that were
  blocks @3 :UInt64;
  bytesMax @4 :UInt64;            # that may be; 0: nothing is kept at this host
  knownBytes @5 :UInt64;          # that sessions of the tenant did not have to send, since the broker began
  keptBytes @6 :UInt64;           # that they sent and the host has kept, since then
}

struct AdministrationAnswer {
  failure @0 :Failure;            # reason none: done
}

struct LeaseStatus {
  id @0 :UInt64;
  tenant @1 :Text;
  devices @2 :List(UInt32);       # by their places in `devices`
  memoryBytes @3 :UInt64;         # of each device; 0: no limit of its own
  computePercent @4 :UInt32;
  priority @5 :Priority;
  sessions @6 :UInt32;
  sharePercent @7 :UInt32;        # what the scheduler keeps to, which may have been changed since
  weight @8 :UInt32;
  hasTurn @9 :Bool;               # its sessions may give work now
  turns @10 :UInt64;
  overruns @11 :UInt64;           # turns after whose grace work still went on
  heldBack @12 :UInt64;           # turns that one of higher priority took away
  bandwidthBytes @13 :UInt64;     # a second, over the network, to and from its sessions together; 0: no limit
  movedBytes @14 :UInt64;         # by its present sessions, over the network
  state @15 :LeaseState;
  waitingSince @16 :UInt64;       # of one that waits: Unix time
}

enum LeaseState {
  idle @0;                        # it is held, and has no session
  running @1;                     # it has sessions
  waiting @2;                     # it has no session, and a process of its job waits for one
  ending @3;                      # its sessions were told to end
}

struct Distance {
  from @0 :UInt32;
  to @1 :UInt32;
  level @2 :UInt32;               # nvmlGpuTopologyLevel_t
  peerStatus @3 :List(UInt8);     # nvmlGpuP2PStatus_t, by nvmlGpuP2PCapsIndex_t; empty if NVML does not tell
}

struct Link {
  # An NVLink that is up.
  device @0 :UInt32;              # by its place in `devices`
  number @1 :UInt32;
  version @2 :UInt32;
  capabilities @3 :UInt32;        # a bit for each nvmlNvLinkCapability_t
  remoteType @4 :UInt32;          # nvmlIntNvLinkDeviceType_t
  remoteDomain @5 :UInt32;        # PCI, of the device or switch at the other end
  remoteBus @6 :UInt32;
  remotePciDevice @7 :UInt32;
  remotePciDeviceId @8 :UInt32;
  remoteBusId @9 :Text;           # as NVML writes it: no address where a virtual machine does not see the switch
  remoteBusIdLegacy @10 :Text;
}

struct Reading {
  # What the host's NVML says of a device now. What it does not know is not there.
  enum Kind {
    gpuUtilisation @0;            # percent
    memoryUtilisation @1;
    encoderUtilisation @2;
    decoderUtilisation @3;
    temperature @4;               # degrees Celsius
    memoryTemperature @5;
    power @6;                     # milliwatts
    powerLimit @7;
    powerLimitEnforced @8;
    powerLimitDefault @9;
    energy @10;                   # millijoules since the driver was loaded
    graphicsClock @11;            # MHz
    smClock @12;
    memoryClock @13;
    videoClock @14;
    graphicsClockMax @15;
    smClockMax @16;
    memoryClockMax @17;
    videoClockMax @18;
    clockReasons @19;             # why clocks are held down: bits of NVML's
    fanSpeed @20;                 # percent
    performanceState @21;         # numbers of NVML's enumerations, as all below
    persistenceMode @22;
    computeMode @23;
    eccMode @24;
    eccModePending @25;
    brand @26;
    pcieGeneration @27;
    pcieWidth @28;
    pcieGenerationMax @29;
    pcieWidthMax @30;
  }
  kind @0 :Kind;
  value @1 :Int64;
}

struct DeviceStatus {
  name @0 :Text;
  uuid @1 :Data;
  memoryBytes @2 :UInt64;
  usedBytes @3 :UInt64;           # held by sessions of this broker
  pciDomain @4 :UInt32;
  pciBus @5 :UInt32;
  pciDevice @6 :UInt32;
  computeCapability @7 :UInt32;   # 10 * major + minor
  pciDeviceId @8 :UInt32;         # vendor in the lower half, as NVML has it; 0 if unknown
  pciSubSystemId @9 :UInt32;      # as pciDeviceId
  attributes @10 :List(AttributeValue);
  readings @11 :List(Reading);
  freeBytes @12 :UInt64;          # that a new lease could be given
}

struct SessionStatus {
  id @0 :UInt64;
  program @1 :Text;
  hostName @2 :Text;
  processId @3 :UInt32;           # of the client
  workerId @4 :UInt32;            # process id of the worker
  startedSeconds @5 :UInt64;
  memoryBytes @6 :List(UInt64);   # per device
  calls @7 :UInt64;
  lease @8 :UInt64;
  tenant @9 :Text;
  busyNs @10 :List(UInt64);       # for which each device of its lease had work of it, since it began
  waitedNs @11 :UInt64;           # for which it had work and no turn
  sharedMemory @12 :Bool;          # client and worker share memory
  ending @13 :Bool;                # it was told to end
  resumingSeconds @14 :UInt64;     # Unix time since when its connection is broken; 0: it is not
  residency @15 :Residency;
  residencySeconds @16 :UInt64;    # Unix time since when it is so; 0: from the beginning
  awayBytes @17 :UInt64;           # of `memoryBytes`, on all devices, that lie in the host's memory or on its disk
  staysBecause @18 :Text;          # why it was not evicted when that was last wanted
  knownBytes @19 :UInt64;          # of contents that the host had, and it did not send
  awayHostBytes @20 :UInt64;       # of the host's memory that hold `awayBytes`; zeros take none
  awayDiskBytes @21 :UInt64;       # and of its disk
  hostBytes @22 :UInt64;           # of the host's memory, that only its worker has; with `awayHostBytes`
  rdma @23 :Bool;                  # client and worker talk by RDMA
}

enum Residency {
  # Where the device memory of a session is (docs/internals/eviction.md).
  resident @0;
  leaving @1;                     # what it was given is completed, then its memory is copied to the host's
  evicted @2;                     # until its program needs it
  waiting @3;                     # its program needs memory of a device that has no room
  returning @4;
}
