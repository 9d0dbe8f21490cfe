"""The rules of the spec: each fault stops the generator, with a line that names file, function, parameter and
repair."""

import re
import unittest

from rig import SOURCE, GeneratorTest

# What is wrong: file, text that becomes other text (or is added, where there is none); what the generator says.
FAULTS = {
    "nobody decided on a call": (
        "spec/driver.toml", 'symbols = ["cuStreamSetAttribute"]', "symbols = []",
        "cuda.h: cuStreamSetAttribute (line 41): [undecided] is neither generated, local, special nor refused; add it "
        "to a file of "
        "codegen/spec"),
    "two files decide on a call": (
        "spec/driver.toml", '["cuProfilerStart"]', '["cuProfilerStart", "cuBoxOpen"]',
        "driver.toml: cuBoxOpen: [twice] is decided already in box.toml; keep one of the two"),
    "a list names what is no symbol": (
        "spec/driver.toml", '["cuProfilerStart"]', '["cuProfilerStart", "cuProfilerStrat"]',
        "driver.toml: cuProfilerStrat: [unknown-name] the toolkit exports no such symbol; remove or correct it"),
    "a list names a per-thread twin": (
        "spec/driver.toml", '["cuProfilerStart"]', '["cuProfilerStart", "cuBoxFillAsync_ptsz"]',
        "driver.toml: cuBoxFillAsync_ptsz: [unknown-name] the toolkit exports no such symbol; remove or correct it"),
    "a call is no symbol": (
        "spec/box.toml", "", '[calls.cuBoxShut]\nmode = "barrier"\n',
        "box.toml: cuBoxShut: [unknown-name] the toolkit exports no such symbol; remove or correct it"),
    "a capture forbids what is no symbol": (
        "spec/driver.toml", 'unsafe = ["cuBoxCreate"]', 'unsafe = ["cuBoxMake"]',
        "driver.toml: capture, cuBoxMake: [unknown-name] the toolkit exports no such symbol; remove or correct it"),
    "an output that is cleared is no pointer": (
        "spec/driver.toml", 'unsafe = ["cuBoxCreate"]', 'unsafe = ["cuBoxCreate"]\n[cleared]\ncuBoxCreate = ["flags"]',
        "driver.toml: cleared, cuBoxCreate: [unknown-name] 'flags' is no pointer parameter; remove or correct it"),
    "a section is misspelt": (
        "spec/box.toml", "[[special]]", "[[specials]]",
        "box.toml: sections: [unknown-key] 'specials' means nothing here; known are attributes, calls, capture, "
        "cleared, forms, launch_attributes, "
        "local, narrows, operations, refused, special, structs",
        "cuda.h: cuBoxOpen (line 51): [undecided] is neither generated, local, special nor refused; add it to a file "
        "of codegen/spec"),

    "room is to be made for what nobody waits for": (
        "spec/box.toml", '[calls.cuBoxDestroy]\n', "[calls.cuBoxDestroy]\nroom = true\n",
        "box.toml: cuBoxDestroy: [room] room is made for calls that the client's generated half waits for and that are "
        "on no stream; "
        "remove it, or use wait_with_room where the call is made by hand"),

    "a special call has no reason": (
        "spec/box.toml", 'why = "contents are opened in the client (operation openBox)"\n', "",
        'box.toml: [[special]] cuBoxOpen: [reason] special calls need a reason: add why = "..."'),
    "a refused call has no reason": (
        "spec/box.toml", 'why = "sizes have 64 bits"\n', "",
        'box.toml: [[refused]] cuBoxGetSize: [reason] refused calls need a reason: add why = "..."'),
    "a half served by hand has no reason": (
        "spec/box.toml", 'why = "the worker weighs them first"\n', "",
        'box.toml: cuBoxSetWeights: [reason] is served by hand and needs a reason: add why = "..."'),
    "an operation has no reason": (
        "spec/box.toml", 'why = "contents come piece by piece"\n', "",
        'box.toml: openBox: [reason] an operation is hand-written and needs a reason: add why = "..."'),
    "an attribute of our own has no reason": (
        "spec/driver.toml", ', why = "not served"', "",
        'driver.toml: CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: [reason] a value of our own needs a reason: add why = "..."'),
    "a local call has no topic": (
        "spec/driver.toml", 'topic = "stream"\n', "",
        'driver.toml: [[local]] cuStreamSetAttribute: [topic] name the file of the hand-written function: add topic = '
        '"..."'),
    "a refused call answers no CUresult": (
        "spec/box.toml", '"INVALID_VALUE"', '"INVALID_BOX"',
        "box.toml: [[refused]] cuBoxGetSize: [unknown-name] CUDA_ERROR_INVALID_BOX is no CUresult"),
    "a key of a list is misspelt": (
        "spec/driver.toml", "before_init = true", "befor_init = true",
        "driver.toml: [[special]] cuInit: [unknown-key] 'befor_init' means nothing here; known are before_init, error, "
        "symbols, topic, "
        "why"),

    "a call has no mode": (
        "spec/box.toml", 'mode = "cached"\n', "",
        "box.toml: cuBoxGetColour: [mode] mode must be one of deferred, barrier, cached, either"),
    "an operation has no mode": (
        "spec/box.toml", 'reply = "OpenBoxReply"\nmode = "barrier"', 'reply = "OpenBoxReply"',
        "box.toml: openBox: [mode] mode must be one of deferred, barrier, cached, either"),
    "a call needs a context of no kind": (
        "spec/box.toml", 'context = "none"', 'context = "any"',
        "box.toml: cuBoxGetColour: [context] context must be one of current, none, optional"),
    "an operation needs a context of no kind": (
        "spec/box.toml", 'request = "OpenBox"\n', 'request = "OpenBox"\ncontext = "any"\n',
        "box.toml: openBox: [context] context must be one of current, none, optional"),
    "the client's half is of no kind": (
        "spec/box.toml", 'server = "hand"\n', 'server = "hand"\nclient = "none"\n',
        "box.toml: cuBoxSetWeights: [client] client must be one of generated, hand"),
    "the worker's half is of no kind": (
        "spec/box.toml", 'server = "hand"\n', 'server = "hands"\n',
        "box.toml: cuBoxSetWeights: [server] server must be one of generated, hand, none"),
    "a key of a call is misspelt": (
        "spec/box.toml", "aside = true\n", "asides = true\n",
        "box.toml: cuBoxDestroy: [unknown-key] 'asides' means nothing here; known are after_held, alike, as, aside, "
        "asks, checks, client, context, crew, driver_room, forgotten_by, launches, mode, names_memory, params, "
        "records, releases, room, server, stream, turn, waits_for, why"),
    "a key of an operation is misspelt": (
        "spec/box.toml", 'reply = "OpenBoxReply"', 'replies = "OpenBoxReply"',
        "box.toml: openBox: [unknown-key] 'replies' means nothing here; known are after_held, alike, asks, attributes, "
        "context, crew, driver_room, "
        "dropped, forgotten_by, handles, held, mode, names_memory, passes_functions, reply, request, staged, "
        "stream, taken_for_done, turn, why"),
    "an operation has the request of another": (
        "spec/box.toml", "", '[operations.shutBox]\nrequest = "OpenBox"\nmode = "barrier"\nwhy = "the lid is heavy"\n',
        "box.toml: shutBox: [request] openBox has this request already; a request names one operation: give it a "
        "struct of its own"),
    "an operation has no request": (
        "spec/box.toml", 'request = "OpenBox"\n', "",
        'box.toml: openBox: [request] name its struct of protocol/operations.capnp: add request = "..."'),
    "work is ordered on what is no parameter": (
        "spec/box.toml", 'stream = "hStream"', 'stream = "stream"',
        "box.toml: cuBoxFillAsync: [unknown-name] stream 'stream' is no parameter"),
    "a call waits for what is no parameter": (
        "spec/box.toml", 'stream = "hStream"', 'stream = "hStream"\nwaits_for = "hEvent"',
        "box.toml: cuBoxFillAsync: [unknown-name] waits_for 'hEvent' is no parameter"),
    "a call records what is no parameter": (
        "spec/box.toml", 'stream = "hStream"', 'stream = "hStream"\nrecords = "hEvent"',
        "box.toml: cuBoxFillAsync: [unknown-name] records 'hEvent' is no parameter"),
    "a call launches what is no parameter": (
        "spec/box.toml", 'launches = "address"', 'launches = "box"',
        "box.toml: cuBoxFillAsync: [unknown-name] launches 'box' is no parameter"),
    "calls are alike in what is no parameter": (
        "spec/box.toml", 'alike = ["bytes"]', 'alike = ["bytes", "lid"]',
        "box.toml: cuBoxFillAsync: [unknown-name] alike names 'lid', which is no parameter"),
    "calls are alike that need no turn": (
        "spec/box.toml", 'turn = true\nlaunches', "launches",
        "box.toml: cuBoxFillAsync: [alike] tells how long the GPU takes for what it is given in a turn: add turn = "
        "true, or remove it"),
    "a call that gives work only asks": (
        "spec/box.toml", 'turn = true\nlaunches', "turn = true\nasks = true\nlaunches",
        "box.toml: cuBoxFillAsync: [asks] what only asks gives no work and takes no memory: remove it, or turn, "
        "stream, room and driver_room"),
    "a call names its memory without an address": (
        "spec/box.toml", "aside = true\n", "aside = true\nnames_memory = true\n",
        'box.toml: cuBoxDestroy: [names_memory] there is no address that the GPU is to use: add device = "use" to a '
        "parameter, or remove names_memory"),
    "operations are alike that need no turn": (
        "spec/box.toml", 'turn = true\nalike = ["shape", "lid"]', 'alike = ["shape", "lid"]',
        "box.toml: openBox: [alike] tells how long the GPU takes for what it is given in a turn: add turn = true, or "
        "remove it"),
    "a call is served beside launches at no known time": (
        "spec/box.toml", 'crew = "always"', 'crew = "sometimes"',
        "box.toml: cuBoxFillAsync: [crew] crew must be one of always, awaited"),
    "an operation is served beside launches at no known time": (
        "spec/box.toml", 'crew = "awaited"', 'crew = "later"',
        "box.toml: openBox: [crew] crew must be one of always, awaited"),
    "an operation on no stream records events and is taken for done": (
        "spec/box.toml", 'mode = "barrier"\nstream = "stream"\n', 'mode = "barrier"\n',
        'box.toml: openBox: [stream] attributes is about work on a stream: add stream = "...", or remove it',
        'box.toml: openBox: [stream] taken_for_done is about work on a stream: add stream = "...", or remove it'),
    "a call travels as none": (
        "spec/box.toml", 'as = "cuBoxFillAsync"', 'as = "cuBoxFillLater"',
        "box.toml: cuBoxFill: [unknown-name] as = 'cuBoxFillLater' is no call"),
    "what a call answers is forgotten by none": (
        "spec/box.toml", '["cuBoxSetWeights"]', '["cuBoxSetColour"]',
        "box.toml: cuBoxGetColour: [unknown-name] forgotten_by names 'cuBoxSetColour', which is neither call nor "
        "operation"),
    "what an operation answers is forgotten by none": (
        "spec/box.toml", '["cuBoxDestroy"]', '["cuBoxBurn"]',
        "box.toml: openBox: [unknown-name] forgotten_by names 'cuBoxBurn', which is neither call nor operation"),
    "a deferred operation has an answer": (
        "spec/box.toml", 'reply = "OpenBoxReply"\nmode = "barrier"', 'reply = "OpenBoxReply"\nmode = "deferred"',
        "box.toml: openBox: [deferred] a deferred operation cannot return a 'OpenBoxReply'; make it a barrier, or "
        "either"),
    "generated code is to decide whether a call is awaited": (
        "spec/box.toml", '[calls.cuBoxDestroy]\nmode = "deferred"', '[calls.cuBoxDestroy]\nmode = "either"',
        'box.toml: cuBoxDestroy: [either] what decides whether it is awaited is written by hand: add client = "hand"'),
    "a deferred call has an answer": (
        "spec/box.toml", 'mode = "cached"', 'mode = "deferred"',
        "box.toml: cuBoxGetColour: [deferred] a deferred call cannot return 'colour'; make it a barrier, or the output "
        "a handle that the "
        "client creates"),

    "a parameter is misspelt": (
        "spec/box.toml", "params.dev = {", "params.device = {",
        "box.toml: cuBoxCreate, parameter device: [unknown-name] there is no such parameter; remove or correct it"),
    "a key of a parameter is misspelt": (
        "spec/box.toml", "ordinal = true", "ordinals = true",
        "box.toml: cuBoxCreate, parameter dev (CUdevice): [unknown-key] 'ordinals' means nothing here; known are "
        "aligned, count, "
        "count_inout, creates, destroys, device, dir, extent, known, missing, optional, ordinal, range"),
    "a range has one bound": (
        "spec/box.toml", "params.dev = { ordinal = true }", "params.dev = { range = [1] }",
        "box.toml: cuBoxCreate, parameter dev (CUdevice): [range] a range is of a number, and has two bounds: "
        "[least, most]"),
    "a pointer has no direction": (
        "spec/box.toml", 'params.colour = { dir = "out" }\n', "",
        'box.toml: cuBoxGetColour, parameter colour (CUcolour *): [direction] a pointer to non-const may go either '
        'way: add dir = "in", '
        '"out" or "inout"',
        'box.toml: cuBoxGetColour, parameter colour (CUcolour *): [count] an input pointer to scalars needs count = '
        '"..."'),
    "a direction is none": (
        "spec/box.toml", 'params.colour = { dir = "out" }', 'params.colour = { dir = "back" }',
        "box.toml: cuBoxGetColour, parameter colour (CUcolour *): [direction] direction must be one of in, out, inout"),
    "a value should come out": (
        "spec/box.toml", "params.dev = { ordinal = true }", 'params.dev = { dir = "out" }',
        "box.toml: cuBoxCreate, parameter dev (CUdevice): [direction] nothing can come out of a value or by a pointer "
        "to const; leave dir "
        "away"),
    "something should come out by a pointer to const": (
        "spec/box.toml", "params.dev = { ordinal = true }", 'params.shape = { dir = "inout" }',
        "box.toml: cuBoxCreate, parameter shape (const CUboxShape *): [direction] nothing can come inout of a value or "
        "by a pointer to "
        "const; leave dir away"),
    "a list has no length": (
        "spec/box.toml", '{ count = "count", optional = true }', "{ optional = true }",
        'box.toml: cuBoxSetWeights, parameter weights (const float *): [count] an input pointer to scalars needs count '
        '= "..."'),
    "the length of a list cannot change": (
        "spec/box.toml", '{ count = "count", optional = true }', '{ count_inout = "count", optional = true }',
        "box.toml: cuBoxSetWeights, parameter count (unsigned int): [count] cannot be told how many there were, as it "
        "is no pointer; use "
        "count instead of count_inout"),
    "a length is counted by what is no parameter": (
        "spec/box.toml", '{ count = "count", optional = true }', '{ count = "2 * number", optional = true }',
        "box.toml: cuBoxSetWeights, parameter weights (const float *): [unknown-name] count names 'number', which is "
        "no parameter"),
    "an extent is measured by what is no parameter": (
        "spec/box.toml", 'extent = "bytes"', 'extent = "byte"',
        "box.toml: cuBoxFillAsync, parameter address (CUdeviceptr): [unknown-name] extent names 'byte', which is no "
        "parameter"),
    "an address that is used has no extent": (
        "spec/box.toml", ', extent = "bytes"', "",
        "box.toml: cuBoxFillAsync, parameter address (CUdeviceptr): [extent] an address that is used needs its extent "
        "in bytes"),
    "an address is used in no known way": (
        "spec/box.toml", 'device = "use", extent = "bytes"', 'device = "used"',
        "box.toml: cuBoxFillAsync, parameter address (CUdeviceptr): [device] device must be one of use, value",
        'box.toml: cuBoxFillAsync: [names_memory] there is no address that the GPU is to use: add device = "use" to a '
        "parameter, or remove names_memory"),
    "a parameter is of a type that cannot travel": (
        "spec/box.toml", '[[special]]\ntopic = "box"\nwhy = "contents are opened in the client (operation openBox)"\n'
                         'symbols = ["cuBoxOpen"]',
        '[calls.cuBoxOpen]\nmode = "barrier"\nparams.contents = { dir = "out" }',
        "box.toml: cuBoxOpen, parameter contents (void **): [kind] the generator cannot carry a pointer of this type; "
        "serve the call by "
        'hand (client and server = "hand" with operations) or refuse it'),
    "a field of a struct cannot travel": (
        "spec/box.toml", '[structs.CUboxShape]\nskip = { "parts.maker" = "means nothing elsewhere" }\n', "",
        "box.toml: struct CUboxShape, field parts.maker (void *): [kind] cannot travel by itself; add it to skip, with "
        "the reason, say "
        "under unions which member of it counts, or serve the call by hand"),
    "a struct does not say which member of a union counts": (
        "spec/texture.toml", "unions.held", "unions.holds",
        "texture.toml: struct CUcontents, field held (union): [kind] cannot travel by itself; add it to skip, with the "
        "reason, say under "
        "unions which member of it counts, or serve the call by hand",
        "texture.toml: struct CUcontents, field held.memory.address: [unknown-name] there is no such address; remove "
        "or correct it",
        "texture.toml: struct CUcontents, field holds: [unknown-name] there is no such union; remove or correct it"),
    "a union has no such member": (
        "spec/texture.toml", 'inner = "', 'outer = "',
        "texture.toml: struct CUcontents, union held: [unknown-name] it has no member 'outer'"),
    "what counts of a union is told by no field": (
        "spec/texture.toml", 'by = "holds"', 'by = "hold"',
        "texture.toml: struct CUcontents, union held: [unknown-name] by names 'hold', which is no field that travels"),
    "an address in a struct has no extent": (
        "spec/texture.toml", '"held.memory.address" = "extent_of_rows(held.memory.count, 4, 1, 0)"', "",
        "texture.toml: struct CUcontents, field held.memory.address (CUdeviceptr): [extent] an address that is used "
        "needs its extent in "
        "bytes: add it to extents"),
    "an extent in a struct is measured by what is no field": (
        "spec/texture.toml", "(held.memory.count,", "(memory.count,",
        "texture.toml: struct CUcontents, field held.memory.address: [unknown-name] extent names 'memory', which is no "
        "field"),
    "an extent in a struct is of no address": (
        "spec/texture.toml", '"held.memory.address" =', '"held.memory.count" = "4"\n"held.memory.address" =',
        "texture.toml: struct CUcontents, field held.memory.count: [unknown-name] there is no such address; remove or "
        "correct it"),
    "a field that is not there should not travel": (
        "spec/box.toml", "means nothing elsewhere\"", 'means nothing elsewhere", "parts.key" = "too"',
        "box.toml: struct CUboxShape, field parts.key: [unknown-name] there is no such field to skip; remove or "
        "correct it"),
    "a struct is misspelt": (
        "spec/box.toml", "", "[structs.CUboxForm]\n",
        "box.toml: struct CUboxForm: [unknown-name] no call carries such a struct; remove or correct it"),
    "a key of a struct is misspelt": (
        "spec/box.toml", "[structs.CUboxShape]\n", '[structs.CUboxShape]\nwhy = "it has a void*"\n',
        "box.toml: struct CUboxShape: [unknown-key] 'why' means nothing here; known are extents, skip, unions"),

    "a call of 32 bits stands for what is no symbol": (
        "spec/plan.toml", 'to = "cuPlanGet_v2"', 'to = "cuPlanGet_v3"',
        "plan.toml: cuPlanGet_v3: [unknown-name] the toolkit exports no such symbol; remove or correct it",
        "cuda.h: cuPlanGet (line 91): [undecided] is neither generated, local, special nor refused; add it to a file "
        "of codegen/spec"),
    "a call of 32 bits does not say which one it stands for": (
        "spec/plan.toml", 'cuPlanGet = { to = "cuPlanGet_v2" }', "cuPlanGet = {}",
        'plan.toml: cuPlanGet: [narrow] name the 64-bit call that it stands for: add to = "..."',
        "cuda.h: cuPlanGet (line 91): [undecided] is neither generated, local, special nor refused; add it to a file "
        "of codegen/spec"),
    "a call of 32 bits stands for one with other parameters": (
        "spec/plan.toml", 'to = "cuPlanGet_v2"', 'to = "cuPlanRemove_v2"',
        "plan.toml: cuPlanGet: [narrow] has other parameters than cuPlanRemove_v2; serve it by hand"),
    "a call of 32 bits stands for one with parameters of other types": (
        "spec/plan.toml", 'cuPlanGet = { to = "cuPlanGet_v2" }', 'cuPlanGet = { to = "cuBoxSetWeights" }',
        "plan.toml: cuPlanGet, parameter plan (CUplan_v1 *): [narrow] is no narrower form of CUbox; serve the call by "
        "hand",
        "plan.toml: cuPlanGet, parameter address (CUdeviceptr_v1 *): [narrow] is no narrower form of const float *; "
        "serve the call by hand",
        "plan.toml: cuPlanGet, parameter box (CUbox): [narrow] is no narrower form of unsigned int; serve the call by "
        "hand"),
    "a call of 32 bits stands for one that is refused": (
        "spec/plan.toml", 'topic = "plan"\nsymbols = ["cuPlanPlace_v2", "cuPlanRemove_v2", "cuPlanGet_v2"]',
        'topic = "plan"\nsymbols = ["cuPlanPlace_v2", "cuPlanRemove_v2"]\n[[refused]]\nwhy = "secret"\nsymbols = '
        '["cuPlanGet_v2"]',
        "plan.toml: cuPlanGet: [narrow] stands for cuPlanGet_v2, which is refused"),
    "a key of a call of 32 bits is misspelt": (
        "spec/plan.toml", 'undo = ', 'undoes = ',
        "plan.toml: cuPlanPlace: [unknown-key] 'undoes' means nothing here; known are to, undo"),

    "a check is no call": (
        "spec/box.toml", 'why = "the worker weighs them first"\nchecks = ["unlocked(box)"]',
        'why = "the worker weighs them first"\nchecks = ["unlocked(box)", "weighed"]',
        "box.toml: cuBoxSetWeights: [checks] 'weighed' is no call: write FUNCTION(PARAMETERS)"),
    "a check is about what is no parameter": (
        "spec/box.toml", 'why = "the worker weighs them first"\nchecks = ["unlocked(box)"]',
        'why = "the worker weighs them first"\nchecks = ["unlocked(lid)"]',
        "box.toml: cuBoxSetWeights: [unknown-name] checks 'lid', which is no parameter"),
    "a check is named for too few calls": (
        "spec/box.toml", 'why = "the worker weighs them first"\nchecks = ["unlocked(box)"]',
        'why = "the worker weighs them first"\nchecks = ["unlocked(box)", "weighed(box)"]',
        "box.toml: cuBoxSetWeights: [checks] weighed serves 1 calls, and must serve 2 to be named in the spec; check "
        "by hand"),
    "an operation has a handle of no kind": (
        "spec/box.toml", 'handles = { box = "box" }', 'handles = { box = "bag" }',
        "box.toml: openBox: [unknown-name] handles says of 'box' that it is a 'bag', which is no handle kind"),

    "a form is no symbol": (
        "spec/plan.toml", "cuPlanCancel =", "cuPlanCancle =",
        "plan.toml: cuPlanCancle: [unknown-name] the toolkit exports no such symbol; remove or correct it",
        "cuda.h: cuPlanCancel (line 101): [undecided] is neither generated, local, special nor refused; add it to a "
        "file of codegen/spec"),
    "a form is no call": (
        "spec/plan.toml", '"cuPlanRemove_v2(address, 0)"', '"cuPlanRemove_v2"',
        "plan.toml: cuPlanCancel: [form] 'cuPlanRemove_v2' is no call: write FUNCTION(ARGUMENTS)",
        "cuda.h: cuPlanCancel (line 101): [undecided] is neither generated, local, special nor refused; add it to a "
        "file of codegen/spec"),
    "a form is one with what is no parameter": (
        "spec/plan.toml", '"cuPlanRemove_v2(address, 0)"', '"cuPlanRemove_v2(address, bytes)"',
        "plan.toml: cuPlanCancel: [unknown-name] is a form with 'bytes', which is no parameter"),
    "a form has a stream of its own and wants the default one": (
        "spec/box.toml", '"paint(box, colour, hStream)"', '"paint(box, colour, default_stream)"',
        "box.toml: cuBoxPaint: [unknown-name] is a form with 'default_stream', which is no parameter"),
    "a form is one of no call": (
        "spec/plan.toml", '"cuPlanRemove_v2(address, 0)"', '"cuPlanErase_v2(address, 0)"',
        "plan.toml: cuPlanCancel: [unknown-name] is a form of 'cuPlanErase_v2', which is no call of the spec; remove "
        "or correct it"),
    "a form is one of a call without a function": (
        "spec/plan.toml", '"cuPlanRemove_v2(address, 0)"', '"cuPlanRemove(address, 0)"',
        "plan.toml: cuPlanCancel: [form] the client has no function for cuPlanRemove; name a call for which it has "
        "one, or use as"),
    "a function is named for too few forms": (
        "spec/plan.toml", '"cuPlanRemove_v2(address, 0)"', '"remove_plan(address, 0)"',
        "plan.toml: cuPlanCancel: [form] remove_plan serves 1 calls, and must serve 3 to be named in the spec; write "
        "the calls by hand"),

    "a handle has no kind": (
        "spec/handles.toml", "CUstream", "CUstrand",
        "box.toml: cuBoxFillAsync, parameter hStream (CUstream): [kind] handles of type CUstream have no kind; add one "
        "to handles.toml",
        "driver.toml: cuStreamCreate, parameter phStream (CUstream *): [kind] handles of type CUstream have no kind; "
        "add one to "
        "handles.toml",
        "driver.toml: cuStreamDestroy, parameter hStream (CUstream): [kind] handles of type CUstream have no kind; add "
        "one to "
        "handles.toml"),
    "what is created is of no kind": (
        "spec/driver.toml", 'creates = "stream"', 'creates = "strand"',
        "driver.toml: cuStreamCreate, parameter phStream: [unknown-name] 'strand' is no handle kind",
        "driver.toml: cuStreamCreate, parameter phStream: [destroyer] creates a strand, but no call destroys one"),
    "what is created is never destroyed": (
        "spec/driver.toml", 'params.hStream = { destroys = "stream" }\n', "",
        "driver.toml: cuStreamCreate, parameter phStream: [destroyer] creates a stream, but no call destroys one"),
    "two kinds have one number": (
        "spec/handles.toml", "number = 2", "number = 1",
        "handles.toml: box: [kind-number] has the number of stream; give it the next free one"),
    "a kind's number is too large for a handle": (
        "spec/handles.toml", "number = 2", "number = 64",
        "handles.toml: box: [kind-number] needs a number within 1..63"),
    "nobody gives the handles of a kind": (
        "spec/handles.toml", '"worker"', '"server"',
        "handles.toml: box: [owner] owner must be one of client, worker, driver"),
    "handles live with what is no owner of them": (
        "spec/handles.toml", 'lives_with = "context"', 'lives_with = "device"',
        "handles.toml: stream: [lives_with] lives_with must be one of session, context"),
    "a key of a kind is misspelt": (
        "spec/handles.toml", 'owner = "worker"', 'owner = "worker", since = 13',
        "handles.toml: box: [unknown-key] 'since' means nothing here; known are lives_with, number, owner, type"),

    "an attribute is misspelt": (
        "spec/driver.toml", "CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY", "CU_DEVICE_ATTRIBUTE_MANGED_MEMORY",
        "driver.toml: CU_DEVICE_ATTRIBUTE_MANGED_MEMORY: [unknown-name] is no device attribute of this toolkit; remove "
        "or correct it"),
    "a key of an attribute is misspelt": (
        "spec/driver.toml", "{ value = 0,", "{ val = 0,",
        "driver.toml: CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: [unknown-key] 'val' means nothing here; known are value, "
        "why"),
    "a launch attribute is misspelt": (
        "spec/driver.toml", "CU_LAUNCH_ATTRIBUTE_IGNORE", "CU_LAUNCH_ATTRIBUTE_IGNORED",
        "driver.toml: CU_LAUNCH_ATTRIBUTE_IGNORED: [unknown-name] is no launch attribute of this toolkit; remove or "
        "correct it"),
    "a launch attribute uses no known member": (
        "spec/driver.toml", 'member = "priority"', 'member = "importance"',
        "driver.toml: CU_LAUNCH_ATTRIBUTE_PRIORITY: [unknown-name] CUlaunchAttributeValue has no member 'importance'"),
    "a launch attribute says nothing of its member": (
        "spec/driver.toml", '{ member = "priority" }', "{}",
        'driver.toml: CU_LAUNCH_ATTRIBUTE_PRIORITY: [member] name the member of CUlaunchAttributeValue that it uses, '
        'or ""'),
    "a key of a launch attribute is misspelt": (
        "spec/driver.toml", '{ member = "priority" }', '{ member = "priority", handel = "event" }',
        "driver.toml: CU_LAUNCH_ATTRIBUTE_PRIORITY: [unknown-key] 'handel' means nothing here; known are handle, "
        "member"),
    "a key of the capture's section is misspelt": (
        "spec/driver.toml", "unsafe = [", "forbidden = [",
        "driver.toml: capture: [unknown-key] 'forbidden' means nothing here; known are unsafe"),

    "a call has no opcode": (
        "spec/opcodes.toml", '"cuTexObjectGetContents" = { number = 14, shape = "5250de1b" }\n', "",
        "opcodes.toml: cuTexObjectGetContents: [opcode] has no opcode; run: codegen/register"),
    "an operation has no opcode": (
        "spec/box.toml", "", '[operations.shutBox]\nrequest = "ShutBox"\nmode = "barrier"\nwhy = "the lid is heavy"\n',
        "opcodes.toml: shutBox: [opcode] has no opcode; run: codegen/register"),
    "an opcode was changed": (
        "spec/opcodes.toml", '"cuBoxFillAsync" = { number = 3,', '"cuBoxFillAsync" = { number = 30,',
        "opcodes.toml: cuBoxFillAsync: [opcode] is {'number': 30, 'shape': '9cd25d78'} where number 3 and a shape "
        "belong; opcodes are "
        "appended, never moved, removed or reused: restore the register"),
    "an opcode was removed": (
        "spec/opcodes.toml", '"cuBoxDestroy" = { number = 2, shape = "ea83ea03" }\n', "",
        "opcodes.toml: cuBoxFillAsync: [opcode] is {'number': 3, 'shape': '9cd25d78'} where number 2 and a shape "
        "belong; opcodes are "
        "appended, never moved, removed or reused: restore the register"),
    "the toolkit has another signature": (
        "toolkit/cuda.h", "cuInit(unsigned int Flags)", "cuInit(unsigned int flags)",
        "abi/13000.txt: cuInit: [toolkit] differs from the installed headers (2 lines do); if the change is right, "
        "run: codegen/register "
        "--toolkit"),
    "the toolkit is another": (
        "toolkit/cuda.h", "CUDA_VERSION 13000", "CUDA_VERSION 13010",
        "abi/13010.txt: [toolkit] there is no listing of CUDA 13010; look at what is new, then run: codegen/register "
        "--toolkit"),
}

