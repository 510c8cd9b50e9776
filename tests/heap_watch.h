/* heap_watch.h - what the process takes from the heap, libraries included: the default build replaces malloc and its relatives (glibc lets a program do so), the sanitizer builds
 * use their own allocator's hooks. Only a test that links heap_watch.c is watched. Memory maps and thread stacks are not counted.
 * Threads  any thread is counted; the functions here are for one. */
#ifndef TESTS_HEAP_WATCH_H
#define TESTS_HEAP_WATCH_H

#include <stdbool.h>
#include <stddef.h>

void   heap_watch_begin(void);                           /* from now on: the peak is measured against what is live here */
size_t heap_watch_peak(void);                            /* most bytes that were live at once since then, beyond what was live at the beginning */

/* The n-th allocation from here on (n >= 1) gives NULL, once; 0 switches that off. */
bool   heap_watch_can_fail(void);                        /* false under a sanitizer */
void   heap_watch_fail_at(size_t n);
bool   heap_watch_failed(void);                          /* it came to that allocation */

#endif
