/* What the plugin's parts share: symbols, the call tree, cache lines, counters. One vCPU only. */
#ifndef NSPROF_COUNT_H
#define NSPROF_COUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What is counted for each node of the call tree. The first two come from the inline counters. */
enum quantity {
	INSTRUCTIONS,	/* a rep string instruction is one */
	REP_ITERATIONS, /* its repetitions after the first execution, apart */
	LOADS,
	STORES,
	DATA_LINES, /* first touched by this node within the sample */
	TEXT_LINES,
	L1D_MISSES,
	L1I_MISSES,
	L2_MISSES,
	QUANTITIES
};

/* Incremented by translated code, so they count every executed instruction, whatever happens after
 * it. */
struct live_counters {
	uint64_t kernel; /* executions of kernel instructions */
	uint64_t user;
	uint64_t armed; /* changes when an instruction whose memory access matters begins */
};
extern struct live_counters *live;
extern uint64_t rep_repeats; /* executions that only repeat a rep string instruction */

/* ---- symbols.c ---- */
/* Functions at which a packet gets to the next device: a received skb's way up, a sent one's way
 * down. */
enum hop_function { NO_HOP, RECEIVES, TRANSMITS };
struct symbol {
	uint64_t address;
	int function; /* itself, or the function that it is a part of (foo.cold -> foo) */
	bool interrupt_entry;
	enum hop_function hop;
	char *name;
};
extern struct symbol *symbols;
extern int
    symbol_count; /* symbols[symbol_count] is [unknown], symbols[symbol_count + 1] is [user] */
bool symbols_load(const char *path);
int symbol_at(uint64_t address);
bool is_fork_return(int function);
bool is_irq_stub(uint64_t address, bool *first);

/* ---- tree.c ---- */
/* A node's tag tells for which packet it works: HOP_ACTOR is who of the traffic's two ends acts
 * (the traffic program says so), HOP_NUMBER which of the receptions (or with HOP_TRANSMITS, of the
 * transmissions) since the system call began, from 1; 0: neither. Only nodes of hop functions and
 * roots of system calls have tags; all else is below them. */
#define HOP_ACTOR 0xff00
#define HOP_TRANSMITS 0x80
#define HOP_NUMBER 0x7f
struct node {
	uint32_t parent;
	int function;
	uint32_t tag;
	uint32_t epoch;
	uint64_t calls;
	uint64_t count[QUANTITIES];
};
/* A translation block, as the tree sees it. */
struct block {
	uint64_t address;
	int function;
	bool user, interrupt, start; /* start: the block is a function's first */
	struct block *next;
};
struct tree_statistics {
	uint64_t calls, returns, matched, redirected, unmatched, recovered, tail_jumps, crossings,
	    interrupts, interrupt_returns, interrupt_unmatched, entries, local_calls, forks;
};
extern struct tree_statistics tree_statistics;
extern struct node *nodes;
extern uint32_t node_count;

void tree_init(void);
void tree_reset(void);			      /* the CPU is in user mode, nothing is pending */
void tree_new_epoch(void);		      /* all nodes read as zero */
uint32_t tree_touched(const uint32_t **list); /* nodes with counts in this epoch */
struct node *tree_here(void);
bool tree_in_user(void);
void tree_actor(int id);
void tree_flush(void);	/* charge what the live counters gained to the current node */
void tree_forget(void); /* what they gained is charged to nobody */
void tree_block(const struct block *block);
void tree_crossing(int function);
void tree_call(uint64_t slot, uint64_t return_address);
void tree_return(uint64_t slot);
void tree_interrupt_push(uint64_t slot);
void tree_interrupt_return(uint64_t slot);

/* ---- lines.c ---- */
bool lines_cache(const char *name, const char *geometry); /* "l1d", "48:12" (KiB:ways) */
extern bool lines_footprint, lines_caches;
void lines_new_sample(void);
/* Misses that an access had in the caches that are modelled. */
struct misses {
	uint32_t l1, l2;
};
struct misses lines_data(struct node *node, uint64_t address, uint64_t physical, unsigned size,
			 bool store, uint64_t instruction);
struct misses lines_text(struct node *node, uint64_t address);
void lines_write(FILE *out);
/* Physical page of a virtual one as seen earlier in this sample; 0 when it has to be asked for. */
uint64_t page_lookup(uint64_t address);
void page_remember(uint64_t address, uint64_t physical);

static inline uint32_t hash64(uint64_t key, unsigned bits)
{
	return (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> (64 - bits));
}

void *need_memory(void *pointer);

#endif
