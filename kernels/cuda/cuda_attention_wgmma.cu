/* cuda_attention_wgmma.cu - prompts' attention on Hopper's tensor cores (sm_90a, 16-bit activations, head_dim a multiple of 8).
 * A block takes the 64 rows of a prompt tile and two heads that share keys and values:
 *
 *   warps 8..11   load: warp 8 + 2 s brings keys, 9 + 2 s values, of every second tile into buffer s
 *   warps 0..3    head 0: 64 queries      S = Q K^T (m64n64k16), p = exp2((S - m) c), O += P V (m64n64k16 or m64n128k16)
 *   warps 4..7    head 1: likewise        the next S and the last P V are under way while exponentials are taken
 *
 * Sums     Tiles of 64 keys at absolute positions, ascending (online softmax; the order of work is that of FlashAttention-3, Shah et al. 2024,
 *          arXiv:2407.08608). Scores and O are fp32 sums of the tensor core in steps of 16; P is rounded to the activation's type; the sum of p runs in fp32 over
 *          a lane's own columns ascending and over the four lanes at the end. A tile in which a query sees nothing leaves m, l and O as they are.
 * Layout   A tile in shared memory is panels of 64 columns: [64 rows][128 bytes], 16-byte pieces at (piece xor row mod 8), what a descriptor calls 128-byte
 *          swizzle. Q K^T reads a panel with rows as N and columns as K, P V with rows as K and columns as N. */
#include "kernels/cuda/cuda_attention.h"

#define TILE OPS_BLOCK_TOKENS
#define PANEL_BYTES (TILE * 128)
#define STAGES 2
#define HEADS 2                          /* of a block */
#define CONSUMERS (HEADS * 128)
#define THREADS (CONSUMERS + 128)

#define FULL(what, stage) ((what) * STAGES + (stage))            /* barriers; what: 0 keys, 1 values */
#define EMPTY(what, stage) (2 * STAGES + (what) * STAGES + (stage))

static __host__ __device__ constexpr int tile_bytes(int hd) { return hd / 64 * PANEL_BYTES; }
/* Queries stay in registers unless O takes them all. */
static __host__ __device__ constexpr bool q_in_registers(int hd) { return hd <= 128; }
static __host__ __device__ constexpr int wgmma_shared_bytes(int hd) { return 1024 + (q_in_registers(hd) ? 0 : HEADS) * tile_bytes(hd) + 2 * STAGES * tile_bytes(hd) + 128; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

#if HAS_WGMMA
/* ---- what the hardware calls things ---- */

static __device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void barrier_init(uint32_t at, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(n) : "memory"); }
static __device__ __forceinline__ void barrier_arrive(uint32_t at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }
static __device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity)
{
    uint32_t is_done = 0;
    while (!is_done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(is_done) : "r"(at), "r"(parity) : "memory");
}
static __device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* 16 bytes to shared memory, or zeros. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A panel as a matrix operand. lead_bytes: from one 64-column panel to the next, when columns are N; rows lie 1024 bytes apart in eights. */
static __device__ __forceinline__ uint64_t operand(uint32_t at, uint32_t lead_bytes)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(lead_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
template <int N> static __device__ __forceinline__ void keep(float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(v[i]) :: "memory");
}

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(d, i) D4(d, i), D4(d, i + 4), D4(d, i + 8), D4(d, i + 12)
#define D32_NAMES "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D64_NAMES D32_NAMES ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* d [64, 64] (+)= a b^T: a 16 columns of registers or of a panel, b 16 columns of a panel. */
#define SCORES_REGISTERS(type)                                                                                                                  \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"                                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " D32_NAMES "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"            \
                 : D16(d, 0), D16(d, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(is_more) : "memory")
#define SCORES_SHARED(type)                                                                                                                     \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"                                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " D32_NAMES "}, %32, %33, p, 1, 1, 0, 0; }"                       \
                 : D16(d, 0), D16(d, 16) : "l"(a), "l"(b), "r"(is_more) : "memory")
