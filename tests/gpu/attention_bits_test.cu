/* attention_bits_test.cu - attention on the GPU against the scalar reference at odd sizes and tile edges, and against itself: a row's bits depend on the row and
 * its keys and values alone. Whatever nobody wrote is NaN.
 * Usage: attention_bits_test [f32|bf16|f16 [quick]], of all three types without */
#include "tests/gpu/gpu_case.h"

#define TABLE 24                         /* blocks of a sequence at most */
#define BLOCKS 300

typedef struct { int32_t head_dim, n_kv_heads, group, window, gap; } shape;

/* Where blocks lie: another permutation for every `way`. */
static int32_t place_of(int32_t way, int32_t id, int32_t j) { return (int32_t)(((int64_t)(id * TABLE + j) * (way == 0 ? 1 : way == 1 ? 13 : 229) + way * 7) % BLOCKS); }

/* What attention gives for the rows of `pieces`, in order: [rows, heads, head_dim]. KV is there up to each piece's end. The grid is one for contexts of least_context at least. */
static std::vector<float> run(ops *o, act_type t, const shape &s, const std::vector<piece> &pieces, int32_t way, std::vector<double> *reference, int32_t least_context = 0)
{
    step_batch step;
    step_make(step, pieces, TABLE, [=](int32_t id, int32_t j) { return place_of(way, id, j); });
    const int32_t n_heads = s.n_kv_heads * s.group, head_stride = s.head_dim + s.gap, stride = n_heads * head_stride + s.gap;
    std::vector<float> k((size_t)BLOCKS * s.n_kv_heads * 64 * s.head_dim, NAN), v(k.size(), NAN), q((size_t)step.b.n_rows * stride, NAN);
    for (const piece &p : pieces)
        for (int32_t i = 0; i < p.first + p.n_rows; i++)
            for (int32_t h = 0; h < s.n_kv_heads; h++)
                for (int32_t d = 0; d < s.head_dim; d++) {
                    const size_t at = (((size_t)place_of(way, p.id, i / 64) * s.n_kv_heads + h) * 64 + i % 64) * s.head_dim + d;
                    k[at] = act_round(t, value_of(key_of(1 + p.id, i, h, d), 2.0f));
                    v[at] = act_round(t, value_of(key_of(100 + p.id, i, h, d), 1.0f));
                }
    for (int32_t r = 0; r < step.b.n_rows; r++)
        for (int32_t h = 0; h < n_heads; h++)
            for (int32_t d = 0; d < s.head_dim; d++)
                q[(size_t)r * stride + h * head_stride + d] = act_round(t, value_of(key_of(200 + pieces[step.seq_of_row[r]].id, step.positions[r], h, d), 3.0f));
    const float scale = 1.0f / sqrtf((float)s.head_dim);
    const size_t n_out = (size_t)step.b.n_rows * n_heads * s.head_dim;
    if (reference) {
        const ops_kv kv = { k.data(), v.data(), s.n_kv_heads, s.head_dim };
        reference->resize(n_out);
        ref_attention(reference->data(), q.data(), stride, head_stride, n_heads, &kv, (double)scale, s.window, &step.b);
    }
    const ops_kv kv = { act_put(o, t, k), act_put(o, t, v), s.n_kv_heads, s.head_dim };
    act *dq = act_put(o, t, q), *out = act_put(o, t, std::vector<float>(n_out + 64, NAN));
    o->begin(o, &step.b);
    cuda_of(o)->batch.most_context = std::max(cuda_of(o)->batch.most_context, least_context);
    o->attention(o, out, dq, stride, head_stride, n_heads, &kv, scale, s.window, &step.b);
    fl_err err;
    must(o->finish(o, &err), err);
    std::vector<float> got = act_get(o, t, out, n_out + 64);
    for (int32_t i = 0; i < 64; i++)
        if (!isnan(got[n_out + i])) { printf("FAIL written behind the last row\n"); exit(1); }
    got.resize(n_out);
    o->give(o, kv.k, 0);
    o->give(o, kv.v, 0);
    o->give(o, dq, 0);
    o->give(o, out, 0);
    return got;
}

static std::vector<float> rows_of(const std::vector<float> &all, const shape &s, int32_t from, int32_t n)
{
    const size_t row = (size_t)s.n_kv_heads * s.group * s.head_dim;
    return std::vector<float>(all.begin() + from * row, all.begin() + (from + n) * row);
}

static void against_reference(ops *o, act_type t, const shape &s)
{
    const std::vector<std::vector<piece>> batches = {
        { { 1, 0, 1, true, 0 } }, { { 1, 0, 64, true, 0 } }, { { 2, 0, 65, true, 0 }, { 3, 64, 31, true, 0 } }, { { 2, 128, 200, true, 0 } },
        { { 1, 0, 1, false, 0 } }, { { 1, 63, 1, false, 0 }, { 2, 64, 1, false, 0 }, { 3, 255, 1, false, 0 }, { 4, 256, 1, false, 0 }, { 5, 700, 1, false, 0 } },
        { { 1, 5, 1, false, 0 }, { 2, 64, 17, true, 0 }, { 3, 300, 1, false, 0 }, { 4, 0, 130, true, 0 } },
    };
    for (size_t i = 0; i < batches.size(); i++) {
        char name[200], seen[200];
        std::vector<double> want;
        const std::vector<float> got = run(o, t, s, batches[i], (int32_t)(i % 3), &want);
        snprintf(name, sizeof name, "reference %s head_dim %d kv_heads %d group %d window %d gap %d batch %zu", act_name(t), s.head_dim, s.n_kv_heads, s.group, s.window, s.gap, i);
        case_result(near_reference(got, want, t == ACT_F32 ? 2e-5 : t == ACT_BF16 ? 8e-3 : 1.5e-3, seen, sizeof seen), name, seen);
    }
}

