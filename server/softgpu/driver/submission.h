#pragma once

#include <cuda.h>

#include <memory>

#include "driver/operation.h"
#include "driver/stream.h"

namespace fargpu::softgpu {

inline constexpr int stream_priority_least = 0;
inline constexpr int stream_priority_greatest = -5;

/// Gives an operation to a stream: to be done, or, if the stream is being captured, to become a
/// node of a graph. Throws the errors of capture.
void submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation);

/// Submits, and waits for the stream if that is not being captured.
void submit_and_wait(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation);

bool stream_is_captured(const Stream& stream);

/// Calls that could disturb a capture throw STREAM_CAPTURE_UNSUPPORTED while one is going on that
/// they could disturb, and end it (cuThreadExchangeStreamCaptureMode says which).
void refuse_while_capturing();
/// For calls that a stream cannot capture, or that ask about it or wait for it.
void refuse_if_captured(const Stream& stream);
/// For calls that wait for everything in a context.
void refuse_if_captured(const Context& context);
/// Exchanges the calling thread's mode, which decides the above.
CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode);

void begin_capture(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                   std::vector<GraphNode*> dependencies);
/// The graph; null with the error thrown if the capture went wrong.
std::shared_ptr<Graph> end_capture(const std::shared_ptr<Stream>& stream);
/// The stream goes: a capture that began there is over.
void abandon_capture(const std::shared_ptr<Stream>& stream);

void record_event(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, unsigned flags);
void wait_for_event(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, unsigned flags);

}  // namespace fargpu::softgpu
