/* SPDX-License-Identifier: Apache-2.0 */
/* Opening plugins by NCCL's rules, and the words for what cannot be opened. Calls through them are in test_compat.c. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "loader_util.h"
#include "logs.h"
#include "net/loader.h"
#include "test.h"

static void refused(const char *spec, const char *why)
{
	struct gantry_loader *l = NULL;

	CHECK_EQ(gantry_loader_open(spec, &l), GANTRY_ERR_CONFIG);
	CHECK(l == NULL);
	CHECK_HAS(gantry_last_error(), why);
}

static void taken(const char *spec, const char *file, const char *name)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;

	CHECK_OK(gantry_loader_open(spec, &l));
	CHECK_HAS(gantry_loader_path(l), file);
	CHECK_OK(gantry_loader_net(l, 0, &net));
	CHECK_STR(net->name, name);
	CHECK_EQ(net->version, 12);
	gantry_loader_close(l);
}

/* Name, path, list: what is asked for is what is opened. */
static void check_rules(void)
{
	char spec[PATH_MAX + 64];

	taken("fake_a", "/libnccl-net-fake_a.so", "fake_a");
	taken("bare_fake", "/bare_fake", "bare_fake");
	taken("libnccl-net-fake_b.so", "/libnccl-net-fake_b.so", "fake_b");
	taken(fixture_path("libnccl-net-fake_b.so"), "/libnccl-net-fake_b.so", "fake_b");
	taken("no_such,fake_b,fake_a", "/libnccl-net-fake_b.so", "fake_b");
	snprintf(spec, sizeof(spec), "not_plugin,%s", fixture_path("libnccl-net-fake_a.so"));
	taken(spec, "/libnccl-net-fake_a.so", "fake_a");
}

static void check_refusals(void)
{
	refused("none", "none asked for");
	refused("no_such,none,fake_a", "none asked for");
	refused(",", "the list is empty");
	/* Both files of a name are told. */
	refused("no_such", "libnccl-net-no_such.so: cannot open shared object file");
	refused("no_such", "; no_such: cannot open shared object file");
	refused("/nowhere/plugin.so", "/nowhere/plugin.so: cannot open shared object file");
	refused("not_plugin", "exports no ncclNetPlugin_v6 to _v12, nor any other NCCL table: not a net plugin");
	refused("old_only", "only older ones: ncclNet_v4 ncclNetPlugin_v5");
	refused("new_only", "only newer ones: ncclNetPlugin_v13");
	refused("unresolved", "gantry_fixture_nowhere");
	refused("needs_gone", "found, but a library that it needs is not: libgantry-gone.so");
	refused(fixture_path("libnccl-net-needs_gone.so"),
		"found, but a library that it needs is not: libgantry-gone.so");
	/* One reason per candidate, all in the last error. */
	refused("not_plugin,old_only", "not a net plugin");
	refused("not_plugin,old_only", "only older ones");
}

static void check_default(void)
{
	struct gantry_loader *l = NULL;

	if (gantry_loader_open(NULL, &l) == GANTRY_OK)
		CHECK_HAS(gantry_loader_path(l), "libnccl-net.so");
	else
		CHECK_HAS(gantry_last_error(), "libnccl-net.so: cannot open shared object file");
	gantry_loader_close(l);
	l = NULL;
	if (gantry_loader_open("", &l) != GANTRY_OK)
		CHECK_HAS(gantry_last_error(), "libnccl-net.so: cannot open shared object file");
	gantry_loader_close(l);
	gantry_loader_close(NULL);
}

/* A copy of a good plugin with another machine in its ELF header: byte 18. */
static void check_other_machine(void)
{
	char path[] = "/tmp/gantry-loader-XXXXXX";
	unsigned char buf[65536];
	int from = open(fixture_path("libnccl-net-fake_a.so"), O_RDONLY), to = mkstemp(path);
	ssize_t n;

	CHECK(from >= 0 && to >= 0);
	for (int first = 1; (n = read(from, buf, sizeof(buf))) > 0; first = 0) {
		if (first)
			buf[18] = 243, buf[19] = 0; /* RISC-V */
		CHECK_EQ(write(to, buf, (size_t)n), n);
	}
	close(from);
	close(to);
	refused(path, "the library is for riscv (ELF machine 243), this process is");
	unlink(path);
}

/* Every candidate has its line; a plugin's own lines carry the library's name. */
static void check_log(void)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL;
	void *ctx = NULL;

	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, NULL);
	logs_keep();
	CHECK_OK(gantry_loader_open("old_only,fake_b", &l));
	CHECK_HAS(logs_text(), "libnccl-net-old_only.so: not taken: exports no ncclNetPlugin_v6");
	CHECK_HAS(logs_text(), "old_only: not taken: cannot open shared object file");
	CHECK_HAS(logs_text(), "libnccl-net-fake_b.so: taken, with net interfaces v6 v7 v8 v9 v10 v11 v12");
	CHECK_OK(gantry_loader_net(l, 7, &net));
	CHECK_OK(net->ops->init(net, 0, NULL, &ctx));
	CHECK_HAS(logs_text(), "WARN fake_body.h libnccl-net-fake_b.so: hello from fake_b v7");
	CHECK_OK(net->ops->finalize(net, ctx));
	gantry_loader_close(l);
	logs_end();
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, NULL);
}

static void check_versions(void)
{
	struct gantry_loader *l = NULL;
	struct gantry_net *net = NULL, *again = NULL;

	CHECK_OK(gantry_loader_open("partial", &l));
	CHECK_EQ(gantry_loader_has(l, 7), 0);
	CHECK_EQ(gantry_loader_has(l, 8), 1);
	CHECK_EQ(gantry_loader_has(l, 11), 1);
	CHECK_EQ(gantry_loader_has(l, 12), 0);
	CHECK_EQ(gantry_loader_has(l, 5), 0);
	CHECK_EQ(gantry_loader_has(l, 13), 0);
	CHECK(gantry_loader_table(l, 12) == NULL);
	CHECK_STR(*(const char *const *)gantry_loader_table(l, 11), "partial");
	/* What is missing is named, all of it. */
	CHECK_EQ(gantry_loader_net(l, 8, &net), GANTRY_ERR_CONFIG);
	CHECK_HAS(gantry_last_error(),
		  "libnccl-net-partial.so: ncclNetPlugin_v8 lacks what NCCL always calls: isend test");
	CHECK_EQ(gantry_loader_net(l, 12, &net), GANTRY_ERR_UNSUPPORTED);
	CHECK_HAS(gantry_last_error(), "has no ncclNetPlugin_v12");
	CHECK_EQ(gantry_loader_net(l, 99, &net), GANTRY_ERR_UNSUPPORTED);
	CHECK(net == NULL);
	CHECK_OK(gantry_loader_net(l, 0, &net));
	CHECK_EQ(net->version, 11);
	CHECK_OK(gantry_loader_net(l, 11, &again));
	CHECK(net == again);
	gantry_loader_close(l);
}

int main(int argc, char **argv)
{
	(void)argc;
	fixtures_on_search_path(argv);
	RUN(check_rules());
	RUN(check_refusals());
	RUN(check_default());
	RUN(check_other_machine());
	RUN(check_log());
	RUN(check_versions());
	return 0;
}
