/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which transports there are, and the choice among them.
 *
 * The order is the preference: those registered to come first, then the built-in ones, then the others. Tables are
 * borrowed for ever, so the list is copied under the lock and asked without it: can_connect may take its time and may
 * itself register something.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/api.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/text.h"
#include "net/loader.h"
#include "transport/transport.h"

enum { MAX_ADDED = 16, BUILTINS = 4, MAX_ALL = MAX_ADDED + BUILTINS, MAX_LIBS = 16, NAME_MAX_LEN = 32, REASON = 160 };

#define INIT_SYMBOL "gantry_transport_init_v1"

MUTEX_KIND(registry_mu);
static struct registry_mu mu;
/* In order of preference: those that come first, the built-in ones, those that come last. */
static const struct gantry_transport *transports[MAX_ALL] GUARDED_BY(registry_mu) = {
	&gantry_transport_p2p, &gantry_transport_shm, &gantry_transport_net, &gantry_transport_collnet};
static int ntransports GUARDED_BY(registry_mu) = BUILTINS, nbefore GUARDED_BY(registry_mu);

MUTEX_KIND(libs_mu); /* taken before the registry's, for a library registers while it is loaded */
static struct libs_mu libs_loading;
/* Paths already loaded; libraries stay for the life of the process. */
static char *libs[MAX_LIBS] GUARDED_BY(libs_mu);
static int nlibs GUARDED_BY(libs_mu);

/* Returns how many. */
static int list_all(const struct gantry_transport *ret[MAX_ALL])
{
	int n;

	registry_mu_lock(&mu);
	n = ntransports;
	memcpy(ret, transports, (size_t)n * sizeof(*ret));
	registry_mu_unlock(&mu);
	return n;
}

int gantry_transport_is_built_in(const struct gantry_transport *t)
{
	return t == &gantry_transport_p2p || t == &gantry_transport_shm || t == &gantry_transport_net ||
	       t == &gantry_transport_collnet;
}

static const struct gantry_transport *by_name(const struct gantry_transport *const all[MAX_ALL], int n,
					      const char *name)
{
	for (int i = 0; i < n; i++)
		if (strcmp(all[i]->name, name) == 0)
			return all[i];
	return NULL;
}

static int side_is_whole(const struct gantry_transport_side *theirs)
{
	struct gantry_transport_side s;

	return STRUCT_TAKE(&s, theirs, gantry_transport_side) == GANTRY_OK && s.setup && s.connect && s.free &&
	       s.proxy_setup && s.proxy_connect && s.proxy_progress && s.proxy_register && s.proxy_deregister &&
	       s.proxy_free;
}

static gantry_result check_table(const struct gantry_transport *t)
{
	struct gantry_transport own;

	TRY_NOW(STRUCT_TAKE(&own, t, gantry_transport));
	t = &own;
	if (!t->name || !*t->name)
		FAIL_NOW(GANTRY_ERR_INVALID, "the transport has no name");
	if (strlen(t->name) >= NAME_MAX_LEN || strpbrk(t->name, ", \t") || strcmp(t->name, "auto") == 0)
		FAIL_NOW(GANTRY_ERR_INVALID, "\"%s\" cannot be the name of a transport", t->name);
	if (!t->proxied || !t->can_connect || !side_is_whole(t->send) || !side_is_whole(t->recv))
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "transport %s has NULL entries: use gantry_transport_unsupported_* for functions it does not "
			 "implement",
			 t->name);
	return GANTRY_OK;
}

gantry_result gantry_transport_register(const struct gantry_transport *t, int before_builtin)
{
	gantry_result r = GANTRY_OK;

	TRY(check_table(t));
	registry_mu_lock(&mu);
	if (by_name(transports, ntransports, t->name)) {
		r = GANTRY_ERR_INVALID;
	} else if (ntransports < MAX_ALL) {
		int at = before_builtin ? nbefore : ntransports;

		memmove(&transports[at + 1], &transports[at], (size_t)(ntransports - at) * sizeof(*transports));
		transports[at] = t;
		ntransports++;
		nbefore += before_builtin != 0;
	} else {
		r = GANTRY_ERR_LIMIT;
	}
	registry_mu_unlock(&mu);
	if (r == GANTRY_ERR_INVALID)
		FAIL(r, "a transport named %s is already registered", t->name);
	if (r != GANTRY_OK)
		FAIL(r, "transport %s: the limit of %d added transports is reached", t->name, MAX_ADDED);
	LOG_INFO(COMM, "transport %s registered", t->name);
out:
	return r;
}

gantry_result gantry_transport_unregister(const struct gantry_transport *t)
{
	int found = 0;

	registry_mu_lock(&mu);
	for (int i = 0; i < ntransports && !found; i++) {
		if (transports[i] != t || (i >= nbefore && i < nbefore + BUILTINS))
			continue;
		found = 1;
		ntransports--;
		nbefore -= i < nbefore;
		memmove(&transports[i], &transports[i + 1], (size_t)(ntransports - i) * sizeof(*transports));
	}
	registry_mu_unlock(&mu);
	if (!found)
		FAIL_NOW(GANTRY_ERR_INVALID, "cannot unregister a transport that is built in or not registered");
	return GANTRY_OK;
}

static int is_wanted(const char *wanted, const char *name)
{
	char entry[NAME_MAX_LEN];
	const char *pos = wanted;
	int any = 0;

	while (gantry_next_entry(&pos, entry, sizeof(entry))) {
		any = 1;
		if (strcmp(entry, name) == 0 || strcmp(entry, "auto") == 0)
			return 1;
	}
	return !any;
}

