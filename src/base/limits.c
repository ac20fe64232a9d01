/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include <stdio.h>
#include <sys/resource.h>

enum { PLENTY = 65536 };

const char *gantry_nofile_advice(char buf[GANTRY_ADVICE_TEXT])
{
	struct rlimit l = {0};
	unsigned long long most;

	getrlimit(RLIMIT_NOFILE, &l);
	most = l.rlim_max;
	if (l.rlim_cur >= l.rlim_max)
		snprintf(buf, GANTRY_ADVICE_TEXT,
			 "`ulimit -n` is at its hard limit, %llu: raise that, by nofile in /etc/security/limits.conf "
			 "or LimitNOFILE= of a systemd service",
			 most);
	else
		snprintf(buf, GANTRY_ADVICE_TEXT, "raise it by `ulimit -n %llu`",
			 most > PLENTY && l.rlim_cur < PLENTY ? (unsigned long long)PLENTY : most);
	return buf;
}
