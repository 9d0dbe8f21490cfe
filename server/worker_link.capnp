@0xe1f4c07b5d3a9826;
# What a broker and its worker tell each other, over a socket pair of packets: one message, one packet. When the
# broker's end closes, a worker without a session ends; one with a session goes on, and the host's next broker may come
# to its door.

using Cxx = import "/capnp/c++.capnp";
using Control = import "/control.capnp";
$Cxx.namespace("fargpu::wire");

struct WorkerMessage {
  union {
    # worker -> broker
    ready @0 :Ready;        # first: the driver is initialised
    failed @1 :Text;        # first, instead: why it cannot be; the worker ends
    usage @2 :Usage;        # now and then, while a session runs
    ended @3 :Text;         # the session is over, and why; the worker ends
    share @6 :Share;        # what other sessions may have by this key, with its descriptor if it has one; until the
                            # session ends
    unshare @7 :Data;       # by its key: no longer; answered by `unshared`
    fetch @8 :Fetch;        # what another session shares; answered by `fetched`
    letGo @14 :Data;        # memory that was fetched by this key, once, is held no more

    activity @11 :Activity; # what the session does, where others hear of it
    resuming @17 :Resuming; # the client's connection broke, or is back
    admit @18 :Data;        # connections of a link by this key are let in from now on; answered by `admitted`
    shutOut @19 :Data;      # no longer
    dial @20 :Dial;         # a connection to another host's broker is wanted; answered by `dialled`
    told @32 :Text;         # a line about the session, for the broker's log
    residency @28 :ResidencyNews;  # where the session's device memory is, from now on
    wantRoom @29 :RoomWish; # memory of devices is wanted that they do not have; answered by `room`. Said again, with
                            # its number, until it is

    # worker -> a broker that came to its door, in this order
    kept @23 :Data;         # with the account's descriptor: the record of the session, as it was given
    holds @24 :Holds;       # memory of another session that this one has
    shares @25 :Share;      # as `share`
    admits @26 :Data;       # as `admit`, and not answered
    recounted @27 :Resuming;  # that was all; `since` is 0 but while the client is away

    # broker -> worker
    account @10 :Void;      # with a descriptor: the account of the session's tenant; right before `session`
    session @4 :Session;    # with the connection's descriptor: serve it
    stop @5 :Text;          # end the session (or, if there is none, end) and tell the client why
    notice @16 :Text;       # a line for the person who runs the session's program
    fetched @9 :Fetched;    # with the descriptor of what was shared, if it has one
    unshared @15 :Data;     # a session that still has the memory of this key pays for it now
    lane @13 :Data;         # with a connection's descriptor: the first frame on it, a request to be a bulk lane,
                            # already read
    admitted @21 :Data;
    dialled @22 :Dialled;   # with the connection's descriptor, if there is one
    evict @30 :Evict;       # device memory of the session goes to the host, or to the file whose descriptor comes with
                            # it; answered by `residency`
    room @31 :Room;
    turn @12 :Turn;         # which work the session may give to its devices from now on; first, right behind `session`
  }
}

struct Ready {
  facts @0 :Control.HostFacts;
  smGroups @1 :List(UInt32);  # into how many groups of multiprocessors each device can be divided; 0: not at all
  release @2 :Text;           # of the worker's build, which is the broker's
  rdma @3 :List(RdmaInterface);  # those of this machine with an address in the networks of the setting rdma_networks
}

struct RdmaInterface {
  name @0 :Text;
  devices @1 :Text;         # by which RDMA is offered there, as UCX names them
  whyNone @2 :Text;         # not empty: why it is not
}

struct Usage {
  calls @0 :UInt64;
  busyNs @1 :List(UInt64);  # for which each device had work of the session, since it began
  waitedNs @2 :UInt64;      # for which it had work and no turn
  knownBytes @3 :UInt64;    # of contents that the host had, and the session did not send
  keptBytes @4 :UInt64;     # that it sent and the host has kept
  imagesNotKept @5 :UInt64; # images that it sent and the folder has not taken
  byRdma @6 :Bool;          # client and worker talk by RDMA
}

struct Resuming {
  since @0 :UInt64;         # Unix time; 0: the client is back
  peer @1 :Text;            # from where, for logs
  why @2 :Text;             # the connection broke
}

# Turns: see server/scheduler. Times are nanoseconds of CLOCK_MONOTONIC, 2^63 - 1 is never.

struct Turn {
  granted @0 :Bool;         # it may give work
  quiet @1 :Bool;           # and need not say what it does
  untilNs @2 :Int64;        # it gives none after this
  aheadNs @3 :Int64;        # how much, as it expects, it may give before earlier work is complete
  number @4 :UInt64;        # of this word
}

struct Activity {
  wants @0 :Bool;           # it has work that it may not give
  busy @1 :Bool;            # work that it gave is not complete
  number @2 :UInt64;        # of the last word that it had heard
  sinceNs @3 :Int64;        # when this became so
}

