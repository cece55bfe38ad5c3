/*-------------------------------------------------------------------------
 * duet.h
 *		What the files of the duet driver share.
 *
 * The driver has one connection to each cluster in each of its threads.  A
 * cycle is one transaction to each cluster, in random order and with the same
 * random values.  It knows nothing of variants or statistics: it plays a plan
 * and writes down what it saw.
 *-------------------------------------------------------------------------
 */
#ifndef DUET_H
#define DUET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <libpq-fe.h>

#define MAX_CLUSTERS	16
#define MAX_THREADS		1024
#define MAX_SCRIPTS		255
#define MAX_STACK		64		/* of an expression */
#define MAX_PARAMETERS	64		/* of a statement */
#define MAX_STATEMENT	65536	/* bytes, variables replaced */
#define MAX_DIGITS		20		/* of a 64-bit number, with its sign */

/* A stop or an end is noticed within this time, even in a wait for a server. */
#define TICK_NS			((int64_t) 100000000)

/* ---------------- the plan ---------------- */

typedef enum Protocol
{
	PROTOCOL_SIMPLE,
	PROTOCOL_EXTENDED,
	PROTOCOL_PREPARED
} Protocol;

typedef enum OpKind
{
	OP_CONSTANT,
	OP_VARIABLE,
	OP_ADD,
	OP_SUBTRACT,
	OP_MULTIPLY,
	OP_DIVIDE,
	OP_MODULO,
	OP_NEGATE,
	OP_RANDOM					/* uniform on lowest .. highest */
} OpKind;

/* One operation of an expression in postfix order */
typedef struct Op
{
	OpKind		kind;
	int64_t		operand;		/* constant, or number of a variable */
} Op;

/* A piece of a statement: text as it is, or the value of a variable */
typedef struct Part
{
	char	   *text;			/* NULL for a variable */
	int			variable;
} Part;

typedef struct Command
{
	bool		assigns;
	/* an assignment */
	int			variable;
	int			nops;
	Op		   *ops;
	/* a statement */
	int			nparts;
	Part	   *parts;
	char	   *sql;			/* with $1, $2, ... for the variables */
	int			nparams;
	int		   *params;			/* their variables */
	char		name[32];		/* of the prepared statement */
} Command;

typedef struct Script
{
	uint32_t	weight;
	int			ncommands;
	Command    *commands;
} Script;

typedef struct Plan
{
	char	   *output;
	uint64_t	seed;
	int			nthreads;
	double		rate;			/* cycles a second over all threads, 0: closed loop */
	int64_t		warmup_ns;
	int64_t		duration_ns;
	int64_t		drain_ns;		/* for transactions still under way at the end */
	Protocol	protocol;
	int			nclusters;
	char	   *conninfo[MAX_CLUSTERS];
	int			nvariables;
	int64_t    *initial;		/* their values before each transaction */
	int			client_variable;	/* holds the thread's number, -1: none does */
	int			nscripts;
	Script		scripts[MAX_SCRIPTS];
	uint32_t	total_weight;
} Plan;

extern Plan *plan_read(const char *path);

/* ---------------- the schedule ---------------- */

/* Where a connection is in the sequence of cycles of its thread */
typedef struct Cycle
{
	uint32_t	number;
	int			order[MAX_CLUSTERS];	/* clusters in the order of their turns */
	int64_t		due_ns[MAX_CLUSTERS];	/* by turn, since the run's zero; open loop only */
	int64_t		begin_ns;
	int64_t		next_ns;		/* when the next cycle begins */
} Cycle;

extern void cycle_first(const Plan *plan, int thread, Cycle *cycle);
extern void cycle_next(const Plan *plan, int thread, Cycle *cycle);
extern uint64_t values_stream(const Plan *plan, int thread, uint32_t cycle);
extern uint64_t draw(uint64_t *state);
extern uint64_t draw_below(uint64_t *state, uint64_t limit);

static inline int
cycle_turn(const Cycle *cycle, int cluster)
{
	int			turn = 0;

	while (cycle->order[turn] != cluster)
		turn++;
	return turn;
}

/* ---------------- records ---------------- */

