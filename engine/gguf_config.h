/* gguf_config.h - a GGUF file's metadata as a model_config: each key becomes the config.json field it was made from, so that both ways in have one meaning and one set of ranges.
 * Source   the keys that llama.cpp's converter writes for llama, qwen3, qwen3moe, qwen35, qwen35moe, gemma3 and laguna. What GGUF leaves out is taken from tensors (the vocabulary,
 *          a tied head, biases, laguna's gates) or is fixed there for the architecture (gemma3's scale of attention; qwen3moe's weights of experts sum to 1).
 * Undone   norm weights that have 1 added (norm_add), the order of DeltaNet's value heads (linear_config), rope_freqs.weight (rope_config's factors). */
#ifndef ENGINE_GGUF_CONFIG_H
#define ENGINE_GGUF_CONFIG_H

#include "engine/gguf.h"
#include "engine/model_config.h"

/* FL_UNSUPPORTED for an architecture, or a setting of it, that nothing here computes; FL_CORRUPT for a key of the wrong type or outside its range; FL_NOT_FOUND for a missing one; each with a
 * sentence that names file and key. On failure *config is untouched. */
fl_status gguf_config_read(model_config *config, const gguf *g, fl_err *err);

/* Whether nothing is left over: is_used says of each tensor of the file whether the model of n_layers asked for it. FL_UNSUPPORTED, naming the first that did not although it is part of the
 * language model: without it another model would be computed. */
fl_status gguf_config_check_rest(const gguf *g, int32_t n_layers, const bool *is_used, fl_err *err);

#endif
