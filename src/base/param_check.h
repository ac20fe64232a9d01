/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are texts with a syntax: their parsers, silent as those of param.h, and the checks that params.def
 * names. A check knows only the text; whether an interface or a file of that name exists is found out by its user.
 */
#ifndef GANTRY_BASE_PARAM_CHECK_H
#define GANTRY_BASE_PARAM_CHECK_H

#include <stdint.h>
#include <sys/socket.h>

#include "gantry/result.h"

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

/* True where the text is allowed; never called for "". */
int gantry_check_port_range(const char *text);
int gantry_check_addr(const char *text);
int gantry_check_signal(const char *text);
int gantry_check_subsys(const char *text);

#endif
