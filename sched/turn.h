/* Who may use a device that several models share: the engine threads of one process take turns, so that a token step
 * and a denoising step never fight for the same processors, and each kind gets its share of the time. A long image step
 * gives the device up between its operations when a text step waits (turn_yield), within what its share allows; what it is
 * owed after a long text step it gets in pieces, a text step between each two.
 *
 * Weighted fair share over busy time: of the users that wait, the one whose class has used the least time per weight
 * goes first; a class that was idle starts level with the others (no credit for sleeping). All functions: any thread. */
#ifndef SCHED_TURN_H
#define SCHED_TURN_H

#include <stdbool.h>
#include <stdint.h>

enum turn_class { TURN_TEXT, TURN_IMAGE, TURN_AUDIO, TURN_N_CLASS };
struct turn;
struct turn_user;

/* share: weight of each class; 0 = 1. NULL: no memory. */
struct turn *turn_open(const int share[TURN_N_CLASS]);
void turn_close(struct turn *t); /* after its users left; NULL is fine */
struct turn_user *turn_join(struct turn *t, enum turn_class c); /* NULL: no memory */
void turn_leave(struct turn_user *u);                           /* not while it holds the device */

/* Wait for the device; give it back. u NULL: nothing happens (a device of one's own). */
void turn_take(struct turn_user *u);
void turn_give(struct turn_user *u);
/* The holder, at a point where it may pause: give the device to a user with a better claim and wait until it comes
 * back; cheap when nobody waits (one atomic load). Returns microseconds spent waiting. */
int64_t turn_yield(struct turn_user *u);
/* Busy time of a class, microseconds, for metrics. */
int64_t turn_used_us(struct turn *t, enum turn_class c);

#endif
