/* Which connection each worker speaks through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "coordinator/peers.h"

#define MANY 3000

static transport_peer connection(uint32_t number)
{
    transport_peer peer = { .n = 5 };
    memcpy(peer.bytes + 1, &number, sizeof number);      /* as libzmq makes them */
    return peer;
}

static void bind_one(peers *p, uint64_t worker, uint32_t number)
{
    transport_peer peer = connection(number);
    assert_int_equal(peers_bind(p, (worker_id){ worker }, &peer, 100, NULL), FL_OK);
}

static uint64_t worker_at(const peers *p, uint32_t number)
{
    transport_peer peer = connection(number);
    const peer_entry *entry = peers_of_connection(p, &peer);
    return entry ? entry->worker.v : 0;
}

static void nobody_is_known_in_an_empty_table(void **unused)
{
    (void)unused;
    peers p = { 0 };
    assert_int_equal(worker_at(&p, 1), 0);
    assert_null(peers_of_worker(&p, (worker_id){ 1 }));
    peers_drop(&p, (worker_id){ 1 });
    peers_fini(&p);
}

static void a_worker_that_comes_back_speaks_through_its_new_connection_only(void **unused)
{
    (void)unused;
    peers p = { 0 };
    bind_one(&p, 7, 1);
    bind_one(&p, 7, 2);
    assert_int_equal(worker_at(&p, 1), 0);
    assert_int_equal(worker_at(&p, 2), 7);
    assert_int_equal(p.n, 1);
    bind_one(&p, 7, 2);                                  /* said again on the same one */
    assert_int_equal(worker_at(&p, 2), 7);
    assert_int_equal(p.n, 1);
    peers_fini(&p);
}

static void one_connection_has_one_worker(void **unused)
{
    (void)unused;
    peers p = { 0 };
    bind_one(&p, 7, 1);
    bind_one(&p, 8, 1);
    assert_int_equal(worker_at(&p, 1), 8);
    assert_null(peers_of_worker(&p, (worker_id){ 7 }));
    bind_one(&p, 7, 2);
    bind_one(&p, 7, 1);                                  /* a known worker takes the connection of another */
    assert_int_equal(worker_at(&p, 1), 7);
    assert_int_equal(worker_at(&p, 2), 0);
    assert_null(peers_of_worker(&p, (worker_id){ 8 }));
    assert_int_equal(p.n, 1);
    peers_fini(&p);
}

static void thousands_come_and_go_and_each_is_found(void **unused)
{
    (void)unused;
    peers p = { 0 };
    for (uint32_t i = 1; i <= MANY; i++) bind_one(&p, i * 977, i);
    for (uint32_t i = 1; i <= MANY; i += 3) peers_drop(&p, (worker_id){ i * 977 });
    for (uint32_t i = 1; i <= MANY; i++) {
        bool is_gone = i % 3 == 1;
        const peer_entry *entry = peers_of_worker(&p, (worker_id){ i * 977 });
        assert_int_equal(worker_at(&p, i), is_gone ? 0 : i * 977);
        assert_true(is_gone ? !entry : entry && entry->n_vocab == 100 && p.v[entry->at] == entry);
    }
    assert_int_equal(p.n, MANY - (MANY + 2) / 3);
    peers_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_known_in_an_empty_table),
        cmocka_unit_test(a_worker_that_comes_back_speaks_through_its_new_connection_only),
        cmocka_unit_test(one_connection_has_one_worker),
        cmocka_unit_test(thousands_come_and_go_and_each_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
