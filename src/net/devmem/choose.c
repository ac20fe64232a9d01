/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem.h"

#include <stdio.h>

#include "base/log.h"
#include "base/param.h"

enum { PARAM_AUTO, PARAM_KERNEL, PARAM_EMULATED, PARAM_OFF }; /* the choices of GANTRY_UNPACK */

static enum gantry_net_unpack from_param(int *ret_forced)
{
	*ret_forced = 1;
	switch (gantry_params()->unpack) {
	case PARAM_KERNEL:
		return GANTRY_NET_UNPACK_KERNEL;
	case PARAM_EMULATED:
		return GANTRY_NET_UNPACK_EMULATED;
	case PARAM_OFF:
		return GANTRY_NET_UNPACK_OFF;
	}
	*ret_forced = 0;
	return GANTRY_NET_UNPACK_KERNEL;
}

gantry_result devmem_source_get(enum devmem_kind kind, const struct devmem_source_ops **ret_source)
{
	gantry_result r = GANTRY_OK;

	if (kind == DEVMEM_EMULATED)
		return devmem_emulated_open(ret_source);
	if (kind != DEVMEM_KERNEL)
		FAIL(GANTRY_ERR_UNSUPPORTED, "there is no source of fragments of kind %d", (int)kind);
	*ret_source = &devmem_kernel;
out:
	return r;
}

gantry_result devmem_choose(enum gantry_net_unpack want, const char *nic, struct gantry_device *dev,
			    enum devmem_kind *ret_kind, char *why, size_t len)
{
	gantry_result r = GANTRY_OK;
	const struct devmem_source_ops *source;
	char reason[256] = "";
	int forced = 1;

	if (want == GANTRY_NET_UNPACK_PARAM)
		want = from_param(&forced);
	snprintf(why, len, "%s", "");
	switch (want) {
	case GANTRY_NET_UNPACK_OFF:
		*ret_kind = DEVMEM_NONE;
		return GANTRY_OK;
	case GANTRY_NET_UNPACK_EMULATED:
		TRY(devmem_emulated_open(&source));
		*ret_kind = DEVMEM_EMULATED;
		return GANTRY_OK;
	case GANTRY_NET_UNPACK_KERNEL:
		break;
	default:
		FAIL(GANTRY_ERR_INVALID, "%d is no way to receive into device memory", (int)want);
	}
	if (devmem_kernel_usable(nic, dev, reason, sizeof(reason))) {
		*ret_kind = DEVMEM_KERNEL;
		return GANTRY_OK;
	}
	if (forced)
		FAIL(GANTRY_ERR_UNSUPPORTED, "devmem TCP was asked for but cannot be used with %s: %s", nic, reason);
	snprintf(why, len, "%s: %s", nic, reason);
	*ret_kind = DEVMEM_NONE;
out:
	return r;
}
