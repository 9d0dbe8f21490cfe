"""Generator of fargpu: CUDA's headers and codegen/spec in, protocol schema and C++ out. See
docs/internals/generator.md."""
