/* model.h - a model directory or .gguf file as a forward pass: config, mapped weights, rotary table, and one family's code from models/. Or random:SEED:CONFIG_DIR, for benches: the shape of
 * CONFIG_DIR/config.json (or of a name in model_shapes.h), with random values.
 * Weights  on the host they stay in the mapped file in their dtype, quantized ones too; on a device they are stored once (weight_store.h). Made anew on the host at open are:
 *          F8_E4M3, expanded to 4 bytes a value; the query and key projections of a GGUF file of llama, whose rows go back to their order as they are stored; DeltaNet's decays of a GGUF file.
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "engine/kv_cache.h"
#include "engine/model_config.h"
#include "engine/state_pool.h"
#include "engine/weight_files.h"
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct model model;

/* What the router chose in one layer of the last model_forward. */
typedef struct {
    int32_t layer, top_k;
    const int32_t *ids;              /* [batch rows, top_k] in the order the router chose them: the device's memory, until the next forward */
    const float *weights;            /* [batch rows, top_k] what each expert's output is multiplied by: likewise */
} model_routing;

/* What model_load takes, and what lies in the mapped files. */
typedef struct {
    size_t mapped_bytes;             /* of all tensors, those of no use to the text model among them; 0 when they are random */
    size_t stored_bytes;             /* of weights on a device, or random ones */
    size_t expanded_bytes;           /* of weights that are made anew, on the host: see above */
    size_t table_bytes;              /* of views of weights, on the host */
    size_t rope_bytes;               /* of rotary tables, on the device (on the host address space, used as far as positions come) */
    size_t scratch_bytes;            /* activations, on the device */
    size_t room_bytes;               /* of products with quantized weights, on the host */
} model_needs;

/* Map the model at `path` and hold it against itself: every tensor that the config or the metadata asks for is there with its shape and dtype. Reads no weight, so it is as quick for a large model.
 * FL_CORRUPT, FL_UNSUPPORTED or FL_NOT_FOUND with a sentence that names the file, field or tensor; FL_FULL without memory. */
fl_status model_map(model **out, const char *path, fl_err *err);

/* For batches of at most n_rows_max rows and positions below context_max (0 = the config's), on o's device. Before model_load. FL_FULL without memory for the views. */
fl_status model_measure(model_needs *needs, model *m, const ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err);

/* Make a mapped model ready to run: every value is read once, and stored on a device that is not the host. `o` is borrowed for life. FL_CORRUPT for a NaN, FL_FULL without memory; then it can only be closed. */
fl_status model_load(model *m, ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err);

/* Let the device find its fastest kernels for this model's products, of at most n_logits rows of logits at a time. Once, after model_load, while the device has memory to try; results
 * are the same without it. */
fl_status model_prepare(model *m, int32_t n_logits, fl_err *err);

/* model_map and model_load. */
fl_status model_open(model **out, const char *path, ops *o, int32_t n_rows_max, int32_t context_max, fl_err *err);
void      model_close(model *m);                         /* accepts NULL */

const model_config *model_describe(const model *m);
const weight_files *model_weights(const model *m);       /* NULL when they are random */
int32_t model_context(const model *m);
dtype   model_dtype(const model *m);                     /* of the embedding table */

/* Run the rows of `batch`, writing their keys, values and states, and store the final-norm hidden rows of batch->logit_rows in hidden [n_logits, config.hidden]: what goes to the
 * device first, and calls that can be replayed (ops.h) once that is done. */
void model_begin(model *m, const ops_batch *batch);
void model_run(model *m, const ops_batch *batch, kv_cache *kv, state_pool *states, act *hidden);
void model_forward(model *m, const ops_batch *batch, kv_cache *kv, state_pool *states, act *hidden);     /* both */

/* logits [n_rows, n_vocab] of hidden rows. All of these are the device's memory. */
void model_logits(model *m, const act *hidden, int32_t n_rows, float *logits);

model_routing model_routing_at(const model *m, int32_t index);

#endif
