/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secret that the processes of a job share (GANTRY_SECRET, GANTRY_SECRET_FILE), and the memory it lies in.
 *
 * A secret that leaks opens every port of the job, so it lies in pages of its own: left out of core dumps, locked in
 * memory where the limits allow it, overwritten when the process exits. Nothing else in the library keeps a copy; a
 * file is read straight into such pages. The environment is the program's and cannot be protected that way.
 */
#ifndef GANTRY_BASE_SECRET_H
#define GANTRY_BASE_SECRET_H

#include "gantry/result.h"

/* Longest first line of a GANTRY_SECRET_FILE. */
enum { GANTRY_SECRET_MAX = 4096 };

/*
 * GANTRY_SECRET, else the first line of GANTRY_SECRET_FILE, else NULL. Borrowed, until the process exits. The file is
 * read once for each loading of the parameters, and refused (ERR_CONFIG) unless it is a regular file owned by this user
 * or root that no other user can write and, with GANTRY_ENCRYPT, that is not readable by all users.
 */
gantry_result gantry_secret(const char **ret_secret);

/* A copy of the text in such memory, which stays until the process exits; NULL: no memory. Equal texts are kept once.
 */
const char *gantry_secret_keep(const char *text);

#endif
