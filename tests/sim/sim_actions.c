/* sim_actions.c - what a turn on a full disk leaves in the list of actions: the front of the next turn. */
#include "sim.h"

void sim_actions_drop_appends(action_list *list, job_id done)
{
    size_t n = 0;
    for (size_t i = 0; i < list->appends.n; i++)
        if (list->appends.v[i].job.v != done.v) list->appends.v[n++] = list->appends.v[i];
    list->appends.n = n;
}

void sim_actions_keep(action_list *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->sends.n; i++)
        if (list->sends.v[i].after_sync) list->sends.v[n++] = list->sends.v[i];
    list->sends.n = n;
    list->turn++;
}
