/* temp_folder.h - a test's own folder: made from its template again for each test, and removed with all that is in it. */
#ifndef TESTS_TEMP_FOLDER_H
#define TESTS_TEMP_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* `name` ends with six characters that are replaced. 0: the folder is there; -1 with errno. */
static inline int temp_folder_make(char *name)
{
    memset(name + strlen(name) - 6, 'X', 6);
    return mkdtemp(name) ? 0 : -1;
}

static inline int temp_folder_remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline int temp_folder_remove(const char *name)
{
    return nftw(name, temp_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
