#include "worker/sandbox_filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define FILTER_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define FILTER_ARCH AUDIT_ARCH_AARCH64
#endif

/* Numbers from 424 on are the same on every architecture, so a call that this libc does not know yet is refused too. */
static const uint32_t refused[] = {
    /* other processes */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, 438 /* pidfd_getfd */, 440 /* process_madvise */, 448 /* process_mrelease */,
    /* namespaces and mounts */
    SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, 428 /* open_tree */, 429 /* move_mount */, 430 /* fsopen */, 431 /* fsconfig */, 432 /* fsmount */,
    433 /* fspick */, 442 /* mount_setattr */, 457 /* statmount */, 458 /* listmount */, SYS_name_to_handle_at, SYS_open_by_handle_at,
    /* large kernel surfaces that no Python program of a code task needs */
    SYS_bpf, SYS_perf_event_open, 425 /* io_uring_setup */, 426 /* io_uring_enter */, 427 /* io_uring_register */, SYS_userfaultfd, SYS_personality, SYS_keyctl, SYS_add_key, SYS_request_key,
    SYS_fanotify_init, SYS_fanotify_mark, SYS_quotactl, 443 /* quotactl_fd */, SYS_acct, SYS_syslog, SYS_lookup_dcookie, SYS_nfsservctl, SYS_vhangup,
    444 /* landlock_create_ruleset */, 445 /* landlock_add_rule */, 446 /* landlock_restrict_self */, 453 /* map_shadow_stack */,
    /* the machine */
    SYS_kexec_load, SYS_kexec_file_load, SYS_reboot, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_swapon, SYS_swapoff, SYS_sethostname, SYS_setdomainname, SYS_settimeofday,
    SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
#if defined(__x86_64__)
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS__sysctl, SYS_create_module, SYS_get_kernel_syms, SYS_query_module, SYS_ustat, SYS_sysfs,
#endif
    /* placement of memory, and memory that the process's limits do not count */
    SYS_mbind, SYS_set_mempolicy, SYS_migrate_pages, SYS_move_pages, 450 /* set_mempolicy_home_node */, SYS_memfd_create, 447 /* memfd_secret */, SYS_shmget, SYS_shmat, SYS_semget, SYS_msgget, SYS_mq_open,
    /* the network: what is left of it after --unshare-net */
    SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4,
};

#define REFUSE(error) (SECCOMP_RET_ERRNO | ((error) & SECCOMP_RET_DATA))
#define DATA(field) ((uint32_t)offsetof(struct seccomp_data, field))
#define LOW_WORD(argument) (DATA(args) + 8u * (argument))                    /* both architectures are little-endian */

typedef struct { struct sock_filter code[SANDBOX_FILTER_BYTES_MAX / sizeof(struct sock_filter)]; size_t n; } builder;

static void put(builder *b, uint16_t code, uint32_t k, uint8_t jump_true, uint8_t jump_false)
{
    FL_ASSERT(b->n < sizeof b->code / sizeof *b->code);
    b->code[b->n++] = (struct sock_filter){code, jump_true, jump_false, k};
}

static void load(builder *b, uint32_t offset) { put(b, BPF_LD | BPF_W | BPF_ABS, offset, 0, 0); }
static void answer(builder *b, uint32_t action) { put(b, BPF_RET | BPF_K, action, 0, 0); }

/* Unless the accumulator equals `k`, skip the next `n` instructions. */
static void unless_equal_skip(builder *b, uint32_t k, uint8_t n) { put(b, BPF_JMP | BPF_JEQ | BPF_K, k, 0, n); }

fl_status sandbox_filter_make(unsigned char program[SANDBOX_FILTER_BYTES_MAX], size_t *n_bytes, fl_err *err)
{
#ifndef FILTER_ARCH
    (void)program, (void)n_bytes, (void)put, (void)load, (void)answer, (void)unless_equal_skip, (void)refused;
    return fl_fail(err, FL_UNSUPPORTED, "grading: its system call filter is written for x86-64 and aarch64 only: grade on such a machine");
#else
    (void)err;
    builder b = {.n = 0};
    load(&b, DATA(arch));
    put(&b, BPF_JMP | BPF_JEQ | BPF_K, FILTER_ARCH, 1, 0);
    answer(&b, SECCOMP_RET_KILL_PROCESS);
    load(&b, DATA(nr));
#if defined(__x86_64__)
    put(&b, BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1);                    /* x32 numbers */
    answer(&b, SECCOMP_RET_KILL_PROCESS);
#endif
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        unless_equal_skip(&b, refused[i], 1);
        answer(&b, REFUSE(EPERM));
    }
    unless_equal_skip(&b, 435 /* clone3 */, 1);
    answer(&b, REFUSE(ENOSYS));

    unless_equal_skip(&b, SYS_clone, 4);
    load(&b, LOW_WORD(0));
    put(&b, BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET, 0, 1);
    answer(&b, REFUSE(EPERM));
    answer(&b, SECCOMP_RET_ALLOW);

    unless_equal_skip(&b, SYS_ioctl, 4);
    load(&b, LOW_WORD(1));
    unless_equal_skip(&b, TIOCSTI, 1);                                          /* typing into a terminal it might still have */
    answer(&b, REFUSE(EPERM));
    answer(&b, SECCOMP_RET_ALLOW);

    unless_equal_skip(&b, SYS_prctl, 4);
    load(&b, LOW_WORD(0));
    unless_equal_skip(&b, PR_SET_PDEATHSIG, 1);                                 /* it dies with the grader, whatever it wishes */
    answer(&b, REFUSE(EPERM));
    answer(&b, SECCOMP_RET_ALLOW);

    answer(&b, SECCOMP_RET_ALLOW);
    *n_bytes = b.n * sizeof *b.code;
    memcpy(program, b.code, *n_bytes);
    return FL_OK;
#endif
}
