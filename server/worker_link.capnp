@0xe1f4c07b5d3a9826;
# What a broker and its worker tell each other, over a socket pair of packets: one message, one packet. When the broker's end closes,
# a worker without a session ends; one with a session goes on.

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

    # broker -> worker
    session @4 :Session;    # with the connection's descriptor: serve it
    stop @5 :Text;          # end the session (or, if there is none, end) and tell the client why
  }
}

struct Ready {
  facts @0 :Control.HostFacts;
}

struct Usage {
  memoryBytes @0 :List(UInt64);
  calls @1 :UInt64;
}

struct Session {
  id @0 :UInt64;
  attach @1 :Data;          # the client's first frame, already read: its message
  peer @2 :Text;            # for logs
}
