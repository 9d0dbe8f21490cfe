// A library that a program loads when it has used the GPU already.

#include <sys/uio.h>

extern "C" [[gnu::visibility("default")]] ssize_t late_writev(int file, const iovec* vector, int count) {
  return ::writev(file, vector, count);
}
