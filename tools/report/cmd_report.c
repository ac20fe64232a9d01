/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry report`: a page with plots of what perf and bench/ measured, or one plot, or the figures. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cmd.h"
#include "common/options.h"
#include "report/series.h"

enum { EXIT_FINE = 0, EXIT_BAD_FILE = 1, EXIT_USAGE = 2 };

#define PLOTS "bandwidth|latency|cpu|ratio|compare" /* quantities, then enum report_kind */

struct request {
	const char *output, *section, *title;
	int svg; /* a plot, or -1 */
	int json;
	struct option_words files;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{'o', OPTION_TEXT, "output", AT(output), 0, 0, NULL, "FILE", "where to write; - is standard output"},
	{0, OPTION_CHOICE, "svg", AT(svg), 0, 0, PLOTS, "PLOT", "one plot as a picture instead: " PLOTS},
	{0, OPTION_TEXT, "section", AT(section), 0, 0, NULL, "TEXT", "only sections whose heading contains TEXT"},
	{0, OPTION_TEXT, "title", AT(title), 0, 0, NULL, "TEXT", "of the page; by default the operations"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "the figures that would be drawn, one JSON object per line; to standard output without -o"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry report",
	.usage = "[OPTION]... FILE... -o OUT.html",
	.about = "Makes one page with plots and tables of the JSON lines that gantry perf --json and bench/ write.\n"
		 "Several files are drawn side by side and compared with the first. FILE - is standard input.\n",
	.notes = "\nExit status: 0, 1 if a file cannot be read or written or nothing can be drawn, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.operand_at = AT(files),
	.many = 1,
	.keep_params = 1,
};

static int complain(const char *path, const char *why)
{
	fprintf(stderr, "gantry report: %s: %s\n", path, why);
	return EXIT_BAD_FILE;
}

/* ---- output ---- */

/*
 * A file that is complete or not there: it is written beside its place and renamed. What is there and no ordinary file,
 * a device or a pipe, is written to as it is.
 */
struct output {
	FILE *f;
	char path[PATH_MAX];	  /* where it goes; links are followed */
	char temporary[PATH_MAX]; /* "" if it is written in place */
};

static int open_beside(struct output *o, const struct stat *old)
{
	mode_t mask = umask(0);
	int fd;

	umask(mask);
	if ((size_t)snprintf(o->temporary, sizeof(o->temporary), "%s.XXXXXX", o->path) >= sizeof(o->temporary)) {
		o->temporary[0] = 0;
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = mkostemp(o->temporary, O_CLOEXEC);
	if (fd < 0) {
		o->temporary[0] = 0;
		return -1;
	}
	/* As open() would have made it, or as it was. */
	if (fchmod(fd, old ? old->st_mode & 0777 : 0666 & ~mask) == 0)
		o->f = fdopen(fd, "w");
	if (!o->f)
		close(fd);
	return o->f ? 0 : -1;
}

static int open_output(const char *path, struct output *o)
{
	struct stat st;

	memset(o, 0, sizeof(*o));
	if (strcmp(path, "-") == 0) {
		snprintf(o->path, sizeof(o->path), "standard output");
		o->f = stdout;
		return 0;
	}
	if (!realpath(path, o->path))
		snprintf(o->path, sizeof(o->path), "%s", path);
	if (stat(path, &st) != 0)
		return open_beside(o, NULL);
	if (S_ISREG(st.st_mode)) {
		/* A file that may not be written is not replaced either. */
		return access(path, W_OK) == 0 ? open_beside(o, &st) : -1;
	}
	o->f = fopen(path, "we");
	return o->f ? 0 : -1;
}

/* All of the text is there afterwards, or what was there before; 0, or an errno. */
static int write_file(const char *path, const char *text, size_t n)
{
	struct output o;
	int why = open_output(path, &o) ? errno : 0;

	if (!why && (fwrite(text, 1, n, o.f) != n || fflush(o.f)))
		why = errno;
	if (o.f && o.f != stdout && fclose(o.f) && !why)
		why = errno;
	if (!why && o.temporary[0] && rename(o.temporary, o.path))
		why = errno;
	if (why && o.temporary[0])
		unlink(o.temporary);
	return why;
}

/* ---- input ---- */

static void tell_left_out(const struct report *r)
{
	for (size_t i = 0; i < r->nfiles; i++) {
		const struct report_file *f = &r->files[i];

		if (f->unknown)
			fprintf(stderr,
				"gantry report: %s: %zu line%s of a kind that this version does not know, left out: %s "
				"(keys of "
				"the first: %s)\n",
				f->path, f->unknown, f->unknown == 1 ? "" : "s", f->unknown_lines, f->unknown_keys);
		if (f->failures)
			fprintf(stderr, "gantry report: %s: %zu measurement%s failed: %s\n", f->path, f->failures,
				f->failures == 1 ? "" : "s", f->failed);
		if (f->warnings)
			fprintf(stderr, "gantry report: %s: measured with a warning: %s\n", f->path, f->warning);
		if (f->wrong > 0)
			fprintf(stderr, "gantry report: %s: %.0f wrong bytes in %zu row%s\n", f->path, f->wrong,
				f->wrong_rows, f->wrong_rows == 1 ? "" : "s");
	}
}

static int read_files(struct report *r, const struct request *q)
{
	char why[PATH_MAX + 256];
	int good = 1, drawn = 0;

	for (int i = 0; i < q->files.n; i++) {
		if (report_read(r, q->files.word[i], why, sizeof(why))) {
			fprintf(stderr, "gantry report: %s\n", why);
			good = 0;
		}
	}
	if (!good)
		return EXIT_BAD_FILE;
	if (report_finish(r, q->section))
		return complain("report", "no memory");
	tell_left_out(r);
	for (size_t i = 0; i < r->nfiles; i++) {
		drawn |= r->files[i].rows != 0;
		if (!r->files[i].rows)
			complain(r->files[i].path, "no line has a figure that can be drawn");
	}
	return drawn ? EXIT_FINE : EXIT_BAD_FILE;
}

/* ---- what is written ---- */

/* The only section that has such a plot; NULL after a line that says why there is none. */
static const struct report_section *find_section(const struct report *r, const struct request *q, int *ret_status)
{
	const struct report_section *found = NULL;
	char kind[32];
	size_t n = 0;

	options_choice_name(PLOTS, q->svg, kind);
	for (size_t i = 0; i < r->nsections; i++) {
		if (!report_picture_lines(r, &r->sections[i], q->svg))
			continue;
		found = &r->sections[i];
		n++;
	}
	if (n == 1)
		return found;
	*ret_status = n ? EXIT_USAGE : EXIT_BAD_FILE;
	if (!n) {
		fprintf(stderr, "gantry report: there is nothing to plot as %s\n", kind);
		return NULL;
	}
	fprintf(stderr, "gantry report: %zu sections have a plot '%s', choose one with --section:\n", n, kind);
	for (size_t i = 0; i < r->nsections; i++)
		if (report_picture_lines(r, &r->sections[i], q->svg))
			fprintf(stderr, "  %s\n", r->sections[i].title);
	return NULL;
}

static int write_output(const struct report *r, const struct request *q)
{
	const struct report_section *s = NULL;
	int status = EXIT_FINE, why;
	char *text = NULL;
	size_t n = 0, left = 0;
	FILE *f;

	if (q->svg >= 0) {
		s = find_section(r, q, &status);
		if (!s)
			return status;
	}
	f = open_memstream(&text, &n);
	if (!f)
		return complain("report", "no memory");
	if (q->json)
		report_write_json(r, f);
	else if (s)
		left = report_write_picture(r, s, q->svg, options_command(), f);
	else
		report_write_page(r, q->title, f);
	why = ferror(f) ? ENOMEM : 0;
	if (fclose(f) || why)
		status = complain("report", "no memory");
	else if ((why = write_file(q->output, text, n)))
		status = complain(strcmp(q->output, "-") == 0 ? "standard output" : q->output, strerror(why));
	free(text);
	if (left)
		fprintf(stderr, "gantry report: the picture has no room for %zu more lines; the page shows them\n",
			left);
	return status;
}

static int run(const struct request *q)
{
	struct report r = {0};
	int status = read_files(&r, q);

	if (status == EXIT_FINE && q->section && !r.nsections)
		status = complain(q->section, "no section has this in its heading");
	if (status == EXIT_FINE)
		status = write_output(&r, q);
	report_free(&r);
	return status;
}

static int usage_error(const char *what)
{
	return options_wrong(&set, "%s; see gantry report --help", what);
}

int cmd_report(int argc, char **argv)
{
	struct request q = {.svg = -1};
	int status;

	status = options_parse(&set, argc, argv, &q);
	if (status)
		return status - 1;
	if (!q.files.n)
		return usage_error("no FILE given");
	if (q.json && q.svg >= 0)
		return usage_error("--json and --svg exclude each other");
	if (!q.output && q.json)
		q.output = "-";
	if (!q.output)
		return usage_error("-o OUT.html is missing (-o - is standard output)");
	return run(&q);
}
