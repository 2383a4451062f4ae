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

/// A block's shared memory: the pool for whatever it does, the instructions of this phase and of the next, their order,
/// and where the block is in all that.
struct Desk {
  Instruction here[2][most_at_once];
  int starts[most_instructions + 1], order[most_instructions];
  int number, phase, tile;
};
constexpr std::size_t shared_bytes = program_shared_bytes + sizeof(Desk);
constexpr std::size_t least_lent = 99 * 1024,
                      elsewhere = 256;  // to a block, by 8.6, 8.9 and 12.0; what else it has there
static_assert(shared_bytes + elsewhere <= least_lent);
static_assert(most_instructions < program_threads);

__device__ __forceinline__ Desk& desk() {
  return *reinterpret_cast<Desk*>(pool() + program_shared_bytes / sizeof(float));
}
/// What is on the desk is looked up each time: a tile needs all registers there are, and what is kept in one meanwhile
/// would go to the stack, or drive what a tile's loop needs there.
__device__ __forceinline__ int look_up(const int& number) { return *static_cast<const volatile int*>(&number); }

/// Of the phase at hand.
__device__ __forceinline__ const Instruction* instructions_here() { return desk().here[look_up(desk().phase) % 2]; }
__device__ __forceinline__ int count_of(int phase) {
  return look_up(desk().starts[phase + 1]) - look_up(desk().starts[phase]);
}
__device__ __forceinline__ int tiles_here() {
  const Instruction& last = instructions_here()[count_of(look_up(desk().phase)) - 1];
  return look_up(last.before) + look_up(last.tiles);
}

/// The tiles of the phase, from one instruction to the next. A block has the one of its own number; then whoever is
/// ready takes the next. Which block does a tile makes no difference to what it gives.
template <class T>
__device__ __forceinline__ void do_phase(Plan& plan) {
  int tile = look_up(desk().number);
  while (tile < tiles_here()) {
    const int blocks = static_cast<int>(gridDim.x);
    int next = 0;
    if (tiles_here() > blocks && thread_number() == 0) {  // on its way during this one
      next = blocks + atomicAdd(plan.taken + look_up(desk().phase), 1);
    }
    const Instruction* instruction = instructions_here();
    while (tile >= look_up(instruction->before) + look_up(instruction->tiles)) ++instruction;
    carry_out<T>(*instruction, tile - look_up(instruction->before));
    if (tiles_here() <= static_cast<int>(gridDim.x)) return;
    if (thread_number() == 0) desk().tile = next;
    __syncthreads();
    tile = look_up(desk().tile);
    __syncthreads();
  }
}

/// Instructions of a phase, on their way to the desk.
__device__ __forceinline__ void bring(const Instruction* end, int phase) {
  constexpr int pieces = sizeof(Instruction) / sizeof(float4);
  const int first = look_up(desk().starts[phase]), count = count_of(phase) * pieces;
  auto* to = reinterpret_cast<float*>(desk().here[phase % 2]);
  for (int k = thread_number(); k < count; k += program_threads) {
    const auto* from = reinterpret_cast<const float*>(end - 1 - look_up(desk().order[first + k / pieces]));
    fetch_floats<4>(to + 4 * k, from + 4 * (k % pieces), true);
  }
  close_batch();
}

template <class T>
__global__ void __launch_bounds__(program_threads, 2) program_kernel(const Instruction* end, Plan* plan, int phases) {
  if (threadIdx.x <= most_instructions) desk().starts[threadIdx.x] = plan->starts[threadIdx.x];
  if (threadIdx.x < most_instructions) desk().order[threadIdx.x] = plan->order[threadIdx.x];
  if (threadIdx.x == 0) {
    desk().number = block_number(*plan);
    desk().phase = 0;
  }
  __syncthreads();
  bring(end, 0);
  for (;;) {
    wait_for_batches<0>();
    __syncthreads();
    if (const int next = look_up(desk().phase) + 1; next < phases) bring(end, next);
    do_phase<T>(*plan);
    const int done = look_up(desk().phase) + 1;
    if (done == phases) return;
    meet(&plan->arrived, done);
    if (thread_number() == 0) desk().phase = done;
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
