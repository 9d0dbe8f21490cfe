// A kernel to be compiled for one GPU, without PTX.
extern "C" __global__ void endless(volatile unsigned* flag) {
  while (*flag == 0) {}
}