/* d [64, 64 or 128] += a b: a 16 columns of registers, b 16 rows of one or two panels. */
#define VALUES_64(type)                                                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " D32_NAMES "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"              \
                 : D16(d, 0), D16(d, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
#define VALUES_128(type)                                                                                                                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " D64_NAMES "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"             \
                 : D16(d, 0), D16(d, 16), D16(d, 32), D16(d, 48) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")

template <typename T> struct warpgroup_products;
template <> struct warpgroup_products<__nv_bfloat16> {
    static __device__ __forceinline__ void scores(float (&d)[32], const uint32_t *a, uint64_t b, int is_more) { SCORES_REGISTERS("bf16"); }
    static __device__ __forceinline__ void scores(float (&d)[32], uint64_t a, uint64_t b, int is_more) { SCORES_SHARED("bf16"); }
    static __device__ __forceinline__ void values_64(float *d, const uint32_t *a, uint64_t b) { VALUES_64("bf16"); }
    static __device__ __forceinline__ void values_128(float *d, const uint32_t *a, uint64_t b) { VALUES_128("bf16"); }
    static __device__ __forceinline__ uint32_t pair(float x, float y) { const __nv_bfloat162 v = __floats2bfloat162_rn(x, y); return *(const uint32_t *)&v; }
};
template <> struct warpgroup_products<__half> {
    static __device__ __forceinline__ void scores(float (&d)[32], const uint32_t *a, uint64_t b, int is_more) { SCORES_REGISTERS("f16"); }
    static __device__ __forceinline__ void scores(float (&d)[32], uint64_t a, uint64_t b, int is_more) { SCORES_SHARED("f16"); }
    static __device__ __forceinline__ void values_64(float *d, const uint32_t *a, uint64_t b) { VALUES_64("f16"); }
    static __device__ __forceinline__ void values_128(float *d, const uint32_t *a, uint64_t b) { VALUES_128("f16"); }
    static __device__ __forceinline__ uint32_t pair(float x, float y) { const __half2 v = __floats2half2_rn(x, y); return *(const uint32_t *)&v; }
};

/* ---- the loading warps ---- */

/* Rows [0, n_there) of one tile of x, `rows`, into the buffer at `to`; zeros behind them and behind head_dim. */
template <typename T, int HD> static __device__ void load_tile(uint32_t to, const T *rows, int head_dim, int n_there)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int i = lane; i < TILE * HD / 8; i += 32) {
        const int row = i / (HD / 8), piece = i % (HD / 8);
        const bool is_there = row < n_there && piece * 8 < head_dim;
        copy_16(to + piece / 8 * PANEL_BYTES + row * 128 + ((piece % 8 ^ row % 8) * 16), is_there ? rows + (size_t)row * head_dim + piece * 8 : rows, is_there);
    }
}

template <typename T, int HD> static __device__ void produce(const attention_call<T> &a, const cuda_tile &tile, int kv_head, int first, int n, uint32_t buffers, uint32_t barriers)
{
    const int warp = (threadIdx.x - CONSUMERS) / 32, what = warp % 2, stage = warp / 2;
    const T *x = what == 0 ? a.k : a.v;
    const uint32_t buffer = buffers + (uint32_t)((what * STAGES + stage) * tile_bytes(HD));
    for (int i = stage; i < n; i += STAGES) {
        const size_t block = (size_t)a.batch.block_tables[(size_t)tile.seq * a.batch.table_stride + first + i];
        if (i >= STAGES) barrier_wait(barriers + 8 * EMPTY(what, stage), (uint32_t)(i / STAGES - 1) & 1);
        load_tile<T, HD>(buffer, x + (block * a.n_kv_heads + kv_head) * TILE * (size_t)a.head_dim, a.head_dim, i == n - 1 ? tile.n_rows : TILE);
        copy_wait();
        fence_async();
        barrier_arrive(barriers + 8 * FULL(what, stage));
    }
}

/* ---- the computing warpgroups ---- */

/* Whether rows of queries lie so that n_values neighbouring ones can be read at once. */
template <typename T> static __device__ __forceinline__ bool is_aligned_to(const attention_call<T> &a, int n_values)
{
    return (uintptr_t)a.q % (n_values * sizeof(T)) == 0 && a.q_stride % n_values == 0 && a.q_head_stride % n_values == 0;
}

/* Two neighbouring values of a query, zeros where there are none. No branches, so that many such loads are under way at once: what is not there is read elsewhere. */
template <bool ALIGNED, typename T> static __device__ __forceinline__ uint32_t load_pair(const T *q, int column, bool is_there)
{
    const T *at = q + (is_there ? column : 0);
    const uint32_t v = ALIGNED ? *(const uint32_t *)at : (uint32_t)*(const uint16_t *)(at + 1) << 16 | *(const uint16_t *)at;
    return is_there ? v : 0;
}

