/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's environment variables. Those that have a meaning here stand in for a parameter of Gantry that is not set; of
 * the others that NCCL documents, those that are set are named in one line, so that users do not measure what has no
 * effect.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/secret.h"
#include "base/text.h"
#include "nccl/nccl.h"

enum { VALUE_TEXT = 256, LINE_TEXT = 768, CHANNELS_MAX = 64 };

/* ---- from NCCL's values to ours. `param` is the number of ours; NULL: it has nothing to say ---- */

static const char *to_same(size_t param, const char *value, char *buf)
{
	snprintf(buf, VALUE_TEXT, "%s", value);
	return gantry_param_allows(param, buf) ? buf : NULL;
}

static const char *to_log_level(size_t param, const char *value, char *buf)
{
	static const char *const levels[][2] = {
		{"VERSION", "warn"}, {"WARN", "warn"}, {"INFO", "info"}, {"ABORT", "info"}, {"TRACE", "trace"}};

	(void)param;
	for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++)
		if (strcasecmp(value, levels[i][0]) == 0)
			return strcpy(buf, levels[i][1]);
	return NULL;
}

static bool is_on(const char *value)
{
	return strcmp(value, "0") != 0;
}

static const char *to_off(size_t param, const char *value, char *buf)
{
	(void)param;
	return is_on(value) ? strcpy(buf, "off") : NULL;
}

/* The transports of "auto" but for that one. */
static const char *to_no_shm(size_t param, const char *value, char *buf)
{
	(void)param;
	return is_on(value) ? strcpy(buf, "p2p,net") : NULL;
}

/* "LOC" or 0: the network never touches the memory of a GPU. */
static const char *to_no_gdr(size_t param, const char *value, char *buf)
{
	(void)param;
	return strcmp(value, "0") == 0 || strcasecmp(value, "LOC") == 0 ? strcpy(buf, "off") : NULL;
}

/* NCCL takes lists, lists to exclude (^), and from 2.24 on one list for each function ("allreduce:ring;..."). One word
 * that we know too is followed; whatever leaves a choice leaves it to the cost model. */
static const char *to_word(size_t param, const char *value, char *buf)
{
	char *at = buf;

	if (strpbrk(value, ",^;:"))
		return NULL;
	for (; *value && at < buf + VALUE_TEXT - 1; value++)
		*at++ = (char)tolower((unsigned char)*value);
	*at = 0;
	return gantry_param_allows(param, buf) ? buf : NULL;
}

/* The same, and collNet, which has two names and is for all-reduce alone. */
static const char *to_algo(size_t param, const char *value, char *buf)
{
	static const char only[] = "allreduce:";
	const char *name = strncasecmp(value, only, sizeof(only) - 1) ? value : value + sizeof(only) - 1;

	if (strcasecmp(name, "CollNetChain") == 0 || strcasecmp(name, "CollNetDirect") == 0)
		return strcpy(buf, "collnet");
	return to_word(param, value, buf);
}

/* PATH_* of NCCL: what is closer than a port merges nothing. */
static const char *to_merge(size_t param, const char *value, char *buf)
{
	return strcasecmp(value, "LOC") == 0 ? strcpy(buf, "off") : to_word(param, value, buf);
}

static const char *to_on(size_t param, const char *value, char *buf)
{
	(void)param;
	return is_on(value) ? strcpy(buf, "1") : NULL;
}

static const char *to_channels(size_t param, const char *value, char *buf)
{
	int64_t n;

	if (gantry_parse_int(value, &n) != GANTRY_OK || n < 1)
		return NULL;
	snprintf(buf, VALUE_TEXT, "%d", n < CHANNELS_MAX ? (int)n : CHANNELS_MAX);
	return gantry_param_allows(param, buf) ? buf : NULL;
}

/* Our own network needs no plugin, and is what the value "none" selects. */
static const char *to_plugin(size_t param, const char *value, char *buf)
{
	if (strcmp(value, "gantry") == 0 || strcmp(value, "none") == 0)
		return NULL;
	return to_same(param, value, buf);
}

/*
 * Subsystems: what of ours may have to say something about them. A list is what is logged, after ^ what is not; then one of
 * ours is left out if nothing that remains would need it, and those that NCCL has no word for stay.
 */
