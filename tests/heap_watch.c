#include "tests/heap_watch.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif

static atomic_size_t live, peak, base, left_to_failure;
static atomic_bool failed;

static void count_in(size_t n_bytes)
{
    size_t now = atomic_fetch_add(&live, n_bytes) + n_bytes, before = atomic_load(&peak);
    while (now > before && !atomic_compare_exchange_weak(&peak, &before, now)) {}
}

static void count_out(size_t n_bytes) { atomic_fetch_sub(&live, n_bytes); }

size_t heap_watch_peak(void)
{
    size_t top = atomic_load(&peak), from = atomic_load(&base);
    return top > from ? top - from : 0;
}

void heap_watch_fail_at(size_t n)
{
    atomic_store(&failed, false);
    atomic_store(&left_to_failure, n);
}

bool heap_watch_failed(void) { return atomic_load(&failed); }

static void mark_beginning(void)
{
    atomic_store(&base, atomic_load(&live));
    atomic_store(&peak, atomic_load(&live));
}

#ifdef UNDER_SANITIZER

/* sanitizer/allocator_interface.h, which not every compiler's package installs */
int    __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t), void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *p);

static void on_malloc(const volatile void *p, size_t n_bytes) { if (p) count_in(n_bytes); }
static void on_free(const volatile void *p) { if (p) count_out(__sanitizer_get_allocated_size(p)); }

/* What was taken before the hooks were there would be subtracted when it is freed: it is counted in by a start far above zero. */
void heap_watch_begin(void)
{
    static bool installed;
    if (!installed) {
        atomic_store(&live, (size_t)1 << 40);
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
        installed = true;
    }
    mark_beginning();
}

bool heap_watch_can_fail(void) { return false; }

#else

void heap_watch_begin(void) { mark_beginning(); }
bool heap_watch_can_fail(void) { return true; }

/* glibc's own allocator under its other names. */
void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t n, size_t n_bytes);
void *__libc_realloc(void *p, size_t n_bytes);
void *__libc_memalign(size_t alignment, size_t n_bytes);
void  __libc_free(void *p);

static bool must_fail(void)
{
    size_t left = atomic_load(&left_to_failure);
    while (left > 0 && !atomic_compare_exchange_weak(&left_to_failure, &left, left - 1)) {}
    if (left != 1) return false;
    atomic_store(&failed, true);
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    if (p) count_in(malloc_usable_size(p));
    return p;
}

void *malloc(size_t n_bytes) { return must_fail() ? NULL : counted(__libc_malloc(n_bytes)); }
void *calloc(size_t n, size_t n_bytes) { return must_fail() ? NULL : counted(__libc_calloc(n, n_bytes)); }

void free(void *p)
{
    if (p) count_out(malloc_usable_size(p));
    __libc_free(p);
}

void *realloc(void *p, size_t n_bytes)
{
    if (must_fail()) return NULL;
    size_t before = p ? malloc_usable_size(p) : 0;
    void *q = __libc_realloc(p, n_bytes);
    if (!q && n_bytes > 0) return NULL;
    count_out(before);
    return counted(q);
}

void *memalign(size_t alignment, size_t n_bytes) { return must_fail() ? NULL : counted(__libc_memalign(alignment, n_bytes)); }
void *aligned_alloc(size_t alignment, size_t n_bytes) { return memalign(alignment, n_bytes); }

int posix_memalign(void **out, size_t alignment, size_t n_bytes)
{
    if (alignment < sizeof(void *) || (alignment & (alignment - 1))) return EINVAL;
    void *p = memalign(alignment, n_bytes);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

#endif
