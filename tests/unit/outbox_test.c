/* outbox_test.c - results stay until they are answered, whatever the connection does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "worker/outbox.h"

#define LIMIT 4096

static outbox *open_box(void)
{
    outbox *box = NULL;
    assert_int_equal(outbox_open(&box, LIMIT, NULL), FL_OK);
    return box;
}

static fl_status put_piece(outbox *box, uint64_t lease, uint64_t row, uint64_t sample, uint64_t piece, uint64_t n_pieces, const char *body, bool *complete)
{
    fl_bytes part = { body, strlen(body) };
    wire_msg m = { .type = WIRE_RESULT, .n_parts = 1, .parts = &part, .result = { .job = 7, .lease = lease, .row = row, .sample = sample, .piece = piece, .n_pieces = n_pieces, .n_tokens = 5 } };
    return outbox_put(box, &m, complete, NULL);
}

static void put(outbox *box, uint64_t lease, uint64_t row, uint64_t sample)
{
    bool complete = false;
    assert_int_equal(put_piece(box, lease, row, sample, 0, 1, "body", &complete), FL_OK);
    assert_true(complete);
}

static void put_error(outbox *box, uint64_t lease, uint64_t row, const char *text)
{
    bool complete = false;
    wire_msg m = { .type = WIRE_ROW_ERROR, .row_error = { .job = 7, .lease = lease, .row = row, .code = 8, .text = wire_text(text) } };
    assert_int_equal(outbox_put(box, &m, &complete, NULL), FL_OK);
    assert_true(complete);
}

/* Send all that waits; returns how many messages there were. */
static int send_all(outbox *box)
{
    wire_msg m;
    fl_bytes part;
    int n = 0;
    for (; outbox_next(box, &m, &part); n++) outbox_sent(box);
    return n;
}

static void results_are_offered_in_order_and_once(void **state)
{
    (void)state;
    outbox *box = open_box();
    wire_msg m;
    fl_bytes part;
    for (uint64_t i = 0; i < 3; i++) put(box, 1, i, 0);
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(outbox_next(box, &m, &part));
        assert_int_equal(m.result.row, i);
        assert_int_equal(m.result.n_tokens, 5);
        assert_memory_equal(part.data, "body", 4);
        outbox_sent(box);
    }
    assert_false(outbox_next(box, &m, &part));
    put(box, 1, 3, 0);
    assert_int_equal(send_all(box), 1);
    assert_int_equal(outbox_count(box), 4);
    outbox_close(box);
}

static void each_answer_empties_its_entry_and_no_other(void **state)
{
    (void)state;
    outbox *box = open_box();
    put(box, 1, 0, 0);
    put(box, 1, 0, 1);
    put(box, 2, 0, 0);
    put_error(box, 1, 4, "too long");
    assert_false(outbox_answer(box, 7, 3, 0, 0));
    assert_false(outbox_answer(box, 8, 1, 0, 0));
    assert_false(outbox_answer(box, 7, 1, 0, WIRE_WHOLE_ROW));
    assert_int_equal(outbox_count(box), 4);
    assert_true(outbox_answer(box, 7, 1, 0, 1));
    assert_false(outbox_answer(box, 7, 1, 0, 1));
    assert_true(outbox_answer(box, 7, 1, 4, WIRE_WHOLE_ROW));
    assert_true(outbox_answer(box, 7, 2, 0, 0));
    assert_true(outbox_answer(box, 7, 1, 0, 0));
    assert_int_equal(outbox_count(box), 0);
    assert_int_equal(outbox_bytes(box), 0);
    outbox_close(box);
}

static void a_new_connection_gets_everything_unanswered_again(void **state)
{
    (void)state;
    outbox *box = open_box();
    for (uint64_t i = 0; i < 5; i++) put(box, 1, i, 0);
    assert_int_equal(send_all(box), 5);
    assert_true(outbox_answer(box, 7, 1, 2, 0));
    outbox_resend(box);
    assert_int_equal(send_all(box), 4);
    outbox_close(box);
}

static void an_answer_may_take_the_entry_that_is_being_sent(void **state)
{
    (void)state;
    outbox *box = open_box();
    bool complete;
    wire_msg m;
    fl_bytes part;
    put_piece(box, 1, 0, 0, 0, 2, "first", &complete);
    put_piece(box, 1, 0, 0, 1, 2, "second", &complete);
    put(box, 1, 1, 0);
    assert_true(outbox_next(box, &m, &part));
    outbox_sent(box);                            /* one of two pieces */
    assert_true(outbox_answer(box, 7, 1, 0, 0));
    assert_true(outbox_next(box, &m, &part));
    assert_int_equal(m.result.row, 1);
    assert_int_equal(m.result.piece, 0);
    outbox_close(box);
}

