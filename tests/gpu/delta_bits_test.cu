/* delta_bits_test.cu - the causal convolution and the gated delta rule on the GPU against the scalar reference, and against themselves: outputs and states of a
 * sequence depend on the sequence alone, not on how its rows come in steps nor on others. States that nobody wrote are NaN.
 * Usage: delta_bits_test [f32|bf16|f16 [quick]], of all three types without */
#include "tests/gpu/gpu_case.h"

#define SLOTS 24

typedef struct { int32_t n_k, n_v, dk, dv, width; float reach; bool is_tiled; } shape;   /* reach of a: decays from none to nearly everything */

typedef struct { std::vector<float> conv, conv_state, delta, delta_state; } result;

/* Steps one after the other on the same states: what the last step gives for its rows and the states of all slots it used. */
typedef struct { ops *o; act_type t; shape s; std::vector<float> conv_state, delta_state, w, a_log, dt_bias; float *d_conv_state, *d_delta_state, *d_w, *d_a_log, *d_dt_bias; } machine;

static int32_t channels_of(const shape &s) { return 2 * s.n_k * s.dk + s.n_v * s.dv; }

static machine machine_open(ops *o, act_type t, const shape &s)
{
    machine m;
    m.o = o;
    m.t = t;
    m.s = s;
    m.conv_state.assign((size_t)SLOTS * (s.width - 1) * channels_of(s), NAN);
    m.delta_state.assign((size_t)SLOTS * s.n_v * s.dk * s.dv, NAN);
    m.w.resize((size_t)channels_of(s) * s.width);
    for (size_t i = 0; i < m.w.size(); i++) m.w[i] = value_of(key_of(1, i, 0, 0), 1.0f);
    for (int32_t h = 0; h < s.n_v; h++) {
        m.a_log.push_back(value_of(key_of(2, h, 0, 0), 1.0f));
        m.dt_bias.push_back(value_of(key_of(3, h, 0, 0), 1.0f));
    }
    m.d_conv_state = floats_put(o, m.conv_state);
    m.d_delta_state = floats_put(o, m.delta_state);
    m.d_w = floats_put(o, m.w);
    m.d_a_log = floats_put(o, m.a_log);
    m.d_dt_bias = floats_put(o, m.dt_bias);
    return m;
}
static void machine_close(machine &m)
{
    for (float *p : { m.d_conv_state, m.d_delta_state, m.d_w, m.d_a_log, m.d_dt_bias }) m.o->give(m.o, p, 0);
}

static std::vector<float> rows_of(const std::vector<float> &all, size_t row, size_t from, size_t n) { return std::vector<float>(all.begin() + from * row, all.begin() + (from + n) * row); }

/* The inputs of the rows of a step, each from its sequence's id and position. */
typedef struct { std::vector<float> x, qkv, a, b; int32_t x_stride; } inputs;

static inputs inputs_of(const machine &m, const step_batch &step, const std::vector<piece> &pieces)
{
    const int32_t n = step.b.n_rows, c = channels_of(m.s);
    inputs in;
    in.x_stride = c + 3;
    in.x.assign((size_t)n * in.x_stride, NAN);
    in.qkv.resize((size_t)n * c);
    in.a.resize((size_t)n * m.s.n_v);
    in.b.resize((size_t)n * m.s.n_v);
    for (int32_t r = 0; r < n; r++) {
        const uint64_t id = (uint64_t)pieces[step.seq_of_row[r]].id, p = (uint64_t)step.positions[r];
        for (int32_t i = 0; i < c; i++) {
            in.x[(size_t)r * in.x_stride + i] = act_round(m.t, value_of(key_of(10, id, p, i), 2.0f));
            in.qkv[(size_t)r * c + i] = act_round(m.t, value_of(key_of(11, id, p, i), 1.0f) + (i % 3 == 0 ? 0.3f : 0.0f));
        }
        for (int32_t h = 0; h < m.s.n_v; h++) {
            in.a[(size_t)r * m.s.n_v + h] = value_of(key_of(12, id, p, h), m.s.reach) - m.s.reach / 2;
            in.b[(size_t)r * m.s.n_v + h] = value_of(key_of(13, id, p, h), 3.0f);
        }
    }
    return in;
}

