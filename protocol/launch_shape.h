#pragma once
// Grid, block and shared memory of a launch. Messages name them alike, and so do CUDA's structs.

namespace fargpu {

template <class Params, class Message>
void write_shape(const Params& params, Message&& message) {
  message.setGridX(params.gridDimX);
  message.setGridY(params.gridDimY);
  message.setGridZ(params.gridDimZ);
  message.setBlockX(params.blockDimX);
  message.setBlockY(params.blockDimY);
  message.setBlockZ(params.blockDimZ);
  message.setSharedBytes(params.sharedMemBytes);
}

template <class Message, class Params>
void read_shape(const Message& message, Params& params) {
  params.gridDimX = message.getGridX();
  params.gridDimY = message.getGridY();
  params.gridDimZ = message.getGridZ();
  params.blockDimX = message.getBlockX();
  params.blockDimY = message.getBlockY();
  params.blockDimZ = message.getBlockZ();
  params.sharedMemBytes = message.getSharedBytes();
}

}  // namespace fargpu
