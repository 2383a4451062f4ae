/// The kernel that carries out programs. An instruction is done tile by tile, each by a block of program_threads
/// threads; a tile keeps to its own part of what it writes, and adds up in a fixed order. The block's pool is free when
/// a tile begins, and when it ends.

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
          multiply_any_tile<32, false>(product, tile);
        } else if (product.edge == 16) {
          multiply_any_tile<16, true>(product, tile);
        } else {
          multiply_any_tile<32, true>(product, tile);
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

/// A number for each block, by which those come first that are first on their multiprocessor: what a phase has fewer of
/// than there are blocks is better not done two at a time on some of them, and a GPU does not hand out blocks that way.
/// Only speed depends on what is asked for here.
__device__ int block_number(Plan& plan) {
  unsigned processor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
  const bool is_first = atomicAdd(plan.on_processor + processor % most_processors, 1) == 0;
  return is_first ? atomicAdd(&plan.first, 1) : static_cast<int>(gridDim.x) - 1 - atomicAdd(&plan.others, 1);
}

/// The tiles of a phase, from one instruction to the next. A block has the one of its own number; then whoever is ready
/// takes the next. Which block does a tile makes no difference to what it gives.
template <class T>
__device__ void do_phase(const Instruction* first, const Instruction& last, int number, int* taken, int* next_tile) {
  const int tiles = last.before + last.tiles, blocks = static_cast<int>(gridDim.x);
  int tile = number;
  while (tile < tiles) {
    int next = tiles;
    if (threadIdx.x == 0 && tiles > blocks) next = blocks + atomicAdd(taken, 1);  // on its way during this one
    while (tile >= first->before + first->tiles) ++first;
    carry_out<T>(*first, tile - first->before);
    if (tiles <= blocks) return;
    if (threadIdx.x == 0) *next_tile = next;
    __syncthreads();
    tile = *next_tile;
    __syncthreads();
  }
}

/// All blocks meet, for the nᵗʰ time: what each has written is there for all. A grid's own barrier does the same with
/// fences that also order what nobody asks to be ordered.
__device__ __forceinline__ void meet(int* arrived, int n) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrived) : "memory");
    const int all = n * static_cast<int>(gridDim.x);
    int seen;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    } while (seen < all);
  }
  __syncthreads();
}

/// A block's shared memory: the pool for whatever it does, the instructions of this phase and of the next, and their
/// order.
struct Desk {
  Instruction here[2][most_at_once];
  int starts[most_instructions + 1], order[most_instructions];
  int next_tile;
};
constexpr std::size_t shared_bytes = program_shared_bytes + sizeof(Desk);
constexpr std::size_t least_lent = 99 * 1024,
                      elsewhere = 256;  // to a block, by 8.6, 8.9 and 12.0; what else it has there
static_assert(shared_bytes + elsewhere <= least_lent);
static_assert(most_instructions < program_threads);

template <class T>
__global__ void __launch_bounds__(program_threads, 2) program_kernel(const Instruction* end, Plan* plan, int phases) {
  Desk& desk = *reinterpret_cast<Desk*>(pool() + program_shared_bytes / sizeof(float));
  if (threadIdx.x <= most_instructions) desk.starts[threadIdx.x] = plan->starts[threadIdx.x];
  if (threadIdx.x < most_instructions) desk.order[threadIdx.x] = plan->order[threadIdx.x];
  if (threadIdx.x == 0) desk.next_tile = block_number(*plan);
  __syncthreads();
  const int number = desk.next_tile;
  const auto bring = [&](int phase) {
    constexpr int pieces = sizeof(Instruction) / sizeof(float4);
    const int first = desk.starts[phase], count = (desk.starts[phase + 1] - first) * pieces;
    auto* to = reinterpret_cast<float*>(desk.here[phase % 2]);
    for (int k = static_cast<int>(threadIdx.x); k < count; k += program_threads) {
      const auto* from = reinterpret_cast<const float*>(end - 1 - desk.order[first + k / pieces]);
      fetch_floats<4>(to + 4 * k, from + 4 * (k % pieces), true);
    }
    close_batch();
  };
  bring(0);
  wait_for_batches<0>();
  __syncthreads();
  for (int phase = 0; phase < phases; ++phase) {
    if (phase + 1 < phases) bring(phase + 1);
    const Instruction* first = desk.here[phase % 2];
    const int count = desk.starts[phase + 1] - desk.starts[phase];
    do_phase<T>(first, first[count - 1], number, plan->taken + phase, &desk.next_tile);
    wait_for_batches<0>();  // for the instructions of the next
    if (phase + 1 < phases) meet(&plan->arrived, phase + 1);
  }
}

template <class T>
void launch(const Instruction* end, Plan* plan, int phases, int blocks, cudaStream_t stream) {
  void* arguments[] = {&end, &plan, &phases};
  check(cudaLaunchCooperativeKernel(program_kernel<T>, dim3(static_cast<unsigned>(blocks)), dim3(program_threads),
                                    arguments, shared_bytes, stream),
        "cudaLaunchCooperativeKernel");
}

}  // namespace

template <class T>
void prepare_programs(Program& program, const Device& device) {
  constexpr auto most_bytes = static_cast<int>(shared_bytes);
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