static void bits(ops *o, act_type t, const shape &s)
{
    char name[200], seen[200] = "";
    const char *of = act_name(t);
    const std::vector<float> whole = run(o, t, s, { { 7, 0, 330, true, 0 } }, 0, NULL);
    bool good = same_bits(whole, run(o, t, s, { { 7, 0, 330, true, 0 } }, 1, NULL), seen, sizeof seen);
    snprintf(name, sizeof name, "%s head_dim %d group %d window %d: ", of, s.head_dim, s.group, s.window);
    const size_t n = strlen(name);
    snprintf(name + n, sizeof name - n, "permuted blocks");
    case_result(good, name, seen);

    good = true;
    for (const std::vector<int32_t> &cuts : { std::vector<int32_t>{ 64, 64, 64, 64, 64, 10 }, std::vector<int32_t>{ 128, 64, 138 }, std::vector<int32_t>{ 320, 10 } }) {
        std::vector<float> all;
        int32_t at = 0;
        for (int32_t c : cuts) {
            const std::vector<float> part = run(o, t, s, { { 7, at, c, true, 0 } }, 2, NULL);
            all.insert(all.end(), part.begin(), part.end());
            at += c;
        }
        good = good && same_bits(whole, all, seen, sizeof seen);
    }
    snprintf(name + n, sizeof name - n, "a prompt in chunks of any number");
    case_result(good, name, seen);

    const std::vector<float> mixed = run(o, t, s, { { 1, 900, 1, false, 0 }, { 2, 0, 100, true, 0 }, { 7, 0, 330, true, 0 }, { 3, 64, 77, true, 0 }, { 4, 5, 1, false, 0 } }, 1, NULL);
    snprintf(name + n, sizeof name - n, "a prompt beside others");
    case_result(same_bits(whole, rows_of(mixed, s, 101, 330), seen, sizeof seen), name, seen);

    /* A row that is cut short has the same first rows: the last partial chunk computes as if padded. */
    snprintf(name + n, sizeof name - n, "a shorter prompt");
    case_result(same_bits(rows_of(whole, s, 0, 300), run(o, t, s, { { 7, 0, 300, true, 0 } }, 0, NULL), seen, sizeof seen), name, seen);

    for (int32_t position : { 0, 63, 64, 255, 256, 777, 1200 }) {
        const std::vector<float> alone = run(o, t, s, { { 9, position, 1, false, 0 } }, 0, NULL);
        std::vector<piece> many;
        for (int32_t i = 0; i < 9; i++) many.push_back({ i, i * 31, 1, false, 0 });
        many.push_back({ 9, position, 1, false, 0 });
        many.push_back({ 10, 1400, 1, false, 0 });
        many.push_back({ 11, 64, 70, true, 0 });
        good = same_bits(alone, rows_of(run(o, t, s, many, 1, NULL), s, 9, 1), seen, sizeof seen);
        std::vector<piece> shortest = { { 8, 0, 70, true, 0 }, { 9, position, 1, false, 0 } };
        good = good && same_bits(alone, rows_of(run(o, t, s, shortest, 2, NULL), s, 70, 1), seen, sizeof seen);
        snprintf(name + n, sizeof name - n, "a decode row at %d beside others", position);
        case_result(good, name, seen);
        good = true;
        for (int32_t context : { position + 257, 2048, 40000 }) good = good && same_bits(alone, run(o, t, s, { { 9, position, 1, false, 0 } }, 1, NULL, context), seen, sizeof seen);
        snprintf(name + n, sizeof name - n, "a decode row at %d in the grid of larger contexts", position);
        case_result(good, name, seen);
    }
}

/* A context whose decode rows would have no room for their partial results is refused before anything runs. */
static void long_contexts_are_refused(ops *o)
{
    ops_limits limits = {};
    fl_err err = {};
    limits.n_rows = limits.n_seqs = limits.n_logits = 1;
    limits.seq_blocks = 1 << 18;                         /* 16,777,216 tokens, the longest context that a config may ask for */
    limits.n_heads = 64;
    limits.head_dim = 128;
    const bool is_refused = o->reserve(o, &limits, &err) == FL_UNSUPPORTED && strstr(err.text, "--max-context");
    case_result(is_refused, "a context beyond the room for partial results is refused", err.text);
    limits.seq_blocks = 1 << 12;
    case_result(o->reserve(o, &limits, &err) == FL_OK, "a context of 262,144 is not", err.text);
}

static void run_type(act_type t, bool is_quick)
{
    ops *o = case_open(t);
    long_contexts_are_refused(o);
    const std::vector<shape> shapes = { { 128, 2, 4, 0, 0 }, { 256, 2, 4, 0, 256 }, { 64, 1, 5, 100, 0 }, { 18, 2, 1, 0, 2 }, { 33, 1, 3, 70, 1 }, { 1, 1, 1, 0, 0 },
                                        { 96, 1, 17, 0, 0 }, { 200, 1, 2, 1, 8 }, { 80, 2, 8, 64, 0 }, { 255, 1, 1, 0, 3 }, { 32, 3, 6, 513, 0 }, { 192, 1, 6, 0, 0 } };
    for (size_t i = 0; i < shapes.size() && !(is_quick && i >= 5); i++) against_reference(o, t, shapes[i]);
    for (size_t i = 0; i < shapes.size() && !(is_quick && i >= 1); i++)
        if (i < 5 || i == 10) bits(o, t, shapes[i]);
    o->close(o);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (act_type t : { ACT_F32, ACT_BF16, ACT_F16 })
        if (argc < 2 || strcmp(argv[1], act_name(t)) == 0) run_type(t, argc > 2);
    return case_end();
}