static const struct {
	const char *nccl;
	uint32_t mask;
} subsystems[] = {
	{"INIT", GANTRY_SUBSYS_BASE | GANTRY_SUBSYS_COMM | GANTRY_SUBSYS_LOADER | GANTRY_SUBSYS_DEVICE},
	{"COLL", GANTRY_SUBSYS_COMM},
	{"P2P", GANTRY_SUBSYS_COMM},
	{"SHM", GANTRY_SUBSYS_COMM},
	{"NET", GANTRY_SUBSYS_NET | GANTRY_SUBSYS_DATA | GANTRY_SUBSYS_LOADER | GANTRY_SUBSYS_PLUGIN},
	{"GRAPH", GANTRY_SUBSYS_COMM},
	{"TUNING", GANTRY_SUBSYS_COMM},
	{"ENV", GANTRY_SUBSYS_BASE},
	{"ALLOC", GANTRY_SUBSYS_DEVICE},
	{"CALL", GANTRY_SUBSYS_COMM},
	{"PROXY", GANTRY_SUBSYS_PROXY},
	{"NVLS", 0},
	{"BOOTSTRAP", GANTRY_SUBSYS_COMM},
	{"REG", GANTRY_SUBSYS_COMM},
	{"PROFILE", GANTRY_SUBSYS_PLUGIN},
	{"RAS", GANTRY_SUBSYS_COMM},
	{"DESTROY", GANTRY_SUBSYS_COMM},
	{"ALLOC_HOST", GANTRY_SUBSYS_DEVICE},
};
enum { SUBSYSTEMS = sizeof(subsystems) / sizeof(*subsystems), NO_WORD_FOR = GANTRY_SUBSYS_TOOL | GANTRY_SUBSYS_RX };

/* The words of a list, a bit each; unknown ones are not. */
static uint32_t subsystem_words(const char *list)
{
	uint32_t words = 0;
	char word[32];

	while (gantry_next_entry(&list, word, sizeof(word))) {
		for (uint32_t i = 0; i < SUBSYSTEMS; i++)
			words |= strcasecmp(word, subsystems[i].nccl) == 0 ? 1u << i : 0;
		words |= strcasecmp(word, "ALL") == 0 ? (1u << SUBSYSTEMS) - 1 : 0;
	}
	return words;
}

static const char *to_subsys(size_t param, const char *value, char *buf)
{
	bool inverted = *value == '^';
	uint32_t words = subsystem_words(value + inverted), mask = inverted ? NO_WORD_FOR : 0;

	if (!words)
		return NULL;
	*buf = 0;
	for (uint32_t i = 0; i < SUBSYSTEMS; i++)
		mask |= (words >> i & 1) != inverted ? subsystems[i].mask : 0;
	for (uint32_t bit = 1; bit & GANTRY_SUBSYS_ALL; bit <<= 1)
		if (mask & bit)
			gantry_text_add(buf, VALUE_TEXT, "%s%s", *buf ? "," : "",
					gantry_log_subsys_name((enum gantry_log_subsys)bit));
	return gantry_param_allows(param, buf) ? buf : NULL;
}

/* The first that is set counts where two stand for the same. */
static const struct {
	const char *nccl, *gantry;
	const char *(*convert)(size_t param, const char *value, char *buf);
} stands_for[] = {
	{"NCCL_DEBUG", "GANTRY_LOG", to_log_level},
	{"NCCL_DEBUG_FILE", "GANTRY_LOG_FILE", to_same},
	{"NCCL_DEBUG_SUBSYS", "GANTRY_LOG_SUBSYS", to_subsys},
	{"NCCL_ALGO", "GANTRY_ALGO", to_algo},
	{"NCCL_COLLNET_ENABLE", "GANTRY_COLLNET", to_on},
	{"NCCL_PROTO", "GANTRY_PROTO", to_word},
	{"NCCL_MAX_NCHANNELS", "GANTRY_CHANNELS", to_channels},
	{"NCCL_MAX_CTAS", "GANTRY_CHANNELS", to_channels},
	{"NCCL_MIN_NCHANNELS", "GANTRY_CHANNELS", to_channels},
	{"NCCL_MIN_CTAS", "GANTRY_CHANNELS", to_channels},
	{"NCCL_P2P_DISABLE", "GANTRY_P2P", to_off},
	{"NCCL_P2P_DIRECT_DISABLE", "GANTRY_PTR", to_off},
	{"NCCL_SHM_DISABLE", "GANTRY_TRANSPORT", to_no_shm},
	{"NCCL_NET_PLUGIN", "GANTRY_NET_PLUGIN", to_plugin},
	{"NCCL_NET", "GANTRY_NET", to_same},
	{"NCCL_NET_GDR_LEVEL", "GANTRY_NET_GDR", to_no_gdr},
	{"NCCL_NET_MERGE_LEVEL", "GANTRY_NET_MERGE", to_merge},
	{"NCCL_NET_FORCE_MERGE", "GANTRY_NET_FORCE_MERGE", to_same},
	{"NCCL_HOSTID", "GANTRY_HOST_ID", to_same},
	{"NCCL_IGNORE_CPU_AFFINITY", "GANTRY_PROXY_PIN", to_off},
};
enum { STANDS_FOR = sizeof(stands_for) / sizeof(*stands_for) };

