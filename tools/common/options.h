/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines from a table: one line per option makes the parser, the messages about wrong values and the help text.
 * Fields of the caller's struct are filled in; what is not given keeps its value.
 */
#ifndef GANTRY_TOOLS_OPTIONS_H
#define GANTRY_TOOLS_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

enum option_kind {
	OPTION_FLAG,   /* int: 1 if given; takes no value */
	OPTION_INT,    /* int, from min to max */
	OPTION_COUNT,  /* uint64_t, from min to max */
	OPTION_SIZE,   /* uint64_t, bytes, from min to max; k, M and G are known */
	OPTION_TIME,   /* uint64_t, ns; more than 0, at least min */
	OPTION_TEXT,   /* const char *, borrowed from argv */
	OPTION_CHOICE, /* int: index into `choices` */
};

enum { OPTIONS_MAX = 48 };

struct option_spec {
	char letter; /* 0: it has only its long name */
	enum option_kind kind;
	const char *name; /* NULL: it has only its letter */
	size_t at;	  /* of the field in the caller's struct */
	uint64_t min, max;
	const char *choices; /* "auto|net|shm" */
	const char *value;   /* what the help calls the value; NULL: the choices */
	const char *help;
};

/* Words of the command line that are no options. Borrowed from argv. */
struct option_words {
	char **word;
	int n;
};

struct option_set {
	const char *program; /* "gantry perf fifo" */
	const char *usage;   /* what follows it in the first line of the help; NULL: "[OPTION]..." and the operand */
	const char *about;   /* a line or more for the help, each ended */
	const char *notes;   /* the same at its end */
	const struct option_spec *specs;
	size_t nspecs;
	const char *operand; /* "HOST": one word that is no option may be given; NULL: none */
	size_t operand_at;   /* const char *, borrowed from argv; with `many`: struct option_words */
	int many;	     /* several such words may be given */
	int keep_params;     /* the parameters are left as they are */
};

/* The table of a set. */
#define OPTION_SPECS(table) .specs = (table), .nspecs = sizeof(table) / sizeof((table)[0])

/* And loads the parameters, whose mistakes are wrong usage as well. -h and --help are known. 0: go on; else the exit
 * status plus 1, after a line on stderr if it is 2. */
int options_parse(const struct option_set *set, int argc, char **argv, void *fields);
/* A line on stderr: the program and what is wrong with its command line. Returns 2, the exit status of wrong usage. */
int options_wrong(const struct option_set *set, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The index of a word in "one|two|three", or -1. */
int options_choice(const char *choices, const char *word);
/* A line on stderr: the word of this option is none of them, which it lists, with the nearest. */
void options_bad_choice(const char *program, const char *option, const char *word, const char *choices);
/* The index-th of them, in a buffer of at least 32 bytes; cut if it is longer. */
const char *options_choice_name(const char *choices, int index, char *buf);
/* A line on stderr: "gantry: unknown command 'x'", and which one was meant, or what lists them. Returns 2. */
int options_unknown(const char *what, const char *name, const char *const *names, size_t count, const char *lister);

/* "gantry perf net -b 64": what options_parse was last given, for headers. */
const char *options_command(void);

#endif
