/// The kernel that carries out programs. An instruction is done tile by tile, each by a block of program_threads
/// threads; a tile keeps to its own part of what it writes, and adds up in a fixed order. The block's pool is free when
/// a tile begins, and when it ends.

#include <cooperative_groups.h>

#include <algorithm>

#include "elements.cuh"
#include "express.cuh"
#include "judge.cuh"
#include "program_kernel.h"
#include "sums.cuh"

namespace widehead::cuda {

static_assert(program_threads == block_size);

namespace {

template <class T>
__device__ __forceinline__ void carry_out(const Instruction& instruction, int tile) {
  const auto* x = instruction.arguments;
  switch (instruction.kind) {
    case Kind::elements: return elements_tile(*reinterpret_cast<const Elements<T>*>(x), tile);
    case Kind::multiply:
      if constexpr (std::is_same_v<T, float>) {
        const auto& product = *reinterpret_cast<const Multiply*>(x);
        if (!product.wide) {
          multiply_any_tile<4, false>(product, tile);
        } else if (product.fine) {
          multiply_any_tile<2, true>(product, tile);
        } else {
          multiply_any_tile<4, true>(product, tile);
        }
      }
      return;
    case Kind::express: return express_tile(*reinterpret_cast<const Express<T>*>(x), tile);
    case Kind::sum_columns: return sum_columns_tile(*reinterpret_cast<const SumColumns<T>*>(x), tile);
    case Kind::sum_rows: return sum_rows_tile(*reinterpret_cast<const SumRows<T>*>(x), tile);
    case Kind::dots: return dots_tile(*reinterpret_cast<const Dots<T>*>(x), tile);
    case Kind::observe: return observe_tile(*reinterpret_cast<const Observe<T>*>(x), tile);
    case Kind::gram: return gram_tile(*reinterpret_cast<const Gram<T>*>(x), tile);
    case Kind::judge: return judge_tile(*reinterpret_cast<const Judge<T>*>(x), tile);
    case Kind::observe_and_judge: return observe_and_judge_tile(*reinterpret_cast<const ObserveAndJudge<T>*>(x), tile);
    case Kind::summarize: return summarize_tile(*reinterpret_cast<const Summarize*>(x));
  }
}

/// The tiles of a phase, from one instruction to the next. A block has the one of its own number; then whoever is ready
/// takes the next. Which block does a tile makes no difference to what it gives.
template <class T>
__device__ void do_phase(const Instruction* first, int* taken, int* next_tile) {
  const Instruction& last = first[first->others];
  const int tiles = last.before + last.tiles, blocks = static_cast<int>(gridDim.x);
  int tile = static_cast<int>(blockIdx.x);
  while (tile < tiles) {
    int next = tiles;
    if (threadIdx.x == 0 && tiles > blocks) next = blocks + atomicAdd(taken, 1);  // on its way during this one
    while (tile >= first->before + first->tiles) ++first;
    carry_out<T>(*first, tile - first->before);
    if (threadIdx.x == 0) *next_tile = next;
    __syncthreads();
    tile = *next_tile;
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(program_threads, 2)
    program_kernel(const Instruction* instructions, int count, int* taken) {
  auto* here = reinterpret_cast<Instruction*>(pool() + program_shared_bytes / sizeof(float));
  auto* to = reinterpret_cast<float4*>(here);
  const auto* from = reinterpret_cast<const float4*>(instructions);
  for (unsigned k = threadIdx.x; k < count * sizeof(Instruction) / sizeof(float4); k += program_threads) {
    to[k] = from[k];
  }
  __syncthreads();
  int* next_tile = reinterpret_cast<int*>(here + count);
  for (int k = 0; k < count; k += here[k].others + 1) {
    if (k > 0) cooperative_groups::this_grid().sync();
    do_phase<T>(here + k, taken++, next_tile);
  }
}

/// For whatever a block does, the instructions, and its next tile.
constexpr std::size_t shared_bytes(int instructions) {
  return program_shared_bytes + static_cast<std::size_t>(instructions) * sizeof(Instruction) + sizeof(int);
}

template <class T>
void launch(const Instruction* instructions, int count, int* taken, int blocks, cudaStream_t stream) {
  const std::size_t bytes = shared_bytes(count);
  void* arguments[] = {&instructions, &count, &taken};
  check(cudaLaunchCooperativeKernel(program_kernel<T>, dim3(static_cast<unsigned>(blocks)), dim3(program_threads),
                                    arguments, bytes, stream),
        "cudaLaunchCooperativeKernel");
}

}  // namespace

template <class T>
void prepare_programs(Program& program, const Device& device) {
  constexpr auto most_bytes = static_cast<int>(shared_bytes(most_instructions));
  int processors = 0, blocks = 0;
  check(cudaFuncSetAttribute(program_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes),
        "cudaFuncSetAttribute");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device.number()), "cudaDeviceGetAttribute");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, program_kernel<T>, program_threads, most_bytes),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  program.set_launch(launch<T>, processors * std::max(blocks, 1));
}
template void prepare_programs<float>(Program&, const Device&);
template void prepare_programs<double>(Program&, const Device&);

}  // namespace widehead::cuda