/* Known without a parameter of ours: the first two are read by the network, the third below; the last two ask for what
 * is so anyway. */
static const char *const others_known[] = {"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_BLOCKING",
					   "NCCL_IB_DISABLE", "NCCL_MULTI_RANK_GPU_ENABLE"};
enum { OTHERS_KNOWN = sizeof(others_known) / sizeof(*others_known) };

/* What NCCL documents beside those. */
static const char *const meaningless[] = {"NCCL_ALLOC_P2P_NET_LL_BUFFERS",
					  "NCCL_BUFFSIZE",
					  "NCCL_CGA_CLUSTER_SIZE",
					  "NCCL_CHECKS_DISABLE",
					  "NCCL_CHECK_MODE",
					  "NCCL_CHECK_POINTERS",
					  "NCCL_COLLNET_NODE_THRESHOLD",
					  "NCCL_COMM_ID",
					  "NCCL_CONF_FILE",
					  "NCCL_CROSS_NIC",
					  "NCCL_CTA_POLICY",
					  "NCCL_CUMEM_ENABLE",
					  "NCCL_CUMEM_HOST_ENABLE",
					  "NCCL_DEBUG_TIMESTAMP_FORMAT",
					  "NCCL_DEBUG_TIMESTAMP_LEVELS",
					  "NCCL_DMABUF_ENABLE",
					  "NCCL_ENV_PLUGIN",
					  "NCCL_GRAPH_DUMP_FILE",
					  "NCCL_GRAPH_FILE",
					  "NCCL_GRAPH_MIXING_SUPPORT",
					  "NCCL_GRAPH_REGISTER",
					  "NCCL_GRAPH_STREAM_ORDERING",
					  "NCCL_IB_ADAPTIVE_ROUTING",
					  "NCCL_IB_ADDR_FAMILY",
					  "NCCL_IB_ADDR_RANGE",
					  "NCCL_IB_AR_THRESHOLD",
					  "NCCL_IB_CUDA_SUPPORT",
					  "NCCL_IB_ECE_ENABLE",
					  "NCCL_IB_FIFO_TC",
					  "NCCL_IB_GID_INDEX",
					  "NCCL_IB_HCA",
					  "NCCL_IB_MERGE_NICS",
					  "NCCL_IB_OOO_RQ",
					  "NCCL_IB_PCI_RELAXED_ORDERING",
					  "NCCL_IB_QPS_PER_CONNECTION",
					  "NCCL_IB_RETRY_CNT",
					  "NCCL_IB_RETURN_ASYNC_EVENTS",
					  "NCCL_IB_ROCE_VERSION_NUM",
					  "NCCL_IB_SL",
					  "NCCL_IB_SPLIT_DATA_ON_QPS",
					  "NCCL_IB_TC",
					  "NCCL_IB_TIMEOUT",
					  "NCCL_IGNORE_COLLNET_MISMATCH",
					  "NCCL_IGNORE_NET_MISMATCH",
					  "NCCL_IPC_USE_ABSTRACT_SOCKET",
					  "NCCL_LAUNCH_MODE",
					  "NCCL_LAUNCH_ORDER_IMPLICIT",
					  "NCCL_LAUNCH_RACE_FATAL",
					  "NCCL_LEGACY_CUDA_REGISTER",
					  "NCCL_LL128_BUFFSIZE",
					  "NCCL_LL_BUFFSIZE",
					  "NCCL_LL_THRESHOLD",
					  "NCCL_LOCAL_REGISTER",
					  "NCCL_MEM_SYNC_DOMAIN",
					  "NCCL_MNNVL_CLIQUE_ID",
					  "NCCL_MNNVL_ENABLE",
					  "NCCL_MNNVL_UUID",
					  "NCCL_NCHANNELS_PER_NET_PEER",
					  "NCCL_NETDEVS_POLICY",
					  "NCCL_NET_GDR_C2C",
					  "NCCL_NET_GDR_READ",
					  "NCCL_NET_MERGE_POLICY",
					  "NCCL_NET_SHARED_BUFFERS",
					  "NCCL_NET_SHARED_COMMS",
					  "NCCL_NSOCKS_PERTHREAD",
					  "NCCL_NTHREADS",
					  "NCCL_NVB_DISABLE",
					  "NCCL_NVLS_ENABLE",
					  "NCCL_OOB_NET_ENABLE",
					  "NCCL_OOB_NET_IFNAME",
					  "NCCL_P2P_LEVEL",
					  "NCCL_P2P_LL_THRESHOLD",
					  "NCCL_P2P_NET_CHUNKSIZE",
					  "NCCL_P2P_PXN_LEVEL",
					  "NCCL_PROFILER_PLUGIN",
					  "NCCL_PXN_C2C",
					  "NCCL_PXN_DISABLE",
					  "NCCL_RAS_ADDR",
					  "NCCL_RAS_ENABLE",
					  "NCCL_RAS_TIMEOUT_FACTOR",
					  "NCCL_RUNTIME_CONNECT",
					  "NCCL_SET_STACK_SIZE",
					  "NCCL_SET_THREAD_NAME",
					  "NCCL_SINGLE_RING_THRESHOLD",
					  "NCCL_SOCKET_MAGIC",
					  "NCCL_SOCKET_NTHREADS",
					  "NCCL_SOCKET_POLL_TIMEOUT_MSEC",
					  "NCCL_SOCKET_RETRY_CNT",
					  "NCCL_SOCKET_RETRY_SLEEP_MSEC",
					  "NCCL_SYM_GIN_KERNELS_ENABLE",
					  "NCCL_TOPO_DUMP_FILE",
					  "NCCL_TOPO_FILE",
					  "NCCL_TREE_THRESHOLD",
					  "NCCL_TUNER_PLUGIN",
					  "NCCL_UID_STAGGER_RATE",
					  "NCCL_UID_STAGGER_THRESHOLD",
					  "NCCL_WIN_ENABLE"};
