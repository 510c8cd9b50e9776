#!/usr/bin/python3
"""The simulator's own test: the core and the ledger are broken in small ways, and each must be found within 1,000 schedules.

  mutants.py list                       NAME;FILE of each, for CMake
  mutants.py make NAME SOURCE OUT       the source file with the mutant's change; fails when the text that it changes is gone
  mutants.py run DIRECTORY              run DIRECTORY/mutant_NAME for each and say which schedule finds it
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

SCHEDULES = 1000

# name: (file, what it does, [(text, instead)]). Each text stands exactly once in the file.
MUTANTS = {
    "live_lease_test_removed": ("coordinator/coord_result.c", "any lease of the job will do for a result", [(
        "    if (!*l) return WIRE_STALE;\n"
        "    if ((*l)->worker.v != speaker.v || (*l)->job != *j) return WIRE_REFUSED;\n"
        "    return (is_whole_row ? lease_holds_row(*l, r) : lease_holds(*l, r, (uint32_t)sample)) ? WIRE_COMMITTED : WIRE_STALE;\n",
        "    (void)speaker;\n"
        "    for (size_t i = 0; !*l && i < c->n_leases; i++)\n"
        "        if (c->leases[i]->job == *j) *l = c->leases[i];\n"
        "    return *l ? WIRE_COMMITTED : WIRE_STALE;\n"), (
        "    lease_drop_sample(c, l, row, (uint32_t)m->sample);\n    if (other)",
        "    if (lease_holds(l, row, (uint32_t)m->sample)) lease_drop_sample(c, l, row, (uint32_t)m->sample);\n    if (other)")]),
    "answer_before_sync": ("coordinator/action_list.c", "answers leave while the disk is full", [("send_to(c, to, WIRE_ANSWER, true)", "send_to(c, to, WIRE_ANSWER, false)")]),
    "dedup_removed": ("coordinator/coord_result.c", "a second result of a sample is not known as one", [(
        "    if (is_whole_row ? row_table_finished((*j)->rows, r) : row_table_done((*j)->rows, r, (uint32_t)sample)) return WIRE_DUPLICATE;\n", "")]),
    "lease_id_reused": ("coordinator/coord_grant.c", "the last lease id before a restart is given out again", [(
        "c->out->journal.v[c->next_at].value = c->next_lease;", "c->out->journal.v[c->next_at].value = c->next_lease - 1;")]),
    "replay_past_close": ("coordinator/coord_job.c", "a job whose ledger is closed goes on after a restart", [("j->state = spec->state ? spec->state : JOB_OPEN;", "j->state = JOB_OPEN;")]),
    "marker_lost": ("tests/sim/sim_disk.c", "a group now and then is synced without its marker", [("    if (!l->is_dirty) return;\n    ledger_frame_marker", "    if (!l->is_dirty || l->n_frames % 16 == 5) return;\n    ledger_frame_marker")]),
    "marker_not_counted": ("coordinator/ledger_record.c", "replay loses count of the markers", [("    w->cursor->n_frames++;                               /* the marker itself */\n", "")]),
    "duplicate_unanswered": ("coordinator/coord_result.c", "the worker never hears of a result that came twice", [(
        "    send_answer(c, speaker, (job_id){ m->job }, (lease_id){ m->lease }, m->row, m->sample, fate);",
        "    if (fate != WIRE_DUPLICATE) send_answer(c, speaker, (job_id){ m->job }, (lease_id){ m->lease }, m->row, m->sample, fate);")]),
    "copy_revokes_lease": ("coordinator/coord_result.c", "the first result of a copied sample ends the whole other lease", [(
        "    send_revoke_row(c, other->worker, other->id, row, sample);\n    lease_settle(c, other, false);\n",
        "    send_revoke(c, other->worker, other->id);\n    lease_end(c, other);\n")]),
    "lost_copy_requeues": ("coordinator/row_table.c", "a lost copy gives back what the other lease still holds", [("        clear(t->twice, slot);\n        return;\n", "        clear(t->twice, slot);\n")]),
    "copy_stays": ("coordinator/coord_result.c", "the other lease keeps a sample that is done", [("    if (other) leave_other(c, other, row, (uint32_t)m->sample);\n", "    (void)leave_other;\n    (void)other;\n")]),
    "copy_for_the_holder": ("coordinator/coord_grant.c", "a worker gets a copy of its own rows", [("l->worker.v == w->id.v || lease_is_grading", "lease_is_grading"), ("c->n_open && w->n_leases == 0;", "c->n_open && w->n_leases < 2;")]),
    "suspect_stays_in_copy": ("coordinator/coord_blame.c", "a row that ended an engine stays with the other worker", [("l == by || !lease_holds_row", "by || !lease_holds_row")]),
    "grader_copies_rows": ("coordinator/coord_grant.c", "an idle grader gets a copy of rows that are generated", [("lease_is_grading(l) != w->grades || ", "")]),
    "verdict_alone_completes": ("coordinator/row_table.c", "a row counts as done when its samples are, without their verdicts", [("    else if (all_done(t, r)) t->n_completed++;\n", "    if (!is_grade && all_done(t, r)) t->n_completed++;\n")]),
    "grader_makes_suspects": ("coordinator/coord_blame.c", "the end of a grader makes suspects of what it graded", [("    if (row_table_is_grade(j->rows, row)) return;", "    ;")]),
    "group_never_halves": ("coordinator/row_table.c", "a group that ended an engine runs together again", [("n_together > 2u << log2", "n_together > 1u << log2")]),
    "group_with_others": ("coordinator/coord_grant.c", "a worker that runs suspects gets other rows beside them", [("!may_work(c, w) || w->runs_suspects || ", "!may_work(c, w) || ")]),
    "closed_before_sync": ("coordinator/coord_job.c", "outputs are written before the closing record is durable", [("    a->state = j->state;\n    a->after_sync = true;\n", "    a->state = j->state;\n")]),
    "crash_blames_neighbour": ("coordinator/coord_worker.c", "the first row of those that ran is to blame", [("m->reason == WIRE_HAND_ENGINE_CRASHED_ALONE && n == 1;", "n > 0 && (m->reason == WIRE_HAND_ENGINE_CRASHED_ALONE || m->reason == WIRE_HAND_ENGINE_ENDED);")]),
}


def make(name, source, out):
    file, _, changes = MUTANTS[name]
    text = pathlib.Path(source).read_text()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"mutants.py: {name}: its text stands {text.count(old)} times in {file}; change tests/sim/mutants.py with the code:\n{old}")
        text = text.replace(old, new)
    pathlib.Path(out).write_text(f'#line 1 "{file} ({name})"\n' + text)


def hunt(directory, name):
    result = subprocess.run([directory / f"mutant_{name}", "--schedules", str(SCHEDULES)], capture_output=True, text=True)
    found = re.search(r"FAILED.*seed (\d+): (.*)", result.stdout)
    return (int(found[1]), found[2]) if result.returncode == 1 and found else None


def run(directory):
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, found in zip(MUTANTS, pool.map(lambda name: hunt(directory, name), MUTANTS)):
            print(f"{name:24} " + (f"schedule {found[0]:4}: {found[1]}" if found else "NOT FOUND"), flush=True)
            if not found:
                survivors.append(name)
    if survivors:
        sys.exit(f"not found within {SCHEDULES} schedules: {', '.join(survivors)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["list"]:
        print("\n".join(f"{name};{file}" for name, (file, _, _) in MUTANTS.items()))
    elif len(sys.argv) == 5 and sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif len(sys.argv) == 3 and sys.argv[1] == "run":
        run(pathlib.Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
