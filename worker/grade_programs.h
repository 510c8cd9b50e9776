/* grade_programs.h - the Python programs of the two interpreters, carried in the binary (worker/CMakeLists.txt makes grade_programs.c from the .py files). */
#ifndef WORKER_GRADE_PROGRAMS_H
#define WORKER_GRADE_PROGRAMS_H

extern const char grade_candidate_source[];      /* grade_common.py + grade_candidate.py, NUL-terminated */
extern const char grade_checker_source[];        /* grade_common.py + grade_checker.py */

#endif
