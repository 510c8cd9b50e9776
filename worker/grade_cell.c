#include "worker/grade_cell.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

fl_status cell_start(grade_cell *cell, const sandbox_kit *kit, int program_fd, int socket_type, int64_t now_ms, fl_err *err)
{
    fl_status st = FL_OK;
    int link[2] = {-1, -1}, output[2] = {-1, -1};
    sandbox_group group = cell->group;
    FL_ASSERT(cell->box.outer == 0);
    *cell = GRADE_CELL_NONE;
    cell->group = group;
    if (socketpair(AF_UNIX, socket_type | SOCK_CLOEXEC, 0, link) != 0 || pipe2(output, O_CLOEXEC) != 0 || fcntl(output[0], F_SETFL, O_NONBLOCK) != 0) {
        st = fl_fail_errno(err, errno, "grading: cannot make a sandbox's channels");
        goto done;
    }
    if ((st = sandbox_start(&cell->box, kit, link[1], program_fd, output[1], &cell->group, err)) != FL_OK) goto done;
    cell->link_fd = link[0];
    cell->output_fd = output[0];
    cell->start_ms = now_ms;
    link[0] = output[0] = -1;
done:
    for (int i = 0; i < 2; i++) {
        if (link[i] >= 0) close(link[i]);
        if (output[i] >= 0) close(output[i]);
    }
    return st;
}

void cell_read_output(grade_cell *cell)
{
    char part[65536];
    while (cell->output_fd >= 0) {
        ssize_t n = read(cell->output_fd, part, sizeof part);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        cell->output_bytes += (uint64_t)n;
        size_t room = sizeof cell->words - 1, take = (size_t)n < room ? (size_t)n : room, keep = cell->n_words < room - take ? cell->n_words : room - take;
        memmove(cell->words, cell->words + cell->n_words - keep, keep);
        memcpy(cell->words + keep, part + n - take, take);
        cell->n_words = keep + take;
        cell->words[cell->n_words] = '\0';
    }
}

void cell_close_link(grade_cell *cell)
{
    if (cell->link_fd >= 0) close(cell->link_fd);
    cell->link_fd = -1;
}

bool cell_reap(grade_cell *cell, int *status)
{
    if (!sandbox_reap(&cell->box, status)) return false;
    cell_read_output(cell);
    cell_close_link(cell);
    if (cell->output_fd >= 0) close(cell->output_fd);
    cell->output_fd = -1;
    return true;
}

void cell_end(grade_cell *cell)
{
    sandbox_end(&cell->box);
    cell_reap(cell, NULL);
}

const char *cell_last_line(grade_cell *cell)
{
    while (cell->n_words > 0 && (cell->words[cell->n_words - 1] == '\n' || cell->words[cell->n_words - 1] == ' ')) cell->words[--cell->n_words] = '\0';
    for (size_t i = 0; i < cell->n_words; i++) {
        if (cell->words[i] == '\0') cell->words[i] = '?';
    }
    const char *line = strrchr(cell->words, '\n');
    line = line ? line + 1 : cell->words;
    return *line ? line : "it said nothing";
}
