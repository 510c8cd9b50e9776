#include "coordinator/printable.h"

char *printable(char *text)
{
    char *out = text;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        int is_c1 = at[0] == 0xC2 && at[1] >= 0x80 && at[1] < 0xA0;
        *out++ = is_c1 || *at < 0x20 || *at == 0x7F ? '?' : (char)*at;
        at += is_c1;
    }
    *out = '\0';
    return text;
}