/* This warp's 16 rows of the queries, in registers as the left operand: q[kk][4]. */
template <bool ALIGNED, typename T, int HD> static __device__ __forceinline__ void load_queries(uint32_t (&q)[HD / 16][4], const attention_call<T> &a, const cuda_tile &tile, int head)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const T *at = a.q + (size_t)tile.row * a.q_stride + (size_t)head * a.q_head_stride;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row + i % 2 * 8, column = kk * 16 + i / 2 * 8 + lane % 4 * 2;
            q[kk][i] = load_pair<ALIGNED>(at + (size_t)(r < tile.n_rows ? r : 0) * a.q_stride, column, r < tile.n_rows && column < a.head_dim);
        }
}

/* The same into panels of shared memory. */
template <bool ALIGNED, typename T, int HD> static __device__ __forceinline__ void store_queries(char *panels, const attention_call<T> &a, const cuda_tile &tile, int head)
{
    const T *at = a.q + (size_t)tile.row * a.q_stride + (size_t)head * a.q_head_stride;
#pragma unroll
    for (int i = 0; i < TILE * HD / 8 / 128; i++) {
        const int row = (i * 128 + threadIdx.x % 128) / (HD / 8), piece = (i * 128 + threadIdx.x % 128) % (HD / 8);
        const bool is_there = row < tile.n_rows && piece * 8 < a.head_dim;
        const T *from = at + (size_t)(is_there ? row : 0) * a.q_stride;
        uint4 v;
        if constexpr (ALIGNED) {
            v = *(const uint4 *)(from + (is_there ? piece * 8 : 0));
            if (!is_there) v = make_uint4(0, 0, 0, 0);
        } else v = make_uint4(load_pair<false>(from, piece * 8, is_there), load_pair<false>(from, piece * 8 + 2, is_there), load_pair<false>(from, piece * 8 + 4, is_there),
                              load_pair<false>(from, piece * 8 + 6, is_there));
        *(uint4 *)(panels + piece / 8 * PANEL_BYTES + row * 128 + (piece % 8 ^ row % 8) * 16) = v;
    }
}

/* m and l of this lane's two rows; s becomes p. rescale[] is what O must be multiplied by. */
typedef struct { float m[2], l[2], rescale[2]; } softmax_rows;

static __device__ __forceinline__ void softmax_tile(softmax_rows &w, float (&s)[32], float by)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = w.m[r];
#pragma unroll
        for (int j = 0; j < 16; j++) most = fmaxf(most, s[j / 2 * 4 + r * 2 + j % 2]);
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const bool is_blind = most == -INFINITY;         /* nothing seen so far */
        const float base = is_blind ? 0.0f : most * by, rescale = is_blind ? 1.0f : exp2_fast((w.m[r] - most) * by);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float &v = s[j / 2 * 4 + r * 2 + j % 2];
            v = exp2_fast(fmaf(v, by, -base));
            sum += v;
        }
        w.m[r] = most;
        w.l[r] = w.l[r] * rescale + sum;
        w.rescale[r] = rescale;
    }
}

/* Scores of keys outside a row's range become -infinity. */
static __device__ __forceinline__ void mask_tile(float (&s)[32], int start, int position, int window)
{
    const int c = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int key = start + i / 4 * 8 + c + i % 2, query = position + i % 4 / 2 * 8;
        if (key > query || (window > 0 && key <= query - window)) s[i] = -INFINITY;
    }
}

template <typename T> static __device__ __forceinline__ void pack_tile(uint32_t (&p)[4][4], const float (&s)[32])
{
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[kk][i] = warpgroup_products<T>::pair(s[kk * 8 + i * 2], s[kk * 8 + i * 2 + 1]);
}

template <typename T, int HD> static __device__ __forceinline__ void multiply_values(float (&o)[HD / 2], const uint32_t (&p)[4][4], uint32_t values)
{
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
#pragma unroll
        for (int c = 0; c + 128 <= HD; c += 128) warpgroup_products<T>::values_128(o + c / 2, p[kk], operand(values + c / 64 * PANEL_BYTES + kk * 2048, PANEL_BYTES));
        if (HD % 128 != 0) warpgroup_products<T>::values_64(o + (HD - 64) / 2, p[kk], operand(values + (HD - 64) / 64 * PANEL_BYTES + kk * 2048, PANEL_BYTES));
    }
}