static void half_a_body_is_never_offered(void **state)
{
    (void)state;
    outbox *box = open_box();
    bool complete = true;
    wire_msg m;
    fl_bytes part;
    assert_int_equal(put_piece(box, 1, 0, 0, 0, 3, "aa", &complete), FL_OK);
    assert_false(complete);
    assert_false(outbox_next(box, &m, &part));
    assert_int_equal(put_piece(box, 1, 0, 0, 1, 3, "bb", &complete), FL_OK);
    assert_int_equal(put_piece(box, 1, 0, 0, 2, 3, "c", &complete), FL_OK);
    assert_true(complete);
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(outbox_next(box, &m, &part));
        assert_int_equal(m.result.piece, i);
        assert_int_equal(m.result.n_pieces, 3);
        assert_int_equal(part.bytes, i < 2 ? 2 : 1);
        outbox_sent(box);
    }
    outbox_close(box);
}

static void the_rest_of_a_body_whose_engine_died_is_forgotten(void **state)
{
    (void)state;
    outbox *box = open_box();
    bool complete;
    put_piece(box, 1, 0, 0, 0, 2, "aa", &complete);
    outbox_drop_partial(box);
    assert_int_equal(outbox_bytes(box), 0);
    put(box, 1, 0, 0);
    assert_int_equal(send_all(box), 1);
    outbox_close(box);
}

static void pieces_out_of_order_are_refused(void **state)
{
    (void)state;
    outbox *box = open_box();
    bool complete;
    assert_int_equal(put_piece(box, 1, 0, 0, 1, 2, "b", &complete), FL_CORRUPT);
    assert_int_equal(put_piece(box, 1, 0, 0, 0, 0, "b", &complete), FL_CORRUPT);
    assert_int_equal(put_piece(box, 1, 0, 0, 2, 2, "b", &complete), FL_CORRUPT);
    assert_int_equal(put_piece(box, 1, 0, 0, 0, 3, "a", &complete), FL_OK);
    assert_int_equal(put_piece(box, 1, 0, 0, 2, 3, "c", &complete), FL_CORRUPT);
    assert_int_equal(put_piece(box, 1, 0, 1, 0, 1, "d", &complete), FL_CORRUPT);
    outbox_close(box);
}

static void dropping_a_lease_leaves_the_others(void **state)
{
    (void)state;
    outbox *box = open_box();
    put(box, 1, 0, 0);
    put(box, 2, 0, 0);
    put(box, 1, 1, 0);
    put(box, 2, 1, 0);
    put(box, 2, 1, 1);
    assert_int_equal(send_all(box), 5);
    assert_int_equal(outbox_drop_lease(box, 1), 2);
    assert_int_equal(outbox_drop(box, 2, 1, 1), 1);
    assert_int_equal(outbox_drop(box, 2, 1, WIRE_WHOLE_ROW), 1);
    assert_int_equal(outbox_count(box), 1);
    outbox_resend(box);
    assert_int_equal(send_all(box), 1);
    put(box, 3, 0, 0);                           /* the tail is still right */
    assert_int_equal(send_all(box), 1);
    outbox_close(box);
}

static void a_full_box_says_so_until_answers_come(void **state)
{
    (void)state;
    outbox *box = open_box();
    uint64_t n = 0;
    for (; !outbox_is_full(box); n++) put(box, 1, n, 0);
    assert_true(outbox_bytes(box) >= LIMIT);
    assert_true(n > 4);
    assert_true(outbox_answer(box, 7, 1, 0, 0));
    assert_false(outbox_is_full(box));
    outbox_close(box);
}

static void a_body_larger_than_the_limit_still_fits(void **state)
{
    (void)state;
    outbox *box = open_box();
    bool complete = false;
    static char large[LIMIT * 2];
    memset(large, 'x', sizeof large - 1);
    assert_int_equal(put_piece(box, 1, 0, 0, 0, 2, large, &complete), FL_OK);
    assert_false(outbox_is_full(box));           /* the rest of a body that has begun is always read */
    assert_int_equal(put_piece(box, 1, 0, 0, 1, 2, large, &complete), FL_OK);
    assert_true(complete);
    assert_true(outbox_is_full(box));
    outbox_close(box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_offered_in_order_and_once),
        cmocka_unit_test(each_answer_empties_its_entry_and_no_other),
        cmocka_unit_test(a_new_connection_gets_everything_unanswered_again),
        cmocka_unit_test(an_answer_may_take_the_entry_that_is_being_sent),
        cmocka_unit_test(half_a_body_is_never_offered),
        cmocka_unit_test(the_rest_of_a_body_whose_engine_died_is_forgotten),
        cmocka_unit_test(pieces_out_of_order_are_refused),
        cmocka_unit_test(dropping_a_lease_leaves_the_others),
        cmocka_unit_test(a_full_box_says_so_until_answers_come),
        cmocka_unit_test(a_body_larger_than_the_limit_still_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