static result machine_step(machine &m, const std::vector<piece> &pieces)
{
    ops *o = m.o;
    const shape &s = m.s;
    step_batch step;
    step_make(step, pieces, 1, [](int32_t, int32_t) { return 0; });
    const inputs in = inputs_of(m, step, pieces);
    const size_t n = (size_t)step.b.n_rows, c = (size_t)channels_of(s);
    act *x = act_put(o, m.t, in.x), *qkv = act_put(o, m.t, in.qkv), *y = act_put(o, m.t, std::vector<float>(n * c + 64, NAN)), *out = act_put(o, m.t, std::vector<float>(n * s.n_v * s.dv + 64, NAN));
    float *a = floats_put(o, in.a), *b = floats_put(o, in.b);
    const weight w = { m.d_w, DTYPE_F32, (int32_t)c, s.width }, a_log = { m.d_a_log, DTYPE_F32, 1, s.n_v }, dt_bias = { m.d_dt_bias, DTYPE_F32, 1, s.n_v };
    o->begin(o, &step.b);
    o->conv_silu(o, y, x, in.x_stride, &w, m.d_conv_state, (int32_t)c, s.width, &step.b);
    o->gated_delta(o, out, qkv, a, b, &a_log, &dt_bias, m.d_delta_state, s.n_k, s.n_v, s.is_tiled, s.dk, s.dv, &step.b);
    fl_err err;
    must(o->finish(o, &err), err);
    result got = { act_get(o, m.t, y, n * c + 64), {}, act_get(o, m.t, out, n * s.n_v * s.dv + 64), {} };
    for (int32_t i = 0; i < 64; i++)
        if (!isnan(got.conv[n * c + i]) || !isnan(got.delta[n * s.n_v * s.dv + i])) { printf("FAIL written behind the last row\n"); exit(1); }
    got.conv.resize(n * c);
    got.delta.resize(n * s.n_v * s.dv);
    m.conv_state = act_get(o, ACT_F32, (const act *)m.d_conv_state, m.conv_state.size());
    m.delta_state = act_get(o, ACT_F32, (const act *)m.d_delta_state, m.delta_state.size());
    for (const piece &p : pieces) {
        const std::vector<float> cs = rows_of(m.conv_state, (s.width - 1) * c, p.slot, 1), ds = rows_of(m.delta_state, (size_t)s.n_v * s.dk * s.dv, p.slot, 1);
        got.conv_state.insert(got.conv_state.end(), cs.begin(), cs.end());
        got.delta_state.insert(got.delta_state.end(), ds.begin(), ds.end());
    }
    for (const void *p : { (void *)x, (void *)qkv, (void *)y, (void *)out, (void *)a, (void *)b }) o->give(o, (void *)p, 0);
    return got;
}

/* ---- against the reference ---- */

