/* `gantry report`: a page with plots of what perf and bench/ measured, or one plot, or the figures. */
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd.h"
#include "options.h"
#include "suggest.h"

enum { EXIT_FINE = 0, EXIT_BAD_FILE = 1, EXIT_USAGE = 2 };

#define PLOTS "bandwidth|latency|cpu|ratio|compare" /* in the order of enum report_kind */

static const char help[] =
	"usage: gantry report [OPTION]... FILE... -o OUT.html\n"
	"Makes one page with plots and tables of the JSON lines that gantry perf --json and bench/ write.\n"
	"Several files are drawn side by side and compared with the first. FILE - is standard input.\n\n"
	"  -o, --output FILE  where to write; - is standard output\n"
	"  --svg PLOT         one plot as a picture instead: " PLOTS "\n"
	"  --section TEXT     only sections whose heading contains TEXT\n"
	"  --title TEXT       of the page; by default the operations\n"
	"  --json             the figures that would be drawn, one JSON object per line; to standard output without "
	"-o\n"
	"  --help             this text\n\n"
	"Exit status: 0, 1 if a file cannot be read or written or has nothing to draw, 2 on wrong usage.\n";

enum { OPT_SVG = 256, OPT_SECTION, OPT_TITLE, OPT_JSON, OPT_HELP };
static const struct option options[] = {
	{"output", required_argument, NULL, 'o'},
	{"svg", required_argument, NULL, OPT_SVG},
	{"section", required_argument, NULL, OPT_SECTION},
	{"title", required_argument, NULL, OPT_TITLE},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0},
};

struct request {
	const char *output, *section, *title;
	int svg; /* enum report_kind, or -1 */
	int json;
	char command[1024];
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

static int read_files(struct report *r, int argc, char **argv)
{
	char why[PATH_MAX + 256];
	int good = 1;

	for (int i = 0; i < argc; i++) {
		if (report_read(r, argv[i], why, sizeof(why))) {
			fprintf(stderr, "gantry report: %s\n", why);
			good = 0;
		}
	}
	if (!good)
		return EXIT_BAD_FILE;
	if (report_finish(r))
		return complain("report", "no memory");
	tell_left_out(r);
	for (size_t i = 0; i < r->nfiles; i++)
		if (!r->files[i].rows)
			return complain(r->files[i].path, "no line has a figure that can be drawn");
	return EXIT_FINE;
}

/* ---- what is written ---- */

static const struct report_plot *find_plot(const struct report_section *s, int kind)
{
	for (size_t i = 0; i < s->nplots; i++)
		if ((int)s->plots[i].kind == kind && !s->plots[i].table_only)
			return &s->plots[i];
	return NULL;
}

static size_t count_plots(const struct report_section *s, int kind)
{
	size_t n = 0;

	for (size_t i = 0; i < s->nplots; i++)
		n += (int)s->plots[i].kind == kind && !s->plots[i].table_only;
	return n;
}

/* The only section that has such a plot; NULL after a line that says why there is none. */
static const struct report_section *find_section(const struct report_plan *p, const struct request *q, int *ret_status)
{
	const struct report_section *found = NULL;
	char kind[32];
	size_t n = 0;

	options_choice_name(PLOTS, q->svg, kind);
	for (size_t i = 0; i < p->nsections; i++) {
		if (!find_plot(&p->sections[i], q->svg))
			continue;
		found = &p->sections[i];
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
	for (size_t i = 0; i < p->nsections; i++)
		if (find_plot(&p->sections[i], q->svg))
			fprintf(stderr, "  %s\n", p->sections[i].title);
	return NULL;
}

static int write_output(const struct report *r, const struct report_plan *p, const struct request *q)
{
	const struct report_section *s = NULL;
	int status = EXIT_FINE, why;
	char *text = NULL;
	size_t n = 0;
	FILE *f;

	if (q->svg >= 0) {
		s = find_section(p, q, &status);
		if (!s)
			return status;
		if (count_plots(s, q->svg) > 1)
			fprintf(stderr,
				"gantry report: more series than a plot can show; the picture has the first of %zu "
				"plots\n",
				count_plots(s, q->svg));
	}
	f = open_memstream(&text, &n);
	if (!f)
		return complain("report", "no memory");
	if (q->json)
		report_write_json(r, p, f);
	else if (s)
		report_write_svg_file(r, s, find_plot(s, q->svg), q->command, f);
	else
		report_write_page(r, p, q->title, f);
	why = ferror(f) ? ENOMEM : 0;
	if (fclose(f) || why)
		status = complain("report", "no memory");
	else if ((why = write_file(q->output, text, n)))
		status = complain(strcmp(q->output, "-") == 0 ? "standard output" : q->output, strerror(why));
	free(text);
	return status;
}

static int run(int argc, char **argv, const struct request *q)
{
	struct report r = {0};
	struct report_plan p = {0};
	int status = read_files(&r, argc, argv);

	if (status == EXIT_FINE && report_plan(&r, q->section, &p))
		status = complain("report", "no memory");
	if (status == EXIT_FINE && q->section && !p.nsections)
		status = complain(q->section, "no section has this in its heading");
	if (status == EXIT_FINE)
		status = write_output(&r, &p, q);
	report_plan_free(&p);
	report_free(&r);
	return status;
}

static int usage_error(const char *what)
{
	fprintf(stderr, "gantry report: %s; gantry report --help says more\n", what);
	return EXIT_USAGE;
}

int cmd_report(int argc, char **argv)
{
	struct request q = {.svg = -1};
	int c;

	options_join("gantry report", argc, argv, q.command, sizeof(q.command));
	opterr = 0;
	optind = 0;
	while ((c = getopt_long(argc, argv, ":ho:", options, NULL)) != -1) {
		switch (c) {
		case 'o':
			q.output = optarg;
			break;
		case OPT_SVG:
			q.svg = options_choice(PLOTS, optarg);
			if (q.svg < 0)
				return usage_error("--svg takes one of " PLOTS);
			break;
		case OPT_SECTION:
			q.section = optarg;
			break;
		case OPT_TITLE:
			q.title = optarg;
			break;
		case OPT_JSON:
			q.json = 1;
			break;
		case 'h':
		case OPT_HELP:
			fputs(help, stdout);
			return EXIT_FINE;
		default:
			return suggest_usage("gantry report", options, c, argv[optind - 1]);
		}
	}
	if (optind == argc)
		return usage_error("a FILE is missing");
	if (argc - optind > REPORT_FILES_MAX)
		return usage_error("more than 8 files");
	if (q.json && q.svg >= 0)
		return usage_error("--json and --svg exclude each other");
	if (!q.output && q.json)
		q.output = "-";
	if (!q.output)
		return usage_error("-o OUT.html is missing (-o - is standard output)");
	return run(argc - optind, argv + optind, &q);
}
