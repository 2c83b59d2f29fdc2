// The copies in the background of cuda_pipeline.h, each thread's own, in the instructions that they
// are on a GPU, so that an original on a CPU and a ported kernel use this text.
// Source: NVIDIA's CUDA C++ programming guide, pipeline primitives.
#ifndef MK_CUDA_PIPELINE
#define MK_CUDA_PIPELINE

// `bytes` is 4, 8 or 16; the last `zeros` of them are not read, and become zeros.
__device__ __forceinline__ void __pipeline_memcpy_async(void* __restrict__ to,
                                                        const void* __restrict__ from, size_t bytes,
                                                        size_t zeros = 0) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const unsigned there = static_cast<unsigned>(bytes - zeros);
  if (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(there)
                 : "memory");
  else if (bytes == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(place), "l"(from), "r"(there)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(there)
                 : "memory");
}
__device__ __forceinline__ void __pipeline_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all but the last `groups` of them; for more where it is not known how.
__device__ __forceinline__ void __pipeline_wait_prior(size_t groups) {
  switch (groups) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 7;" ::: "memory");
  }
}

#endif