template <typename T, int HD> static __device__ __forceinline__ void start_scores(float (&s)[32], const uint32_t (*q)[4], const char *queries, uint32_t buffers, uint32_t barriers, int i)
{
    const uint32_t keys = buffers + (uint32_t)(i % STAGES * tile_bytes(HD));
    barrier_wait(barriers + 8 * FULL(0, i % STAGES), (uint32_t)(i / STAGES) & 1);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
        const uint64_t b = operand(keys + kk / 4 * PANEL_BYTES + kk % 4 * 32, 16);
        if constexpr (q_in_registers(HD)) warpgroup_products<T>::scores(s, q[kk], b, kk > 0);
        else warpgroup_products<T>::scores(s, operand(shared_address(queries) + kk / 4 * PANEL_BYTES + kk % 4 * 32, 16), b, kk > 0);
    }
    wgmma_commit();
}

template <typename T, int HD> static __device__ __forceinline__ void start_values(float (&o)[HD / 2], const uint32_t (&p)[4][4], uint32_t buffers, uint32_t barriers, int i)
{
    barrier_wait(barriers + 8 * FULL(1, i % STAGES), (uint32_t)(i / STAGES) & 1);
    wgmma_fence();
    multiply_values<T, HD>(o, p, buffers + (uint32_t)((STAGES + i % STAGES) * tile_bytes(HD)));
    wgmma_commit();
}

template <typename T, int HD> static __device__ void consume(const attention_call<T> &a, const cuda_tile &tile, int head, int first, int n, char *queries, uint32_t buffers,
                                                             uint32_t barriers)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4, position = tile.position + row;
    const float by = a.scale * 1.4426950408889634f;
    uint32_t q[q_in_registers(HD) ? HD / 16 : 1][4];
    if constexpr (q_in_registers(HD)) {
        if (is_aligned_to(a, 2)) load_queries<true, T, HD>(q, a, tile, head);
        else load_queries<false, T, HD>(q, a, tile, head);
    } else {
        if (is_aligned_to(a, 8)) store_queries<true, T, HD>(queries, a, tile, head);
        else store_queries<false, T, HD>(queries, a, tile, head);
        fence_async();
        if (threadIdx.x < 128) asm volatile("bar.sync 1, 128;" ::: "memory");
        else asm volatile("bar.sync 2, 128;" ::: "memory");
    }
    float o[HD / 2], s[32];
    uint32_t p[4][4];
    softmax_rows w = { { -INFINITY, -INFINITY }, { 0.0f, 0.0f }, { 1.0f, 1.0f } };
#pragma unroll
    for (int i = 0; i < HD / 2; i++) o[i] = 0.0f;

    start_scores<T, HD>(s, q, queries, buffers, barriers, 0);
    wgmma_wait<0>();
    keep(s);
    if (lane == 0) barrier_arrive(barriers + 8 * EMPTY(0, 0));
    mask_tile(s, first * TILE, position, a.window);
    softmax_tile(w, s, by);
    pack_tile<T>(p, s);
    for (int i = 1; i < n; i++) {                        /* S of this tile and O of the one before it are under way together */
        start_scores<T, HD>(s, q, queries, buffers, barriers, i);
        start_values<T, HD>(o, p, buffers, barriers, i - 1);
        wgmma_wait<1>();
        keep(s);
        if (lane == 0) barrier_arrive(barriers + 8 * EMPTY(0, i % STAGES));
        const int start = (first + i) * TILE;
        if (i == n - 1 || (a.window > 0 && start <= tile.position + TILE - 1 - a.window)) mask_tile(s, start, position, a.window);
        softmax_tile(w, s, by);
        wgmma_wait<0>();
        keep(o);
        if (lane == 0) barrier_arrive(barriers + 8 * EMPTY(1, (i - 1) % STAGES));
        if (__any_sync(0xffffffffu, w.rescale[0] != 1.0f || w.rescale[1] != 1.0f)) {         /* times one changes no bit */
#pragma unroll
            for (int j = 0; j < HD / 2; j++) o[j] *= w.rescale[j % 4 / 2];
        }
        pack_tile<T>(p, s);
    }
    start_values<T, HD>(o, p, buffers, barriers, n - 1);
    wgmma_wait<0>();
    keep(o);
    const bool is_aligned = (uintptr_t)a.out % 4 == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = w.l[r];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        const float by_l = 1.0f / l;
        if (row + r * 8 >= tile.n_rows) continue;
        T *out = a.out + ((size_t)(tile.row + row + r * 8) * a.n_heads + head) * a.head_dim;
