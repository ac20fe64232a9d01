/*
 * `gantry doctor`: the parts that examine and the one that speaks.
 *
 * Each doctor_* function examines one area and reports findings through
 * doctor_say; only doctor.c knows how they are printed.
 */
#ifndef GANTRY_TOOLS_DOCTOR_H
#define GANTRY_TOOLS_DOCTOR_H

#include <stddef.h>

enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_LEVELS };

struct doctor {
	int json;
	const char *ifname;  /* --ifname, else NULL. Borrowed. */
	const char *plugin;  /* --plugin, else NCCL_NET_PLUGIN, else NULL. Borrowed. */
	const char *section; /* the heading printed last. Borrowed. */
	int counts[DOCTOR_LEVELS];
};

/* Texts are copied out at once; "" where there is nothing to say. advice: what to do, if anything. */
void doctor_say(struct doctor *d, const char *section, const char *name, enum doctor_level level, const char *value,
		const char *detail, const char *advice);

void doctor_interfaces(struct doctor *d);
void doctor_limits(struct doctor *d);
void doctor_kernel(struct doctor *d);
void doctor_devmem(struct doctor *d); /* devmem TCP: every NIC and GPU */
void doctor_undo_devmem(struct doctor *d);
void doctor_build(struct doctor *d); /* this build, OpenSSL, the plugin NCCL would load */

/* A file's first line without the newline; NULL when it cannot be read. Returns buf. */
const char *doctor_read_line(const char *path, char *buf, size_t size);

#endif