static void against_reference(ops *o, act_type t, const shape &s)
{
    const std::vector<std::vector<piece>> steps = {
        { { 1, 0, 1, true, 3 } }, { { 1, 1, 1, false, 3 }, { 2, 0, 64, true, 1 } }, { { 2, 64, 65, true, 1 }, { 1, 2, 1, false, 3 }, { 3, 0, 200, true, 7 } },
        { { 3, 200, 1, false, 7 }, { 2, 129, 1, false, 1 }, { 4, 0, 1, false, 0 }, { 5, 0, 2, true, 9 } }, { { 5, 2, 1, false, 9 }, { 6, 0, 31, true, 4 } },
    };
    machine m = machine_open(o, t, s);
    std::vector<double> conv_state(m.conv_state.begin(), m.conv_state.end()), delta_state(m.delta_state.begin(), m.delta_state.end());
    const size_t c = (size_t)channels_of(s);
    for (size_t i = 0; i < steps.size(); i++) {
        const result got = machine_step(m, steps[i]);
        step_batch step;
        step_make(step, steps[i], 1, [](int32_t, int32_t) { return 0; });
        const inputs in = inputs_of(m, step, steps[i]);
        const weight w = { m.w.data(), DTYPE_F32, (int32_t)c, s.width }, a_log = { m.a_log.data(), DTYPE_F32, 1, s.n_v }, dt_bias = { m.dt_bias.data(), DTYPE_F32, 1, s.n_v };
        std::vector<double> y(in.qkv.size()), out(in.a.size() * s.dv), ys, ds;
        ref_conv_silu(y.data(), in.x.data(), in.x_stride, &w, conv_state.data(), (int32_t)c, s.width, &step.b);
        ref_gated_delta(out.data(), in.qkv.data(), in.a.data(), in.b.data(), &a_log, &dt_bias, delta_state.data(), s.n_k, s.n_v, s.is_tiled, s.dk, s.dv, &step.b);
        for (const piece &p : steps[i]) {
            ys.insert(ys.end(), conv_state.begin() + p.slot * (s.width - 1) * c, conv_state.begin() + (p.slot + 1) * (s.width - 1) * c);
            const size_t n = (size_t)s.n_v * s.dk * s.dv;
            ds.insert(ds.end(), delta_state.begin() + p.slot * n, delta_state.begin() + (p.slot + 1) * n);
        }
        const double of_act = t == ACT_F32 ? 2e-5 : t == ACT_BF16 ? 5e-3 : 1e-3;
        char name[200], seen[4][200];
        const bool good[4] = { near_reference(got.conv, y, of_act, seen[0], 200), near_reference(got.conv_state, ys, 0.0, seen[1], 200),
                               near_reference(got.delta, out, of_act, seen[2], 200), near_reference(got.delta_state, ds, t == ACT_F32 ? 2e-5 : 1e-4, seen[3], 200) };
        const char *of[4] = { "conv", "conv state", "delta", "delta state" };
        for (int j = 0; j < 4; j++) {
            snprintf(name, sizeof name, "reference %s %s heads %d %d dk %d dv %d width %d reach %g step %zu", of[j], act_name(t), s.n_k, s.n_v, s.dk, s.dv, s.width, (double)s.reach, i);
            case_result(good[j], name, seen[j]);
            if (good[j] && j == 3 && i == 2) printf("     state error %s\n", seen[3]);
        }
    }
    machine_close(m);
}

/* ---- bits ---- */

static bool same_result(const result &a, const result &b, char *seen, size_t n)
{
    return same_bits(a.conv, b.conv, seen, n) && same_bits(a.delta, b.delta, seen, n) && same_bits(a.conv_state, b.conv_state, seen, n) && same_bits(a.delta_state, b.delta_state, seen, n);
}

/* The prompt of sequence 7 in the given chunks, beside `others` in the first step; then its generated tokens one by one. Outputs of all its rows, states at the end. */
static result walk(ops *o, act_type t, const shape &s, const std::vector<int32_t> &cuts, int32_t n_generated, int32_t slot, const std::vector<piece> &before, const std::vector<piece> &after)
{
    machine m = machine_open(o, t, s);
    result all;
    int32_t at = 0;
    for (size_t i = 0; i < cuts.size() + (size_t)n_generated; i++) {
        const bool is_prefill = i < cuts.size();
        std::vector<piece> pieces = before;
        pieces.push_back({ 7, at, is_prefill ? cuts[i] : 1, is_prefill, slot });
        pieces.insert(pieces.end(), after.begin(), after.end());
        const result got = machine_step(m, pieces);
        size_t first = 0;
        for (const piece &p : before) first += (size_t)p.n_rows;
        const size_t c = (size_t)channels_of(s), n = (size_t)pieces[before.size()].n_rows;
        const std::vector<float> conv = rows_of(got.conv, c, first, n), delta = rows_of(got.delta, (size_t)s.n_v * s.dv, first, n);
        all.conv.insert(all.conv.end(), conv.begin(), conv.end());
        all.delta.insert(all.delta.end(), delta.begin(), delta.end());
        all.conv_state = rows_of(got.conv_state, (s.width - 1) * c, before.size(), 1);
        all.delta_state = rows_of(got.delta_state, (size_t)s.n_v * s.dk * s.dv, before.size(), 1);
        at += (int32_t)n;
    }
    machine_close(m);
    return all;
}