#pragma unroll
        for (int j = 0; j < HD / 8; j++) {
            const int column = j * 8 + lane % 4 * 2;
            if (column >= a.head_dim) break;
            const uint32_t v = warpgroup_products<T>::pair(o[j * 4 + r * 2] * by_l, o[j * 4 + r * 2 + 1] * by_l);
            if (is_aligned) *(uint32_t *)(out + column) = v;
            else {
                *(uint16_t *)(out + column) = (uint16_t)v;
                *(uint16_t *)(out + column + 1) = (uint16_t)(v >> 16);
            }
        }
    }
}
#endif

/* Block (x: KV head and pair of its heads, y: prompt tile, the longest first). */
template <typename T, int HD> static __global__ void __launch_bounds__(THREADS, 1) attention_wgmma(const __grid_constant__ attention_call<T> a)
{
#if HAS_WGMMA
    extern __shared__ char raw[];
    const uint32_t start = (shared_address(raw) + 1023) / 1024 * 1024;
    char *queries = raw + (start - shared_address(raw));
    const uint32_t buffers = start + (q_in_registers(HD) ? 0 : HEADS) * tile_bytes(HD), barriers = buffers + 2 * STAGES * tile_bytes(HD);
    const int group = a.n_heads / a.n_kv_heads, n_pairs = (group + HEADS - 1) / HEADS, kv_head = blockIdx.x / n_pairs, member = blockIdx.x % n_pairs * HEADS;
    const int n_members = min(HEADS, group - member), who = threadIdx.x / 128;
    const cuda_tile tile = a.batch.tiles[gridDim.y - 1 - blockIdx.y];
    const int first = a.window > 0 ? max(tile.position + 1 - a.window, 0) / TILE : 0, n = tile.position / TILE + 1 - first;
    if (threadIdx.x == 0) {
        for (int what = 0; what < 2; what++)
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(barriers + 8 * FULL(what, stage), 32);
                barrier_init(barriers + 8 * EMPTY(what, stage), 4 * n_members);
            }
    }
    __syncthreads();
    if (who == HEADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        produce<T, HD>(a, tile, kv_head, first, n, buffers, barriers);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (who < n_members) consume<T, HD>(a, tile, kv_head * group + member + who, first, n, queries + who * tile_bytes(HD), buffers, barriers);
    }
#endif
}

template <typename T, int HD> static void wgmma_launch(ops_cuda *o, const attention_call<T> &a)
{
    const int group = a.n_heads / a.n_kv_heads, n_pairs = (group + HEADS - 1) / HEADS;
    launch(o, "attention_wgmma", attention_wgmma<T, HD>, dim3((unsigned)(a.n_kv_heads * n_pairs), (unsigned)a.batch.n_tiles), THREADS, wgmma_shared_bytes(HD), a);
}

template <typename T> bool attention_wgmma_takes(const ops_cuda *o, int head_dim) { return o->sm == 90 && head_dim % 8 == 0; }

template <typename T> void attention_wgmma_run(ops_cuda *o, const attention_call<T> &a)
{
    FL_ASSERT((uintptr_t)a.k % 16 == 0 && (uintptr_t)a.v % 16 == 0 && a.batch.n_tiles <= 65535);
    if (a.head_dim <= 64) wgmma_launch<T, 64>(o, a);
    else if (a.head_dim <= 128) wgmma_launch<T, 128>(o, a);
    else if (a.head_dim <= 192) wgmma_launch<T, 192>(o, a);
    else wgmma_launch<T, 256>(o, a);
}

template <typename T> cudaError_t attention_wgmma_install(void)
{
    cudaError_t e = cudaFuncSetAttribute(attention_wgmma<T, 64>, cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma_shared_bytes(64));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(attention_wgmma<T, 128>, cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma_shared_bytes(128));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(attention_wgmma<T, 192>, cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma_shared_bytes(192));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(attention_wgmma<T, 256>, cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma_shared_bytes(256));
    return e;
}

template bool attention_wgmma_takes<__nv_bfloat16>(const ops_cuda *, int);
template bool attention_wgmma_takes<__half>(const ops_cuda *, int);
template void attention_wgmma_run<__nv_bfloat16>(ops_cuda *, const attention_call<__nv_bfloat16> &);
template void attention_wgmma_run<__half>(ops_cuda *, const attention_call<__half> &);
template cudaError_t attention_wgmma_install<__nv_bfloat16>(void);
template cudaError_t attention_wgmma_install<__half>(void);
