/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclParam*: parameters by name. There are Gantry's own, with their values in force, and the variables of NCCL that
 * have a meaning here, as they stand in the environment. A handle is a parameter's number, from 1 on.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "nccl/nccl.h"

enum { VALUE_TEXT = GANTRY_THREAD_TEXT };

static size_t count_all(void)
{
	size_t n = 0;

	while (nccl_env_name(n))
		n++;
	return gantry_param_count() + n;
}

/* i < count_all(). */
static const char *name_of(size_t i)
{
	struct gantry_param_info info;

	if (i >= gantry_param_count())
		return nccl_env_name(i - gantry_param_count());
	gantry_param_describe(i, &info);
	return info.env;
}

static void value_of(size_t i, char buf[VALUE_TEXT])
{
	struct gantry_param_info info;
	const char *text;

	if (i < gantry_param_count()) {
		gantry_param_describe(i, &info);
		snprintf(buf, VALUE_TEXT, "%s", info.value);
		return;
	}
	text = gantry_variable(name_of(i));
	snprintf(buf, VALUE_TEXT, "%s", text ? text : "");
}

static gantry_result find_key(const char *key, size_t *ret)
{
	if (!key)
		FAIL_NOW(GANTRY_ERR_INVALID, "no parameter name given");
	TRY_NOW(nccl_begin());
	for (size_t i = 0; i < count_all(); i++) {
		if (strcmp(key, name_of(i)) == 0) {
			*ret = i;
			return GANTRY_OK;
		}
	}
	FAIL_NOW(GANTRY_ERR_INVALID, "there is no parameter %s", key);
}

static gantry_result text_of(ncclParamHandle_t handle, char buf[VALUE_TEXT])
{
	uintptr_t number = (uintptr_t)handle;

	TRY_NOW(nccl_begin());
	if (!number || number > count_all())
		FAIL_NOW(GANTRY_ERR_INVALID, "not a parameter handle");
	value_of(number - 1, buf);
	return GANTRY_OK;
}

/* Numbers of parameters are shown with units, and switches as words. */
static gantry_result parse_number(const char *text, int64_t *ret)
{
	uint64_t size;
	int on;

	if (gantry_parse_int(text, ret) == GANTRY_OK)
		return GANTRY_OK;
	if (gantry_parse_bool(text, &on) == GANTRY_OK)
		*ret = on;
	else if ((gantry_parse_size(text, &size) == GANTRY_OK || gantry_parse_duration(text, &size) == GANTRY_OK) &&
		 size <= INT64_MAX)
		*ret = (int64_t)size;
	else
		return GANTRY_ERR_INVALID;
	return GANTRY_OK;
}

static gantry_result number_of(ncclParamHandle_t handle, int64_t least, uint64_t most, int64_t *ret)
{
	char text[VALUE_TEXT];

	TRY_NOW(text_of(handle, text));
	if (parse_number(text, ret) != GANTRY_OK || *ret < least || (*ret > 0 && (uint64_t)*ret > most))
		FAIL_NOW(GANTRY_ERR_INVALID, "the value \"%s\" does not fit", text);
	return GANTRY_OK;
}

NCCL_FUNCTION(ncclResult_t, ParamBind, (ncclParamHandle_t * handle, const char *key))
{
	size_t i;
	gantry_result r = handle ? find_key(key, &i) : nccl_missing("ncclParamBind");

	if (r == GANTRY_OK)
		*handle = (ncclParamHandle_t)(uintptr_t)(i + 1);
	return nccl_result(r);
}

#define GETTER(suffix, type, least, most)                                                                              \
	NCCL_FUNCTION(ncclResult_t, ParamGet##suffix, (ncclParamHandle_t handle, type * value))                        \
	{                                                                                                              \
		int64_t number;                                                                                        \
		gantry_result r =                                                                                      \
			value ? number_of(handle, least, most, &number) : nccl_missing("ncclParamGet" #suffix);        \
                                                                                                                       \
		if (r == GANTRY_OK)                                                                                    \
			*value = (type)number;                                                                         \
		return nccl_result(r);                                                                                 \
	}
GETTER(I8, int8_t, INT8_MIN, INT8_MAX)
GETTER(I16, int16_t, INT16_MIN, INT16_MAX)
GETTER(I32, int32_t, INT32_MIN, INT32_MAX)
GETTER(I64, int64_t, INT64_MIN, INT64_MAX)
GETTER(U8, uint8_t, 0, UINT8_MAX)
GETTER(U16, uint16_t, 0, UINT16_MAX)
GETTER(U32, uint32_t, 0, UINT32_MAX)
GETTER(U64, uint64_t, 0, UINT64_MAX)

NCCL_FUNCTION(ncclResult_t, ParamGetStr, (ncclParamHandle_t handle, const char **value))
{
	char *text = gantry_thread_text(GANTRY_TEXT_NCCL_PARAM);
	gantry_result r = value ? text_of(handle, text) : nccl_missing("ncclParamGetStr");

	if (r == GANTRY_OK)
		*value = text;
	return nccl_result(r);
}

/* A number as an int64_t, anything else as its text. */
NCCL_FUNCTION(ncclResult_t, ParamGet, (ncclParamHandle_t handle, void *value, int room, int *len))
{
	char text[VALUE_TEXT];
	int64_t number;
	const void *from = text;
	gantry_result r = value && len ? text_of(handle, text) : nccl_missing("ncclParamGet");

	if (r != GANTRY_OK)
		return nccl_result(r);
	*len = (int)strlen(text);
	if (parse_number(text, &number) == GANTRY_OK) {
		from = &number;
		*len = (int)sizeof(number);
	}
	if (*len > room)
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclParamGet: buffer holds %d bytes, but %d are needed", room, *len));
	memcpy(value, from, (size_t)*len);
	return ncclSuccess;
}

NCCL_FUNCTION(ncclResult_t, ParamGetParameter, (const char *key, const char **value, int *len))
{
	char *text = gantry_thread_text(GANTRY_TEXT_NCCL_KEY);
	size_t i;
	gantry_result r = value && len ? find_key(key, &i) : nccl_missing("ncclParamGetParameter");

	if (r != GANTRY_OK) {
		if (value && len) {
			*value = NULL;
			*len = 0;
		}
		return nccl_result(r);
	}
	value_of(i, text);
	*value = text;
	*len = (int)strlen(text);
	return ncclSuccess;
}

/* The names live as long as the library: one table serves all callers. */
NCCL_FUNCTION(ncclResult_t, ParamGetAllParameterKeys, (const char ***keys, int *count))
{
	static const char **table;
	size_t n = count_all();
	const char **made, **none = NULL;

	if (!keys || !count)
		return nccl_result(nccl_missing("ncclParamGetAllParameterKeys"));
	if (!load_acquire(&table)) {
		made = calloc(n, sizeof(*made));
		if (!made)
			return nccl_result(GANTRY_ERR_NOMEM);
		for (size_t i = 0; i < n; i++)
			made[i] = name_of(i);
		if (!cas_acq_rel(&table, &none, made))
			free(made);
	}
	*keys = load_acquire(&table);
	*count = (int)n;
	return ncclSuccess;
}

NCCL_FUNCTION(void, ParamDumpAll, (void))
{
	char text[VALUE_TEXT];

	if (nccl_begin() != GANTRY_OK)
		return;
	for (size_t i = 0; i < count_all(); i++) {
		value_of(i, text);
		printf("%s=%s\n", name_of(i), text);
	}
}
