// The start of a program on glibc before 2.34. The compiler's start code of today has the C library call the program's
// initialisers; an older one does not, and waits to be given a function that does. Every glibc accepts one. The loader
// calls what is to be done at the end.

extern "C" {

using Main = int (*)(int, char**, char**);
using Initialiser = void (*)(int, char**, char**);

extern Initialiser __init_array_start[] __attribute__((visibility("hidden")));
extern Initialiser __init_array_end[] __attribute__((visibility("hidden")));
void _init();
int __real___libc_start_main(Main main, int count, char** arguments, Initialiser init, void (*fini)(),
                             void (*loader_fini)(), void* stack_end);

static void initialise(int count, char** arguments, char** environment) {
  _init();
  for (Initialiser* one = __init_array_start; one != __init_array_end; ++one) (*one)(count, arguments, environment);
}

__attribute__((visibility("hidden"))) int __wrap___libc_start_main(Main main, int count, char** arguments, Initialiser,
                                                                   void (*)(), void (*loader_fini)(), void* stack_end) {
  return __real___libc_start_main(main, count, arguments, initialise, nullptr, loader_fini, stack_end);
}

}  // extern "C"