typedef enum Outcome
{
	OUTCOME_OK,
	OUTCOME_CONFLICT,			/* serialization failure or deadlock, rolled back */
	OUTCOME_ERROR,				/* any other SQL error */
	OUTCOME_LOST,				/* the connection broke */
	OUTCOME_UNFINISHED,			/* no answer until the run ended */
	OUTCOME_UNSENT				/* due, but the connection was never free for it */
} Outcome;

/* As the file holds it; duet_records.py reads it. */
typedef struct Record
{
	int64_t		scheduled_ns;	/* since the run's zero */
	int64_t		lag_ns;			/* from then until it was sent */
	int64_t		latency_ns;		/* from then until the answer */
	uint32_t	cycle;
	uint16_t	thread;
	uint8_t		cluster;
	uint8_t		turn;			/* place in the cycle's order */
	uint8_t		script;
	uint8_t		outcome;
	char		sqlstate[5];
	uint8_t		unused;
} Record;

_Static_assert(sizeof(Record) == 40, "the layout of a record is part of the file format");

typedef struct Sink Sink;
typedef struct Tray Tray;		/* one thread's records on their way into the file */

extern Sink *sink_open(const Plan *plan, int64_t zero_unix_ns);
extern Tray *sink_tray(Sink *sink, int thread);
extern void tray_put(Tray *tray, const Record *record);
extern void tray_finish(Tray *tray);
extern bool sink_serve(Sink *sink, int64_t until_ns);
extern const char *sink_error(const Sink *sink);
extern void sink_close(Sink *sink);

/* ---------------- the run ---------------- */

/* Why the run is over */
typedef enum Ending
{
	ENDED_BY_TIME,
	ENDED_BY_SIGNAL,
	ENDED_BY_FAILURE
} Ending;

typedef struct Run
{
	const Plan *plan;
	int64_t		zero_ns;		/* on CLOCK_MONOTONIC */
	_Atomic int64_t end_ns;		/* since zero; only ever moved to an earlier time */
	pthread_mutex_t lock;
	Ending		ending;
	char		failure[1024];	/* the first, in one line */
} Run;

extern void run_end(Run *run, Ending ending, const char *format, ...)
			__attribute__((format(printf, 3, 4)));

static inline int64_t
read_clock(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline int64_t
run_now(const Run *run)
{
	return read_clock(CLOCK_MONOTONIC) - run->zero_ns;
}

/* ---------------- connections ---------------- */

typedef enum LinkState
{
	LINK_IDLE,
	LINK_BUSY,
	LINK_ROLLING_BACK,			/* its transaction is recorded, but not yet undone */
	LINK_DEAD
} LinkState;

typedef struct Link
{
	Run		   *run;
	PGconn	   *conn;
	int			thread;
	int			cluster;
	LinkState	state;
	Cycle		cycle;			/* of the transaction under way, else of the next */
	/* the transaction under way */
	int64_t		scheduled_ns;
	int64_t		sent_ns;
	int			script;
	int			command;
	int64_t    *variables;
	uint64_t	values;			/* stream of random numbers */
	Outcome		outcome;
	char		sqlstate[6];
	char		message[512];
} Link;

/* What has become of the transaction under way */
typedef enum Progress
{
	PROGRESS_NONE,
	PROGRESS_FINISHED
} Progress;

extern bool link_open(Link *link, Run *run, int thread, int cluster);
extern void link_close(Link *link);
extern Progress link_start(Link *link, int64_t due_ns);
extern Progress link_receive(Link *link);
extern void link_describe(const Link *link, int64_t now_ns, Record *record);

/* ---------------- processors ---------------- */

extern bool pin_backend(Link *link);
extern bool pin_thread(int thread);

/* ---------------- scripts ---------------- */

extern bool assign(const Command *command, int64_t *variables, uint64_t *values);
extern int	script_choose(const Plan *plan, uint64_t *values);

/* ---------------- threads ---------------- */

typedef struct Worker
{
	Run		   *run;
	int			thread;
	Link		links[MAX_CLUSTERS];
	Tray	   *tray;
	Cycle		cycle;			/* closed loop: the one under way */
	int			turn;			/* and whose turn is next */
	pthread_t	id;
	_Alignas(64) _Atomic uint64_t transactions;
} Worker;

extern void *worker_main(void *argument);

#endif							/* DUET_H */
