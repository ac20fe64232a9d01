/* SPDX-License-Identifier: Apache-2.0 */
/* The files, text, a line each: "rings SPLIT HDS", "feature NAME 0|1", "rss default", "rss N Q Q ...", "rule N"; and what
 * they are for: putting back. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "net/devmem/detect.h"

enum { CREATE_TRIES = 10000 };

const char *devmem_journal_dir_for_tests;

/* The folder, made if need be. Only its owner may write to it: what is in there is done with the NIC. */
static int journal_dir(char *ret, size_t len)
{
	const char *run = geteuid() == 0 ? "/run" : getenv("XDG_RUNTIME_DIR");
	struct stat st;
	int n;

	if (devmem_journal_dir_for_tests)
		n = snprintf(ret, len, "%s", devmem_journal_dir_for_tests);
	else if (run && *run == '/')
		n = snprintf(ret, len, "%s/gantry", run);
	else
		return ENOENT;
	if (n < 0 || (size_t)n >= len)
		return ENAMETOOLONG;
	if (mkdir(ret, 0700) < 0 && errno != EEXIST)
		return errno;
	if (lstat(ret, &st) < 0)
		return errno;
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
		return EPERM;
	return 0;
}

/* "devmem-<network namespace>-": names of interfaces repeat in others. */
static void put_prefix(char *ret, size_t len)
{
	struct stat st = {0};

	if (stat("/proc/self/ns/net", &st) < 0)
		st.st_ino = 0;
	snprintf(ret, len, "devmem-%llu-", (unsigned long long)st.st_ino);
}

int devmem_journal_init(struct devmem_journal *j, const char *nic)
{
	char dir[DEVMEM_PATH_MAX / 2], start[40];
	int e = journal_dir(dir, sizeof(dir));

	memset(j, 0, sizeof(*j));
	j->fd = -1;
	if (e)
		return e;
	if (strchr(nic, '/') || strlen(nic) >= IFNAMSIZ)
		return EINVAL;
	put_prefix(start, sizeof(start));
	snprintf(j->base, sizeof(j->base), "%s/%s%s", dir, start, nic);
	return 0;
}

__attribute__((format(printf, 3, 4))) static const char *named(const struct devmem_journal *j, char *buf,
							       const char *fmt, ...)
{
	va_list args;
	size_t n;

	n = (size_t)snprintf(buf, DEVMEM_PATH_MAX, "%s", j->base);
	va_start(args, fmt);
	vsnprintf(buf + n, DEVMEM_PATH_MAX - n, fmt, args);
	va_end(args);
	return buf;
}

