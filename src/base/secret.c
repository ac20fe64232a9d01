/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"

/* At the start of its own pages. */
struct kept {
	struct kept *next;
	size_t size; /* of the mapping */
	char text[];
};

MUTEX_KIND(secret_mu); /* taken after param.c's, never before it */
static struct secret_mu mu;
static struct kept *all GUARDED_BY(secret_mu);
/* The set of parameters that `loaded` belongs to. */
static const struct gantry_params *loaded_for GUARDED_BY(secret_mu);
static const char *loaded GUARDED_BY(secret_mu);
static bool warned GUARDED_BY(secret_mu);

static struct kept *pages_get(size_t room)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (sizeof(struct kept) + room + page - 1) / page * page;
	struct kept *k = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (k == MAP_FAILED)
		return NULL;
	if (madvise(k, size, MADV_DONTDUMP))
		LOG_WARN(BASE, "the secret may appear in core dumps: madvise: %s", strerror(errno));
	if (mlock(k, size))
		LOG_DEBUG(BASE, "the secret may be swapped out: mlock: %s", strerror(errno));
	k->size = size;
	return k;
}

static void pages_put(struct kept *k)
{
	if (!k)
		return;
	explicit_bzero(k->text, k->size - sizeof(*k));
	munmap(k, k->size);
}

/* The one with this text, or NULL. */
static const char *find(const char *text) REQUIRES(secret_mu)
{
	for (const struct kept *k = all; k; k = k->next)
		if (strcmp(k->text, text) == 0)
			return k->text;
	return NULL;
}

static const char *list_add(struct kept *k) REQUIRES(secret_mu)
{
	k->next = all;
	all = k;
	return k->text;
}

const char *gantry_secret_keep(const char *text)
{
	const char *old;
	struct kept *k = NULL;

	secret_mu_lock(&mu);
	old = find(text);
	if (!old)
		k = pages_get(strlen(text) + 1);
	if (k) {
		strcpy(k->text, text);
		old = list_add(k);
	}
	secret_mu_unlock(&mu);
	return old;
}

/* Write access to the file sets the secret; read access reveals it. */
static gantry_result check_file(int fd, const char *path) REQUIRES(secret_mu)
{
	struct stat st;

	if (fstat(fd, &st))
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s is not a regular file", path);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		FAIL_NOW(GANTRY_ERR_CONFIG,
			 "GANTRY_SECRET_FILE %s is owned by user %u: it must be owned by this user (%u) or root", path,
			 (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		FAIL_NOW(GANTRY_ERR_CONFIG,
			 "GANTRY_SECRET_FILE %s is writable by other users (mode %04o): chmod 600 it", path,
			 (unsigned)(st.st_mode & 07777));
	if (st.st_mode & S_IROTH && gantry_params()->encrypt != PARAM_ENCRYPT_OFF)
		FAIL_NOW(GANTRY_ERR_CONFIG,
			 "GANTRY_SECRET_FILE %s is readable by all users (mode %04o), so any of them could decrypt: "
			 "chmod 600 it",
			 path, (unsigned)(st.st_mode & 07777));
	if (st.st_mode & S_IROTH && !warned) {
		warned = true;
		LOG_WARN(BASE, "GANTRY_SECRET_FILE %s is readable by all users (mode %04o): chmod 600 it", path,
			 (unsigned)(st.st_mode & 07777));
	}
	return GANTRY_OK;
}

/* The first line, without its end, into text[GANTRY_SECRET_MAX + 2]. */
static gantry_result read_line(int fd, const char *path, char *text)
{
	size_t got = 0, len;
	ssize_t n;

	while (got < GANTRY_SECRET_MAX + 1 && (n = read(fd, text + got, GANTRY_SECRET_MAX + 1 - got)) != 0) {
		if (n < 0 && errno != EINTR)
			FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s: %s", path, strerror(errno));
		got += n > 0 ? (size_t)n : 0;
	}
	for (len = 0; len < got && text[len] != '\n' && text[len] != '\r'; len++)
		if (!text[len])
			FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s: its first line contains a NUL byte", path);
	if (!len)
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s is empty, or its first line is", path);
	if (len > GANTRY_SECRET_MAX)
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s: its first line is longer than %d bytes", path,
			 GANTRY_SECRET_MAX);
	explicit_bzero(text + len, GANTRY_SECRET_MAX + 2 - len);
	return GANTRY_OK;
}

static gantry_result read_file(const char *path, const char **ret_secret) REQUIRES(secret_mu)
{
	gantry_result r = GANTRY_OK;
	struct kept *k = NULL;
	/* NONBLOCK: a FIFO is refused, not waited for. Links are followed: Kubernetes mounts secrets that way. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		FAIL(GANTRY_ERR_CONFIG, "GANTRY_SECRET_FILE %s: %s", path, strerror(errno));
	TRY(check_file(fd, path));
	k = pages_get(GANTRY_SECRET_MAX + 2);
	if (!k)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the secret");
	TRY(read_line(fd, path, k->text));
	*ret_secret = find(k->text);
	if (!*ret_secret) {
		*ret_secret = list_add(k);
		k = NULL; /* the list's */
	}
out:
	pages_put(k);
	if (fd >= 0)
		close(fd);
	return r;
}

gantry_result gantry_secret(const char **ret_secret)
{
	const struct gantry_params *p = gantry_params();
	gantry_result r = GANTRY_OK;
	const char *secret = NULL;

	secret_mu_lock(&mu);
	if (loaded_for != p) {
		if ((*p->secret || *p->secret_file) && !GANTRY_HAVE_OPENSSL)
			FAIL(GANTRY_ERR_CONFIG,
			     "GANTRY_SECRET is set, but this build has no OpenSSL, which authentication needs");
		if (*p->secret)
			secret = p->secret; /* kept by the parameters */
		else if (*p->secret_file)
			TRY(read_file(p->secret_file, &secret));
		loaded = secret;
		loaded_for = p;
	}
	*ret_secret = loaded;
out:
	secret_mu_unlock(&mu);
	return r;
}

/*
 * Overwritten with random bytes, not zeros: a service thread may be in the middle of a handshake, and must not accept a
 * peer's proof that was made with a known or an empty key.
 */
__attribute__((destructor, no_sanitize("thread"))) UNCHECKED static void overwrite_all(void)
{
	unsigned char noise[64];

	for (struct kept *k = all; k; k = k->next)
		for (volatile char *c = k->text; *c; c++) {
			size_t i = (size_t)(c - k->text) % sizeof(noise);

			if (i == 0 && getrandom(noise, sizeof(noise), GRND_NONBLOCK) != sizeof(noise))
				return;
			*c = (char)(noise[i] | 0x80);
		}
}