static void bits(ops *o, act_type t, const shape &s)
{
    char name[200], seen[200] = "";
    snprintf(name, sizeof name, "%s heads %d %d dk %d dv %d width %d: ", act_name(t), s.n_k, s.n_v, s.dk, s.dv, s.width);
    const size_t n = strlen(name);
    const result whole = walk(o, t, s, { 330 }, 3, 2, {}, {});
    bool good = same_result(whole, walk(o, t, s, { 64, 64, 64, 64, 64, 10 }, 3, 2, {}, {}), seen, sizeof seen);
    good = good && same_result(whole, walk(o, t, s, { 128, 64, 138 }, 3, 2, {}, {}), seen, sizeof seen);
    good = good && same_result(whole, walk(o, t, s, { 320, 10 }, 3, 2, {}, {}), seen, sizeof seen);
    snprintf(name + n, sizeof name - n, "a prompt in chunks of any number, then generated tokens");
    case_result(good, name, seen);
    good = same_result(whole, walk(o, t, s, { 192, 138 }, 3, 11, { { 1, 0, 100, true, 0 }, { 2, 0, 1, false, 5 } }, { { 3, 0, 1, false, 6 }, { 4, 0, 257, true, 1 } }), seen, sizeof seen);
    snprintf(name + n, sizeof name - n, "beside others, in another slot");
    case_result(good, name, seen);
    std::vector<piece> many;
    for (int32_t i = 0; i < 12; i++) many.push_back({ 20 + i, 0, 1, false, 12 + i });
    good = same_result(whole, walk(o, t, s, { 330 }, 3, 4, many, {}), seen, sizeof seen);
    snprintf(name + n, sizeof name - n, "beside many generated tokens");
    case_result(good, name, seen);
    const result shorter = walk(o, t, s, { 300 }, 0, 4, {}, {});
    good = same_bits(rows_of(whole.delta, (size_t)s.n_v * s.dv, 0, 300), shorter.delta, seen, sizeof seen) && same_bits(rows_of(whole.conv, (size_t)channels_of(s), 0, 300), shorter.conv, seen, sizeof seen);
    snprintf(name + n, sizeof name - n, "a shorter prompt");
    case_result(good, name, seen);
}

static void run_type(act_type t, bool is_quick)
{
    ops *o = case_open(t);
    const std::vector<shape> shapes = { { 4, 8, 128, 128, 4, 1.0f, false }, { 2, 2, 128, 128, 4, 12.0f, false }, { 1, 3, 24, 16, 4, 3.0f, false }, { 2, 6, 12, 20, 2, 3.0f, true },
                                        { 1, 1, 256, 33, 8, 2.0f, false }, { 3, 3, 8, 130, 5, 3.0f, false }, { 1, 2, 65, 64, 3, 3.0f, false }, { 1, 1, 1, 1, 2, 3.0f, false },
                                        { 2, 4, 72, 48, 4, 3.0f, true } };
    for (size_t i = 0; i < shapes.size() && !(is_quick && i >= 3); i++) against_reference(o, t, shapes[i]);
    for (size_t i = 0; i < shapes.size() && !(is_quick && i >= 1); i++) bits(o, t, shapes[i]);
    if (t == ACT_F32) { o->close(o); return; }
    cuda_of(o)->shared_most = SHARED_LEAST_80;           /* as on an sm_86, where the chunked form has no room: prompts go row by row */
    delta_close(cuda_of(o));
    fl_err err;
    must(t == ACT_BF16 ? delta_install<__nv_bfloat16>(cuda_of(o), &err) : delta_install<__half>(cuda_of(o), &err), err);
    case_result(cuda_of(o)->delta == NULL, "without shared memory for chunks nothing is taken for them", "scratch was taken");
    against_reference(o, t, shapes[0]);
    if (!is_quick) bits(o, t, shapes[0]);
    o->close(o);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (act_type t : { ACT_F32, ACT_BF16, ACT_F16 })
        if (argc < 2 || strcmp(argv[1], act_name(t)) == 0) run_type(t, argc > 2);
    return case_end();
}