struct Session {
  id @0 :UInt64;
  attach @1 :Data;          # the client's first frame, already read: its message
  peer @2 :Text;            # for logs
  ticketName @3 :Data;      # not empty: the connection speaks TLS, with this identity and
  ticket @4 :Data;          # this key; `attach` is still to come on it
  memoryBytes @5 :UInt64;   # of each device that the session's lease may hold; 0: no limit of its own
  slot @6 :UInt32;          # the session's, in the account
  imageFolder @7 :Text;     # of its tenant; empty for none
  kernelSecondsMax @8 :UInt32;  # for which the GPU may complete nothing; 0 for no limit
  scrub @9 :Bool;           # memory that others had becomes zeros before the session sees it
  laneKey @10 :Data;        # by which the session's bulk lanes are known
  contentFolder @12 :Text;  # of its tenant's contents of memory; empty for none
  unused @15 :Data;
  resumeSeconds @11 :UInt32;  # for which a client is waited for whose connection broke; 0: it is not
  record @13 :Data;         # that the worker keeps for the host's next broker; empty where none will come
  evicts @14 :Bool;         # sessions of this host are evicted, so that it pays to ask for room
}

struct ResidencyNews {
  state @0 :Control.Residency;
  awayBytes @1 :List(UInt64);   # of each of the session's devices: of what it is charged, what is not on the device
  hostBytes @2 :UInt64;         # of the host's memory that holds them
  refusal @3 :Text;             # not empty: it was told to evict and stays resident, and why
  busy @4 :Bool;                # it stays because it is at work, and may leave later
  order @5 :UInt64;             # number of the last `evict` that it has heard, which this answers; 0: of none
  diskBytes @6 :UInt64;         # of the host's disk that holds them
  restBytes @7 :List(UInt64);   # of each device: what has not left, and could; empty while nothing has left
}

struct Evict {
  hostBytesMax @0 :UInt64;      # of the host's memory that may hold what leaves
  patienceMs @1 :UInt32;        # for which work that was given may take to complete; the program's calls wait meanwhile
  number @2 :UInt64;
  diskBytesMax @3 :UInt64;      # of the file, where the host's memory has no room
  leaveBytes @4 :List(UInt64);  # of each of the session's devices, what is to leave at least; empty: all of them
}

struct RoomWish {
  request @0 :UInt64;
  bytes @1 :List(UInt64);       # of each of the session's devices
  needed @2 :Bool;              # the session goes on only with it; otherwise a call of its program can fail
}
struct Room {
  request @0 :UInt64;
  made @1 :Bool;                # or there is nobody more that could make room
}

struct Dial {
  request @0 :UInt64;
  host @1 :Text;
  port @2 :UInt16;
}
struct Dialled {
  request @0 :UInt64;
  failure @1 :Text;         # not empty: why there is no connection
}

struct Share {
  key @0 :Data;             # 16 bytes
  device @1 :Int32;         # on which the memory lies; -1 for an event
  bytes @2 :UInt64;         # of the memory
  event @3 :Data;           # the driver's handle of an event for other processes
  cameBy @4 :Data;          # of memory that the session has of another one: the key by which it was fetched
}

struct Fetch {
  request @0 :UInt64;
  key @1 :Data;
}
struct Fetched {
  request @0 :UInt64;
  share @1 :Share;          # not given: nothing is shared by this key
}

struct Holds {
  key @0 :Data;             # by which it was fetched
  device @1 :Int32;
  bytes @2 :UInt64;
  times @3 :UInt32;         # so often
}

# What a broker leaves with the worker of a session for the next one, sealed by a key that workers do not have.
struct SessionRecord {
  process @0 :Int32;        # the worker's
  session @1 :UInt64;
  startedMs @2 :UInt64;     # Unix time
  release @3 :Text;         # of the broker that began it
  laneKey @4 :Data;
  client @5 :ClientRecord;
  slot @6 :UInt32;          # in the account
  account @7 :UInt64;       # the inode of its memory
  lease @8 :LeaseRecord;
  accountLayout @9 :UInt32; # of the account's memory
}

struct ClientRecord {
  program @0 :Text;
  hostName @1 :Text;
  processId @2 :UInt32;
  peer @3 :Text;
  tenant @4 :Text;
  identity @5 :Text;
  sharesMemory @6 :Bool;
  byLoopback @7 :Bool;
}

struct LeaseRecord {
  id @0 :UInt64;
  devices @1 :List(Data);   # their UUIDs
  memoryBytes @2 :UInt64;   # of each; 0: none is kept
  computePercent @3 :UInt32;
  priority @4 :Control.Priority;
  job @5 :Data;             # empty: none
  mps @6 :Text;
  smGroups @7 :Text;
}
