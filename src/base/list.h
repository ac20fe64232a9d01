/* SPDX-License-Identifier: Apache-2.0 */
/* A doubly linked list whose links live in its elements. The head is an element of its own; no allocation. */
#ifndef GANTRY_BASE_LIST_H
#define GANTRY_BASE_LIST_H

#include <stddef.h>

struct gantry_list {
	struct gantry_list *next, *prev;
};

#define gantry_container(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void gantry_list_init(struct gantry_list *l)
{
	l->next = l->prev = l;
}
static inline int gantry_list_empty(const struct gantry_list *l)
{
	return l->next == l;
}
static inline void gantry_list_append(struct gantry_list *head, struct gantry_list *e)
{
	e->prev = head->prev;
	e->next = head;
	head->prev->next = e;
	head->prev = e;
}
/* Leaves e a list of its own, so that removing twice is harmless. */
static inline void gantry_list_remove(struct gantry_list *e)
{
	e->prev->next = e->next;
	e->next->prev = e->prev;
	gantry_list_init(e);
}
#define gantry_list_each(pos, head) for (struct gantry_list *pos = (head)->next; pos != (head); pos = pos->next)
/* The body may remove pos. */
#define gantry_list_each_safe(pos, head)                                                                               \
	for (struct gantry_list *pos = (head)->next, *pos##_next = pos->next; pos != (head);                           \
	     pos = pos##_next, pos##_next = pos->next)

/* The same over the elements themselves: `e` is a type *, `member` its link. At the end `e` is none, and only its link,
 * which is the head, is looked at. */
#define gantry_list_node(e, type, member) ((struct gantry_list *)(void *)((char *)(e) + offsetof(type, member)))
#define gantry_list_each_entry(e, head, type, member)                                                                  \
	for (type *e = gantry_container((head)->next, type, member); gantry_list_node(e, type, member) != (head);      \
	     e = gantry_container(gantry_list_node(e, type, member)->next, type, member))
#define gantry_list_each_entry_safe(e, head, type, member)                                                             \
	for (type *e = gantry_container((head)->next, type, member),                                                   \
		  *e##_next = gantry_container(gantry_list_node(e, type, member)->next, type, member);                 \
	     gantry_list_node(e, type, member) != (head);                                                              \
	     e = e##_next, e##_next = gantry_container(gantry_list_node(e, type, member)->next, type, member))

#endif
