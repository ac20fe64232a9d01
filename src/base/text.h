/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and values as people read and write them: the counterparts of the parsers in param.h, the parsers of texts
 * with a syntax and the checks that params.def names, a measure of misspelling; and characters as machines do. None of
 * them logs. A check knows only the text; whether an interface or a file of that name exists is found out by its user.
 */
#ifndef GANTRY_BASE_TEXT_H
#define GANTRY_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "gantry/result.h"

enum { GANTRY_TEXT_MAX = 64 }; /* room for any of them */

/* "64 B", "4 KiB", "64 GiB". What is no whole number of units: "100001 B", from 1 MiB on "1.5 MiB". Returns buf. */
const char *gantry_size_text(uint64_t bytes, char *buf, size_t len);
/* "1 rank", "2 ranks": thing is the singular of a word that takes an s. Returns buf. */
const char *gantry_count_text(uint64_t n, const char *thing, char *buf, size_t len);

/* Appends to the text in buf, which holds len bytes, 4 at least. What does not fit is cut, and the text ends in "...". */
__attribute__((format(printf, 3, 4))) void gantry_text_add(char *buf, size_t len, const char *fmt, ...);

/* One character of what may not be UTF-8 at all; returns the bytes it took, at least 1 unless the text is at its end.
 * *ret is GANTRY_NO_RUNE if they make none. */
#define GANTRY_NO_RUNE UINT32_MAX
size_t gantry_next_rune(const char *text, uint32_t *ret);

/* The first two as arguments of printf, FAIL and LOG_*: they live until the end of the block. */
#define SIZE_TEXT(bytes) gantry_size_text((bytes), (char[GANTRY_TEXT_MAX]){0}, GANTRY_TEXT_MAX)
#define COUNT_TEXT(n, thing) gantry_count_text((uint64_t)(n), (thing), (char[GANTRY_TEXT_MAX]){0}, GANTRY_TEXT_MAX)

/* In the largest unit that divides the value: "64k", "30s". gantry_parse_* reads back the same value. */
void gantry_format_size(uint64_t bytes, char *buf, size_t n);
void gantry_format_duration(uint64_t ns, char *buf, size_t n);

/* How many letters must be added, dropped or changed to make b from a (Levenshtein); only the first 63 count. */
unsigned gantry_edit_distance(const char *a, const char *b);

/* "4000" or "4000-4010"; "" is 0 and 0: the kernel chooses. */
gantry_result gantry_parse_port_range(const char *text, uint16_t *ret_first, uint16_t *ret_last);
/* "10.0.0.2", "10.0.0.2:4000", "fe80::1%eth0", "[fe80::1%eth0]:4000"; without a port it is 0. */
gantry_result gantry_parse_addr(const char *text, struct sockaddr_storage *ret_addr);
/* The signals that may ask for a report: "USR2", "sigusr1", "40". */
gantry_result gantry_parse_signal(const char *text, int *ret_number);
/* Comma-separated names of subsystems, as a mask for gantry_log_configure. */
gantry_result gantry_parse_subsys(const char *text, uint32_t *ret_mask);
/* The next entry of a comma-separated list, trimmed and cut to fit; NULL at the end. *pos moves on. */
const char *gantry_next_entry(const char **pos, char *buf, size_t len);

/* Cuts "node7:4000", "[fd00::2]:4000", "fd00::2" into host and port, 0 if there is none; the text is changed. -1: it has
 * not that form. */
int gantry_split_host(char *text, char **ret_host, uint16_t *ret_port);

/* True where the text is allowed; never called for "". */
int gantry_check_port_range(const char *text);
int gantry_check_addr(const char *text);
int gantry_check_signal(const char *text);
int gantry_check_host(const char *text);
int gantry_check_hosts(const char *text);
int gantry_check_subsys(const char *text);

/* Advice that can be followed: it depends on what the hard limit allows. */
enum { GANTRY_ADVICE_TEXT = 192 };

/* How to have more open files than now: "raise it with `ulimit -n 65536`", or where the hard limit is set. Returns buf.
 */
const char *gantry_nofile_advice(char buf[GANTRY_ADVICE_TEXT]);

#endif