enum { MEANINGLESS = sizeof(meaningless) / sizeof(*meaningless) };

/* Called with the lock of loading: one buffer is enough. */
static const char *nccl_value(size_t param, const char *env)
{
	static char buf[VALUE_TEXT];

	for (size_t i = 0; i < STANDS_FOR; i++) {
		const char *value = strcmp(stands_for[i].gantry, env) == 0 ? gantry_variable(stands_for[i].nccl) : NULL;
		const char *text = value ? stands_for[i].convert(param, value, buf) : NULL;

		if (text)
			return text;
	}
	return NULL;
}

/* ---- encryption: what a program asks for stands in for GANTRY_SECRET and GANTRY_ENCRYPT ---- */

enum { PSK_MIN = 32, MODE_NONE = 0, MODE_PSK = 1 };

static const char *asked_psk; /* atomic; kept by base/secret.h. NULL: not asked for */
static int begun;	      /* atomic: a communicator was made, or an id */

static const char *asked_value(const char *env)
{
	const char *psk = load_acquire(&asked_psk);

	if (psk && strcmp(env, "GANTRY_SECRET") == 0)
		return psk;
	return psk && strcmp(env, "GANTRY_ENCRYPT") == 0 ? "require" : NULL;
}

static const char *stand_in(size_t param, const char *env)
{
	const char *text = asked_value(env);

	return text ? text : nccl_value(param, env);
}

static void set_fallback(void)
{
	gantry_params_set_fallback(stand_in);
}