# Changes that make something else travel; the calls whose opcodes then are no longer right.
RESHAPED = {
    "a parameter is translated no longer, which changes nothing that travels": ("ordinal = true", "ordinal = false",
                                                                                ()),
    "a list may be null no longer": ("optional = true", "optional = false", ("cuBoxSetWeights",)),
    "an output becomes an input too": ('params.bytes = { dir = "out" }', 'params.bytes = { dir = "inout" }',
                                       ("cuBoxGetSize_v2",)),
    "a list has a length of its own": ('count_inout = "count" }', 'count = "8" }\nparams.count = { dir = "out" }',
                                       ("cuBoxList",)),
    "the client gives the handle": ('mode = "barrier"\nparams.box =', 'mode = "deferred"\nparams.box =',
                                    ("cuBoxCreate",)),
    "a struct's field stays behind": ('skip = { ', 'skip = { edges = "not needed", ',
                                      ("cuBoxCreate", "cuTexObjectCreate")),
}


class Spec(GeneratorTest):
    def test_each_fault_is_found(self):
        for what, (file, old, new, *complaints) in FAULTS.items():
            with self.subTest(what):
                self.restore()
                if old:
                    self.change(file, old, new)
                else:
                    self.add(file, new)
                self.assert_stops(*complaints)

    def test_each_documented_rule_has_a_test(self):
        rows = self.section("What stops it").splitlines()
        documented = {rule for row in rows if row.startswith("| `")
                      for rule in re.findall("`([a-z_-]+)`", row.split("|")[1])}
        tested = {rule for fault in FAULTS.values() for line in fault[3:]
                  for rule in re.findall(r": \[([a-z_-]+)\] ", line)}
        self.assertEqual(tested, documented)

    def section(self, title):
        return (SOURCE / "docs" / "internals" / "generator.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]

    def test_all_faults_are_told_at_once(self):
        self.change("spec/box.toml", 'params.colour = { dir = "out" }', 'params.colour = { dir = "back" }')
        self.change("spec/driver.toml", 'symbols = ["cuStreamSetAttribute"]', "symbols = []")
        self.assert_stops(FAULTS["a direction is none"][3], FAULTS["nobody decided on a call"][3])

    def test_another_shape_needs_another_opcode(self):
        for what, (old, new, calls) in RESHAPED.items():
            with self.subTest(what):
                self.restore()
                self.change("spec/box.toml", old, new)
                code, _, err = self.generate()
                self.assertEqual(re.findall(r"^opcodes\.toml: (\w+): \[opcode\] travels in another shape \(\w{8}\) "
                                            r"than its opcode \d+ was "
                                            r"given for \(\w{8}\); restore the annotations, or give it a new opcode "
                                            r"with: "
                                            r"codegen/register --renew \1$", err, re.M), list(calls), err)
                self.assertEqual(code, 1 if calls else 0)

    def test_files_that_are_no_toml(self):
        for file in ("handles.toml", "box.toml", "opcodes.toml"):
            with self.subTest(file):
                self.restore()
                self.add(f"spec/{file}", "[broken\n")
                code, _, err = self.generate()
                self.assertEqual(code, 1)
                self.assertRegex(err, rf"^fargpu codegen stopped:\n{file}: Expected .* \(at line \d+, column \d+\); it "
                                      r"must be there and be "
                                      r"TOML\n$")

    def test_files_that_are_missing(self):
        for file in ("handles.toml", "opcodes.toml"):
            with self.subTest(file):
                self.restore()
                (self.folder / "spec" / file).unlink()
                code, _, err = self.generate()
                self.assertEqual(code, 1)
                self.assertRegex(err, rf"^fargpu codegen stopped:\n{file}: .*No such file or directory.*; it must be "
                                      r"there and be TOML\n$")


if __name__ == "__main__":
    unittest.main()