gantry_result gantry_transport_check(const char *wanted)
{
	const struct gantry_transport *all[MAX_ALL];
	char entry[NAME_MAX_LEN], names[512] = "auto";
	const char *pos = wanted;
	int n = list_all(all);

	for (int i = 0; i < n; i++)
		gantry_text_add(names, sizeof(names), " %s", all[i]->name);
	while (gantry_next_entry(&pos, entry, sizeof(entry)))
		if (strcmp(entry, "auto") != 0 && !by_name(all, n, entry))
			FAIL_NOW(GANTRY_ERR_CONFIG, "unknown transport \"%s\" (GANTRY_TRANSPORT); available: %s", entry,
				 names);
	return GANTRY_OK;
}

gantry_result gantry_transport_choose(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
				      const char *wanted, const struct gantry_transport **ret_transport)
{
	return gantry_transport_choose_but(me, peer, wanted, NULL, ret_transport);
}

gantry_result gantry_transport_choose_but(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
					  const char *wanted, const struct gantry_transport *but,
					  const struct gantry_transport **ret_transport)
{
	const struct gantry_transport *all[MAX_ALL];
	char reasons[800] = "";
	int n = list_all(all);

	if (!wanted || !*wanted)
		wanted = gantry_params()->transport;
	TRY_NOW(gantry_transport_check(wanted));
	for (int i = 0; i < n; i++) {
		char why[REASON] = "";
		int can = 0;

		if (!is_wanted(wanted, all[i]->name))
			snprintf(why, sizeof(why), "not among \"%s\"", wanted);
		else if (all[i] == but)
			snprintf(why, sizeof(why), "tested and found not to work");
		else if (all[i]->can_connect(me, peer, &can, why, sizeof(why)) != GANTRY_OK)
			snprintf(why, sizeof(why), "%s", gantry_last_error());
		else if (can) {
			*ret_transport = all[i];
			return GANTRY_OK;
		}
		gantry_text_add(reasons, sizeof(reasons), "%s%s: %s", *reasons ? "; " : "", all[i]->name, why);
	}
	FAIL_NOW(GANTRY_ERR_UNREACHABLE, "no transport connects rank %d (%.64s) with rank %d (%.64s): %s", me->rank,
		 me->host_name, peer->rank, peer->host_name, reasons);
}

static gantry_result load_lib(const char *path) REQUIRES(libs_mu) EXCLUDES(registry_mu)
{
	gantry_result r = GANTRY_OK;
	char why[512];
	gantry_result (*init)(void);
	void *dl, *symbol;

	ASSERT_HELD(&libs_loading);
	for (int i = 0; i < nlibs; i++)
		if (strcmp(libs[i], path) == 0)
			return GANTRY_OK;
	if (nlibs == MAX_LIBS)
		FAIL(GANTRY_ERR_LIMIT, "GANTRY_TRANSPORT_LIBS: %s exceeds the limit of %d libraries", path, MAX_LIBS);
	dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!dl) {
		gantry_loader_explain_open(path, dlerror(), why, sizeof(why));
		FAIL(GANTRY_ERR_CONFIG, "GANTRY_TRANSPORT_LIBS: %s", why);
	}
	symbol = dlsym(dl, INIT_SYMBOL);
	if (!symbol) {
		int unversioned = dlsym(dl, "gantry_transport_init") != NULL;

		dlclose(dl);
		FAIL(GANTRY_ERR_CONFIG, "GANTRY_TRANSPORT_LIBS: %s has no function " INIT_SYMBOL "%s", path,
		     unversioned ? ": it was built for another version of Gantry" : "");
	}
	memcpy(&init, &symbol, sizeof(init)); /* ISO C has no cast for this */
	r = init();
	/* From here on the library stays: it may have registered something before it failed. */
	if (r != GANTRY_OK)
		FAIL(r, "GANTRY_TRANSPORT_LIBS: " INIT_SYMBOL " of %s: %s", path, gantry_result_text(r));
	libs[nlibs] = strdup(path);
	if (!libs[nlibs])
		FAIL(GANTRY_ERR_NOMEM, "no memory for the name of %s", path);
	nlibs++;
out:
	return r;
}

gantry_result gantry_transport_load_libs(void)
{
	gantry_result r = GANTRY_OK;
	const char *pos = gantry_params()->transport_libs;
	char path[4096];

	libs_mu_lock(&libs_loading);
	while (gantry_next_entry(&pos, path, sizeof(path)))
		TRY(load_lib(path));
out:
	libs_mu_unlock(&libs_loading);
	return r;
}

gantry_result gantry_transport_unsupported_connector(struct gantry_connector *c)
{
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "transport %s has no proxy for this end of a connection with rank %d",
		 c->transport->name, c->peer->rank);
}

void gantry_transport_unsupported_free(struct gantry_connector *c)
{
	(void)c; /* what cannot be made needs not be undone */
}

gantry_result gantry_transport_unsupported_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	(void)ret_worked;
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "transport %s has no proxy for this end of a connection",
		 pc->connector->transport->name);
}

/* Not an error: the caller continues without it, so there is no line in the log. */
gantry_result gantry_transport_unsupported_register(struct gantry_proxy_conn *pc, void *ptr, size_t size,
						    void **ret_handle)
{
	(void)pc;
	(void)ptr;
	(void)size;
	(void)ret_handle;
	return GANTRY_ERR_UNSUPPORTED;
}

gantry_result gantry_transport_unsupported_deregister(struct gantry_proxy_conn *pc, void *handle)
{
	(void)pc;
	(void)handle;
	return GANTRY_ERR_UNSUPPORTED;
}