gantry_result nccl_begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, set_fallback);
	return gantry_params_load(0);
}

void nccl_env_begun(void)
{
	store_release(&begun, 1);
}

/* The environment goes before what a program says; but nothing may travel in the clear that was to be encrypted. */
static gantry_result check_asked(void)
{
	const struct gantry_params *p = gantry_params();

	if (p->encrypt == PARAM_ENCRYPT_REQUIRE && *p->secret)
		return GANTRY_OK;
	FAIL_NOW(GANTRY_ERR_USAGE, "ncclSetEncryption: GANTRY_ENCRYPT is set to something other than require");
}

static gantry_result set_encryption(const ncclEncryptionConfig_t *config)
{
	size_t size = offsetof(ncclEncryptionConfig_t, psk) + sizeof(config->psk);
	const char *psk = NULL;

	if (config && (config->magic != NCCL_API_MAGIC || config->size < size))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclSetEncryption: the configuration was not initialised");
	if (config && config->mode == MODE_PSK) {
		if (!config->psk || strlen(config->psk) < PSK_MIN)
			FAIL_NOW(GANTRY_ERR_INVALID, "ncclSetEncryption: the key has fewer than %d bytes", PSK_MIN);
		psk = gantry_secret_keep(config->psk);
		if (!psk)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a key");
	} else if (config && config->mode != MODE_NONE) {
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclSetEncryption: unknown mode %d", config->mode);
	}
	if (load_acquire(&begun) && psk != load_acquire(&asked_psk))
		FAIL_NOW(GANTRY_ERR_USAGE,
			 "ncclSetEncryption must be called before the first communicator or id is created");
	store_release(&asked_psk, psk);
	TRY_NOW(nccl_begin());
	TRY_NOW(gantry_params_load(1));
	return psk ? check_asked() : GANTRY_OK;
}

NCCL_FUNCTION(ncclResult_t, SetEncryption, (const ncclEncryptionConfig_t *config))
{
	return nccl_result(set_encryption(config));
}

int nccl_env_blocking(void)
{
	const char *value = gantry_variable("NCCL_COMM_BLOCKING");

	return value && (strcmp(value, "0") == 0 || strcmp(value, "1") == 0) ? *value - '0' : -1;
}

const char *nccl_env_name(size_t i)
{
	if (i < STANDS_FOR)
		return stands_for[i].nccl;
	return i < STANDS_FOR + OTHERS_KNOWN ? others_known[i - STANDS_FOR] : NULL;
}

/* A variable of a parameter that this build does not have, or a value that nothing here stands for. */
static bool has_effect(size_t i)
{
	const char *value = gantry_variable(stands_for[i].nccl);
	char buf[VALUE_TEXT];

	for (size_t p = 0; p < gantry_param_count(); p++) {
		struct gantry_param_info info;

		gantry_param_describe(p, &info);
		if (strcmp(info.env, stands_for[i].gantry) == 0)
			return stands_for[i].convert(p, value, buf) || !is_on(value);
	}
	return false;
}

static void add_name(char *line, const char *name)
{
	gantry_text_add(line, LINE_TEXT, "%s%s", *line ? ", " : "", name);
}

static char ignored_names[LINE_TEXT];

static void collect_told(void)
{
	for (size_t i = 0; i < MEANINGLESS; i++)
		if (gantry_variable(meaningless[i]))
			add_name(ignored_names, meaningless[i]);
	for (size_t i = 0; i < STANDS_FOR; i++)
		if (gantry_variable(stands_for[i].nccl) && !has_effect(i))
			add_name(ignored_names, stands_for[i].nccl);
}

/* The ranks of a job have the same variables: one of them says it where people look. */
void nccl_env_tell(int rank)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static int logged;

	pthread_once(&once, collect_told);
	if (!*ignored_names || exchange_relaxed(&logged, 1))
		return;
	if (rank == 0)
		LOG_WARN(COMM, "these variables are set but have no effect under Gantry: %s", ignored_names);
	else
		LOG_INFO(COMM, "these variables are set but have no effect under Gantry: %s", ignored_names);
}

NCCL_FUNCTION(void, ResetDebugInit, (void))
{
	if (nccl_begin() == GANTRY_OK)
		gantry_params_load(1);
}
