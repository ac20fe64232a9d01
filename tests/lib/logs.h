/* SPDX-License-Identifier: Apache-2.0 */
/* What the code under test logs, for tests that look at it. Any thread may log. */
#ifndef GANTRY_TESTS_LOGS_H
#define GANTRY_TESTS_LOGS_H

/* From here on lines are formatted and go nowhere. */
void logs_drop(void);

/* From here on lines are kept instead, as "LEVEL FILE TEXT"; none are there to begin with. */
void logs_keep(void);

/* Lines go where the log's settings send them again. What was kept stays. */
void logs_end(void);

void logs_forget(void);

/* How many of the kept lines have this part. */
int logs_count(const char *part);

/* The kept lines; valid until the next call in this thread. */
const char *logs_text(void);

#endif
