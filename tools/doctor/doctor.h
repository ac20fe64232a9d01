/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry doctor`: the parts that examine and the one that speaks.
 *
 * Each doctor_* function examines one area, reports findings through doctor_say and says by doctor_can what the machine
 * is ready for; only doctor.c knows how they are printed. All are kept until the last: the verdict comes first.
 */
#ifndef GANTRY_TOOLS_DOCTOR_H
#define GANTRY_TOOLS_DOCTOR_H

#include <stddef.h>

enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_LEVELS };

/* What the verdict is about, in its order. */
enum doctor_use { DOCTOR_LOOPBACK, DOCTOR_HOSTS, DOCTOR_PLUGIN, DOCTOR_GPU, DOCTOR_DEVMEM, DOCTOR_AUTH, DOCTOR_USES };

struct doctor {
	const char *ifname; /* --ifname, else NULL. Borrowed. */
	const char *plugin; /* --plugin, else NCCL_NET_PLUGIN, else NULL. Borrowed. */
	struct doctor_finding {
		enum doctor_level level;
		const char *section;		      /* a literal */
		char *name, *value, *detail, *advice; /* owned */
	} * findings;				      /* owned */
	size_t count;
	int counts[DOCTOR_LEVELS];
	struct {
		int asked, ready;
		char why[512]; /* not ready: the reason; ready: what with, or "" */
	} uses[DOCTOR_USES];
	char blocked[512]; /* why nothing would start, or "" */
	char **bad;	   /* owned: of each parameter the text that is not allowed, or NULL */
};

/* Texts but for the section are copied; "" where there is nothing to say. advice: what to do, if anything. */
void doctor_say(struct doctor *d, const char *section, const char *name, enum doctor_level level, const char *value,
		const char *detail, const char *advice);
/* Of several answers for one use the first yes counts, or else the first no. */
void doctor_can(struct doctor *d, enum doctor_use use, int ready, const char *why);
/* Every job would end before it began; of several reasons the first counts. */
void doctor_block(struct doctor *d, const char *why);
/* strdup, or the end. */
char *doctor_copy(const char *text);

void doctor_interfaces(struct doctor *d);
void doctor_limits(struct doctor *d);
void doctor_kernel(struct doctor *d);
void doctor_gpu(struct doctor *d);
struct gantry_device;
void doctor_near(struct doctor *d, const char *name, const struct gantry_device *dev); /* and which NICs are near it */
void doctor_devmem(struct doctor *d); /* devmem TCP: every NIC and GPU */
void doctor_undo_devmem(struct doctor *d);
void doctor_build(struct doctor *d);  /* this build and its libraries */
void doctor_plugin(struct doctor *d); /* the plugin that NCCL would load */
/* Before anything else. A parameter whose value is not allowed then counts as not set. */
void doctor_load_params(struct doctor *d);
/* Those that are set, and whether their values are allowed and can be used here; or all of them. */
void doctor_params(struct doctor *d, int all);

/* A text for the arguments above. It lasts as long as the innermost block; the branch of an if is one. */
#define TEXT(...) doctor_text((char[DOCTOR_TEXT]){0}, __VA_ARGS__)
enum { DOCTOR_TEXT = 640 };
const char *doctor_text(char buf[DOCTOR_TEXT], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A file's first line without the newline; NULL when it cannot be read. Returns buf. */
const char *doctor_read_line(const char *path, char *buf, size_t size);

#endif