int devmem_journal_lock(const struct devmem_journal *j)
{
	char path[DEVMEM_PATH_MAX];
	const struct timespec pause = {.tv_nsec = 20000000};
	int fd;

	if (!*j->base)
		return -1;
	fd = open(named(j, path, ".lock"), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	/* Others hold it while they set up a NIC: seconds at most. */
	for (int tries = 0; fd >= 0 && tries < 1500; tries++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return fd;
		nanosleep(&pause, NULL);
	}
	LOG_WARN(NET, "devmem: lock of %s: %s", path, fd < 0 ? strerror(errno) : "held by another process");
	if (fd >= 0)
		close(fd);
	return -1;
}

int devmem_journal_create(struct devmem_journal *j)
{
	static uint32_t serial; /* atomic */
	int e;

	/* The name may be taken: a PID is unique only within its PID namespace, and a dead process's rules may have to
	 * be kept. A new file cannot be mistaken for a dead process's before it is locked: readers hold the NIC's
	 * lock. */
	for (int tries = 0; j->fd < 0 && tries < CREATE_TRIES; tries++) {
		named(j, j->own, ".%d.%u", (int)getpid(), fetch_add_relaxed(&serial, 1));
		j->fd = open(j->own, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (j->fd < 0 && errno != EEXIST)
			break;
	}
	if (j->fd >= 0 && flock(j->fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	e = errno;
	devmem_journal_end(j, 0);
	return e;
}

void devmem_journal_end(struct devmem_journal *j, int leaves_rules)
{
	if (j->fd >= 0 && !leaves_rules)
		unlink(j->own);
	if (j->fd >= 0)
		close(j->fd);
	j->fd = -1;
}

void devmem_journal_rule(struct devmem_journal *j, uint32_t location, int there)
{
	char line[32];
	int n = snprintf(line, sizeof(line), "%s %u\n", there ? "rule" : "gone", location);

	if (j->fd >= 0 && write(j->fd, line, (size_t)n) != n)
		LOG_WARN(NET, "devmem: %s: %s (a crash would leave flow rule %u behind)", j->own, strerror(errno),
			 location);
	j->lines++;
}

void devmem_journal_compact(struct devmem_journal *j, const uint32_t *rules, uint32_t n)
{
	if (j->fd < 0 || j->lines < 4 * DEVMEM_RULES_MAX || ftruncate(j->fd, 0) < 0)
		return;
	j->lines = 0;
	for (uint32_t i = 0; i < n; i++)
		devmem_journal_rule(j, rules[i], 1);
}

static void write_before(void *before, FILE *f)
{
	const struct devmem_before *b = before;

	if (b->has_rings) {
		fprintf(f, "rings %d ", b->rings.has_split ? b->rings.split : -1);
		fprintf(f, b->rings.has_hds ? "%" PRIu32 "\n" : "-\n", b->rings.hds);
	}
	for (uint32_t i = 0; i < b->nfeatures; i++)
		fprintf(f, "feature %s %d\n", b->features[i].name, b->features[i].on);
	if (!b->has_rss)
		return;
	if (b->rss_default) {
		fprintf(f, "rss default\n");
		return;
	}
	fprintf(f, "rss %u", b->rss.n);
	for (uint32_t i = 0; i < b->rss.n; i++)
		fprintf(f, " %u", b->rss.queue[i]);
	fprintf(f, "\n");
}

int devmem_journal_save(const struct devmem_journal *j, struct devmem_before *before)
{
	char path[DEVMEM_PATH_MAX];

	return !*j->base ||
	       gantry_file_write(named(j, path, ".before"), "how the NIC was before", write_before, before);
}

static void read_rss(const char *text, struct devmem_before *b)
{
	char *next;
	unsigned long n = strtoul(text, &next, 10);

	if (next == text || n > DEVMEM_RSS_MAX)
		return;
	for (unsigned long i = 0; i < n; i++) {
		text = next;
		b->rss.queue[i] = (uint32_t)strtoul(text, &next, 10);
		if (next == text)
			return; /* cut short: nothing that could be put back */
	}
	b->rss.n = (uint32_t)n;
	b->has_rss = 1;
}

static void read_line(const char *line, struct devmem_before *b)
{
	char name[32], hds[16];
	int split, on;

	if (sscanf(line, "rings %d %15s", &split, hds) == 2) {
		b->has_rings = 1;
		b->rings.has_split = split >= 0;
		b->rings.split = (uint8_t)(split >= 0 ? split : 0);
		b->rings.has_hds = *hds != '-';
		b->rings.hds = (uint32_t)strtoul(*hds == '-' ? "0" : hds, NULL, 10);
	} else if (sscanf(line, "feature %31s %d", name, &on) == 2 && b->nfeatures < DEVMEM_FEATURES_MAX) {
		struct devmem_feature *f = &b->features[b->nfeatures++];

		snprintf(f->name, sizeof(f->name), "%s", name);
		f->on = on != 0;
	} else if (strncmp(line, "rss default", 11) == 0) {
		b->has_rss = b->rss_default = 1;
	} else if (strncmp(line, "rss ", 4) == 0) {
		read_rss(line + 4, b);
	}
}

int devmem_journal_load(const struct devmem_journal *j, struct devmem_before *ret_before)
{
	enum { LINE = 64 + DEVMEM_RSS_MAX * 11 };
	char path[DEVMEM_PATH_MAX], *line;
	FILE *f;

	memset(ret_before, 0, sizeof(*ret_before));
	if (!*j->base)
		return 0;
	f = fopen(named(j, path, ".before"), "re");
	if (!f)
		return 0;
	line = malloc(LINE);
	for (int i = 0; line && i < 64 && fgets(line, LINE, f); i++)
		read_line(line, ret_before);
	free(line);
	fclose(f);
	return 1;
}

static int undo_rings(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings)
{
	struct devmem_rings back = *rings;
	int e = s->ops->rings_set(s, nic, &back);

	/* bnxt refuses "off", also when that is what it had reported: auto is what it was. */
	if (e && back.has_split && back.split == DEVMEM_SPLIT_OFF) {
		back.split = DEVMEM_SPLIT_AUTO;
		e = s->ops->rings_set(s, nic, &back);
	}
	return e;
}

static int log_undone(int e, const char *nic, const char *what)
{

	if (e)
		LOG_WARN(NET, "devmem: %s of %s could not be restored: %s", what, nic, devmem_strerror(e));
	else
		LOG_INFO(NET, "devmem: restored %s of %s", what, nic);
	return e != 0;
}

int devmem_nic_restore(struct devmem_sys *s, const char *nic, const struct devmem_before *before)
{
	int failed = 0;

	if (before->has_rss)
		failed += log_undone(s->ops->rss_set(s, nic, before->rss_default ? NULL : &before->rss), nic, "RSS");
	if (before->has_rings)
		failed += log_undone(undo_rings(s, nic, &before->rings), nic, "header split");
	for (uint32_t i = before->nfeatures; i-- > 0;) {
		const struct devmem_feature *f = &before->features[i];

		failed += log_undone(s->ops->feature_set(s, nic, f), nic, f->name);
	}
	return failed;
}

int devmem_rule_remove(struct devmem_sys *s, const char *nic, uint32_t location)
{
	int e = s->ops->rule_del(s, nic, location);

	if (!e || e == ENOENT || e == ENODEV)
		return 0;
	LOG_WARN(NET, "devmem: flow rule %u of %s could not be removed: %s", location, nic, devmem_strerror(e));
	return e;
}

/* What dead bindings have left on a NIC, and what became of it. */
struct stale {
	struct devmem_sys *s;
	const char *nic;
	int dead;	 /* bindings */
	int rules, left; /* removed; those that could not be */
};

/* Removes the rules of a dead binding that were there at its end. Those that are gone then are noted down in the file:
 * by adding to it, so that a crash in between forgets none. Returns how many are left; -1: could not be read. */
static int remove_rules_of(int fd, struct stale *st)
{
	uint32_t *rules = calloc(DEVMEM_RULES_MAX, sizeof(*rules)), n = 0, location;
	int copy = dup(fd); /* fclose must not close the one with the lock */
	FILE *f = rules && copy >= 0 ? fdopen(copy, "r") : NULL;
	char line[64];
	int left = f ? 0 : -1;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "rule %" SCNu32, &location) == 1 && n < DEVMEM_RULES_MAX) {
			rules[n++] = location;
		} else if (sscanf(line, "gone %" SCNu32, &location) == 1) {
			for (uint32_t i = 0; i < n; i++)
				if (rules[i] == location)
					rules[i--] = rules[--n];
		}
	}
	while (n) {
		int e = devmem_rule_remove(st->s, st->nic, rules[--n]);
		int len = snprintf(line, sizeof(line), "gone %" PRIu32 "\n", rules[n]);

		st->rules += !e;
		st->left += !!e;
		left += e || write(fd, line, (size_t)len) != len;
	}
	if (f)
		fclose(f);
	else if (copy >= 0)
		close(copy);
	free(rules);
	return left;
}

/* Is it "<base of the NIC>.PID.N"? */
static int is_binding(const char *name, const char *base)
{
	size_t n = strlen(base);
	int pid;
	unsigned serial;
	char rest;

	return strncmp(name, base, n) == 0 && sscanf(name + n, ".%d.%u%c", &pid, &serial, &rest) == 2;
}

/* Files of other bindings: how many live. The file of a dead one is removed when all its rules are; else it stays with
 * the rest. */
static int undo_others(const struct devmem_journal *j, struct stale *st)
{
	char dir[DEVMEM_PATH_MAX], path[DEVMEM_PATH_MAX * 2], *name;
	struct dirent *entry;
	int live = 0;
	DIR *d;

	snprintf(dir, sizeof(dir), "%s", j->base);
	name = strrchr(dir, '/');
	*name++ = 0;
	d = opendir(dir);
	while (d && (entry = readdir(d))) {
		int fd;

		if (!is_binding(entry->d_name, name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (strcmp(path, j->own) == 0)
			continue;
		fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0)
			continue;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			live++;
		} else {
			st->dead++;
			if (remove_rules_of(fd, st) == 0)
				unlink(path);
		}
		close(fd);
	}
	if (d)
		closedir(d);
	return live;
}

/* "1 dead binding: 2 flow rules removed; ..." */
static void say_stale(const struct stale *st, const char *rest, char *text, size_t len)
{
	char left[48] = "";

	if (st->left)
		snprintf(left, sizeof(left), ", %d could not be", st->left);
	snprintf(text, len, "%d dead binding%s: %d flow rule%s removed%s%s", st->dead, st->dead == 1 ? "" : "s",
		 st->rules, st->rules == 1 ? "" : "s", left, rest);
}

/* The NIC has no user left: restores its configuration. 1: restored; 0: nothing to restore; -1: some of it failed. */
static int restore_from(struct devmem_sys *s, const char *nic, const struct devmem_journal *j)
{
	char path[DEVMEM_PATH_MAX];
	struct devmem_before before;

	if (!devmem_journal_load(j, &before))
		return 0;
	if (devmem_nic_restore(s, nic, &before))
		return -1;
	unlink(named(j, path, ".before"));
	return 1;
}

int devmem_undo_stale(struct devmem_sys *s, const char *nic, char *text, size_t len)
{
	struct stale st = {.s = s, .nic = nic};
	struct devmem_journal j;
	int live, lock, done;

	if (len)
		text[0] = 0;
	if (devmem_journal_init(&j, nic))
		return 0;
	lock = devmem_journal_lock(&j);
	if (lock < 0)
		return 0;
	live = undo_others(&j, &st);
	done = live ? 0 : restore_from(s, nic, &j);
	close(lock);
	if (st.dead || done)
		say_stale(&st,
			  live	     ? "; the NIC is still in use, so the rest was left as is"
			  : done < 0 ? "; not everything could be restored"
			  : done     ? "; header split, RSS and features were restored"
				     : "",
			  text, len);
	return done < 0 || st.left ? -1 : st.dead + (done && !st.dead);
}

int devmem_journal_nics(char names[][IFNAMSIZ], int max)
{
	char dir[DEVMEM_PATH_MAX / 2], start[40];
	struct dirent *entry;
	int n = 0;
	DIR *d;

	if (journal_dir(dir, sizeof(dir)))
		return 0;
	put_prefix(start, sizeof(start));
	d = opendir(dir);
	while (d && n < max && (entry = readdir(d))) {
		const char *name = entry->d_name + strlen(start), *end = strstr(entry->d_name, ".lock");

		if (strncmp(entry->d_name, start, strlen(start)) == 0 && end && end > name && !end[5] &&
		    end - name < IFNAMSIZ)
			snprintf(names[n++], IFNAMSIZ, "%.*s", (int)(end - name), name);
	}
	if (d)
		closedir(d);
	return n;
}
