/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry top`: what processes show of themselves through their sockets (inet/stats.h). top_read.c asks them and reads
 * the text into rows, top.c compares two looks and prints.
 */
#ifndef GANTRY_TOOLS_TOP_H
#define GANTRY_TOOLS_TOP_H

#include <stddef.h>
#include <stdint.h>

enum { TOP_CAUSES = 12 };

/* One line of the picture. */
enum top_kind { TOP_LINK, TOP_LANE, TOP_COMM, TOP_RX, TOP_JOB };
struct top_row {
	enum top_kind kind;
	char id[64]; /* link, link and lane, communicator and rank, number of the pipeline, job of a reducer */
	char peer[160];
	int lanes; /* of a link */
	double sent, received, retransmits;
	double flying[2]; /* in flight: receiving, sending */
	char waits_for[16];
	struct {
		char name[16];
		double seconds;
	} causes[TOP_CAUSES];
	int ncauses;
};

struct top_process {
	long pid;
	char name[64], program[64], host[64], version[64];
	int rank; /* -1: not known */
	int answered;
	uint64_t time_ns;     /* of the answer */
	struct top_row *rows; /* owned */
	size_t nrows;
};

struct top_look {
	struct top_process *processes; /* owned */
	size_t n;
};

/* Asks all processes whose sockets are in the folder. -1: there is no such folder, with errno. */
int top_read(const char *dir, struct top_look *ret);
void top_free(struct top_look *l);
/* Puts what a process says, a text that is changed, into its rows. -1: it is no such text. */
int top_take(struct top_process *p, char *text);

#endif
