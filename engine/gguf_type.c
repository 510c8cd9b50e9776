#include "engine/gguf_type.h"

#include <stddef.h>

/* By number; a hole has no name. */
static const gguf_type types[] = {
    [0] = { "F32", 1, 4, true, DTYPE_F32 },          [1] = { "F16", 1, 2, true, DTYPE_F16 },          [2] = { "Q4_0", 32, 18, true, DTYPE_Q4_0 },      [3] = { "Q4_1", 32, 20, true, DTYPE_Q4_1 },
    [6] = { "Q5_0", 32, 22, true, DTYPE_Q5_0 },      [7] = { "Q5_1", 32, 24, true, DTYPE_Q5_1 },      [8] = { "Q8_0", 32, 34, true, DTYPE_Q8_0 },      [9] = { "Q8_1", 32, 36, false, 0 },
    [10] = { "Q2_K", 256, 84, true, DTYPE_Q2_K },    [11] = { "Q3_K", 256, 110, true, DTYPE_Q3_K },   [12] = { "Q4_K", 256, 144, true, DTYPE_Q4_K },   [13] = { "Q5_K", 256, 176, true, DTYPE_Q5_K },
    [14] = { "Q6_K", 256, 210, true, DTYPE_Q6_K },   [15] = { "Q8_K", 256, 292, false, 0 },           [16] = { "IQ2_XXS", 256, 66, false, 0 },         [17] = { "IQ2_XS", 256, 74, false, 0 },
    [18] = { "IQ3_XXS", 256, 98, false, 0 },         [19] = { "IQ1_S", 256, 50, false, 0 },           [20] = { "IQ4_NL", 32, 18, true, DTYPE_IQ4_NL }, [21] = { "IQ3_S", 256, 110, false, 0 },
    [22] = { "IQ2_S", 256, 82, false, 0 },           [23] = { "IQ4_XS", 256, 136, true, DTYPE_IQ4_XS }, [24] = { "I8", 1, 1, false, 0 },               [25] = { "I16", 1, 2, false, 0 },
    [26] = { "I32", 1, 4, false, 0 },                [27] = { "I64", 1, 8, false, 0 },                [28] = { "F64", 1, 8, false, 0 },                [29] = { "IQ1_M", 256, 56, false, 0 },
    [30] = { "BF16", 1, 2, true, DTYPE_BF16 },       [34] = { "TQ1_0", 256, 54, false, 0 },           [35] = { "TQ2_0", 256, 66, false, 0 },           [39] = { "MXFP4", 32, 17, true, DTYPE_MXFP4 },
    [40] = { "NVFP4", 64, 36, true, DTYPE_NVFP4 },   [41] = { "Q1_0", 128, 18, false, 0 },            [42] = { "Q2_0", 64, 18, false, 0 },
};

const gguf_type *gguf_type_find(uint32_t number)
{
    return number < sizeof types / sizeof *types && types[number].name ? &types[number] : NULL;
}

const char *gguf_file_type_tag(int64_t number)
{
    static const char *const tags[] = {
        [0] = "F32",      [1] = "F16",     [2] = "Q4_0",    [3] = "Q4_1",    [7] = "Q8_0",    [8] = "Q5_0",    [9] = "Q5_1",    [10] = "Q2_K",       [11] = "Q3_K_S", [12] = "Q3_K_M",
        [13] = "Q3_K_L",  [14] = "Q4_K_S", [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M", [18] = "Q6_K",   [19] = "IQ2_XXS", [20] = "IQ2_XS",    [21] = "Q2_K_S", [22] = "IQ3_XS",
        [23] = "IQ3_XXS", [24] = "IQ1_S",  [25] = "IQ4_NL", [26] = "IQ3_S",  [27] = "IQ3_M",  [28] = "IQ2_S",  [29] = "IQ2_M",  [30] = "IQ4_XS",     [31] = "IQ1_M",  [32] = "BF16",
        [36] = "TQ1_0",   [37] = "TQ2_0",  [38] = "MXFP4_MOE", [39] = "NVFP4", [40] = "Q1_0",
    };
    if (number == 1024) return "GUESSED";
    return number >= 0 && number < (int64_t)(sizeof tags / sizeof *tags) && tags[number] ? tags[number] : "";
}
