/* The shadow call tree: exact, from the stack slots that CALL writes and RET reads.
 *
 * A frame is known by the address of the slot that holds its return address. CALL makes the frame,
 * RET finds it again and goes back to the caller's node. Since the slot says on which stack it
 * lies, context switches, softirq and interrupt stacks and kernel threads need nothing special: a
 * RET on another stack finds that stack's frame. Which function was called is seen when the next
 * block begins, so indirect calls, static calls and thunks are alike; another function without a
 * call or return before it is a tail jump: a child whose RET is the caller's.
 */
#include <stdlib.h>
#include <string.h>
#include "count.h"

/* What the last instruction of the previous block left open, until the next block says where it
 * led. */
enum pending { NOTHING, CALLED, RETURNED, RETURNED_UNKNOWN, INTERRUPT_UNKNOWN };

struct frame {
	uint64_t slot, return_address;
	uint32_t node; /* where to go back to */
	struct frame *up;
	enum pending pending; /* interrupts: what they interrupted */
	uint64_t expected;
	bool valid;
	struct frame *next;
};

#define FRAME_BITS 16
#define WALK_LIMIT 64 /* no kernel stack is deeper in tail jumps or skipped frames */

struct tree_statistics tree_statistics;
struct node *nodes;
uint32_t node_count;

static uint32_t node_room, *node_table, node_bits, epoch = 1;
static uint32_t *touched, touched_count, touched_room;
static struct frame *frames[1 << FRAME_BITS], *interrupted[1 << FRAME_BITS];
static uint32_t user_node, unknown_node;

static uint32_t current;
static struct frame *frame;
static enum pending pending;
static uint64_t expected; /* return address that RETURNED must lead to */
static bool in_user;
static uint32_t actor, receptions, transmissions; /* see HOP_ACTOR in count.h */
static struct frame *entering; /* an interrupt whose first push is still to come */

static struct {
	uint64_t kernel, repeats;
} charged; /* the live counters when they were last charged to a node */

/* ---- nodes ---- */

static uint32_t node_place(const struct node *node)
{
	uint64_t key = (uint64_t)node->parent << 32 | (uint32_t)node->function;

	return hash64(key ^ (uint64_t)node->tag << 20, node_bits);
}

static void node_insert(uint32_t index)
{
	uint32_t mask = (1u << node_bits) - 1, at = node_place(&nodes[index]);

	while (node_table[at])
		at = (at + 1) & mask;
	node_table[at] = index;
}

static void node_grow(void)
{
	node_room *= 2;
	nodes = need_memory(realloc(nodes, node_room * sizeof *nodes));
	free(node_table);
	node_bits++;
	node_table = need_memory(calloc((size_t)1 << node_bits, sizeof *node_table));
	for (uint32_t i = 1; i < node_count; i++)
		node_insert(i);
}

static uint32_t tagged_child(uint32_t parent, int function, uint32_t tag)
{
	const struct node wanted = {.parent = parent, .function = function, .tag = tag};
	uint32_t mask = (1u << node_bits) - 1;

	for (uint32_t at = node_place(&wanted); node_table[at]; at = (at + 1) & mask) {
		struct node *node = &nodes[node_table[at]];

		if (node->parent == parent && node->function == function && node->tag == tag)
			return node_table[at];
	}
	if (node_count == node_room)
		node_grow();
	nodes[node_count] = wanted;
	node_insert(node_count);
	return node_count++;
}

/* The child for a call that begins: at a hop function it is the next packet's. */
static uint32_t child(uint32_t parent, int function)
{
	uint32_t tag = 0;

	if (function >= 0 && symbols[function].hop == RECEIVES)
		tag = ++receptions;
	else if (function >= 0 && symbols[function].hop == TRANSMITS)
		tag = ++transmissions;
	if (!tag)
		return tagged_child(parent, function, 0);
	tag = tag < HOP_NUMBER ? tag : HOP_NUMBER;
	if (symbols[function].hop == TRANSMITS)
		tag |= HOP_TRANSMITS;
	return tagged_child(parent, function, tag | actor << 8);
}

static struct node *fresh(uint32_t index)
{
	struct node *node = &nodes[index];

	if (node->epoch == epoch)
		return node;
	node->epoch = epoch;
	node->calls = 0;
	memset(node->count, 0, sizeof node->count);
	if (touched_count == touched_room) {
		touched_room = touched_room ? touched_room * 2 : 4096;
		touched = need_memory(realloc(touched, touched_room * sizeof *touched));
	}
	touched[touched_count++] = index;
	return node;
}

static void enter(uint32_t index)
{
	current = index;
	fresh(index)->calls++;
}

void tree_init(void)
{
	node_room = 1 << 15;
	node_bits = 16;
	nodes = need_memory(calloc(node_room, sizeof *nodes));
	node_table = need_memory(calloc((size_t)1 << node_bits, sizeof *node_table));
	nodes[0].function = -1;
	node_count = 1;
	user_node = tagged_child(0, symbol_count + 1, 0);
	unknown_node = tagged_child(0, symbol_count, 0);
	current = unknown_node;
}

void tree_reset(void)
{
	frame = NULL;
	pending = NOTHING;
	free(entering);
	entering = NULL;
	in_user = true;
	tree_forget();
}

/* Which end of the traffic acts from now on; 0: not told. */
void tree_actor(int id)
{
	actor = (uint32_t)id & 0xff;
}

void tree_new_epoch(void)
{
	epoch++;
	touched_count = 0;
	tree_forget();
}

uint32_t tree_touched(const uint32_t **list)
{
	*list = touched;
	return touched_count;
}

struct node *tree_here(void)
{
	return fresh(in_user ? user_node : current);
}

bool tree_in_user(void)
{
	return in_user;
}

void tree_forget(void)
{
	charged.kernel = live->kernel;
	charged.repeats = rep_repeats;
}

void tree_flush(void)
{
	uint64_t repeats = rep_repeats - charged.repeats;
	uint64_t *count = tree_here()->count;

	count[INSTRUCTIONS] += live->kernel - charged.kernel - repeats;
	count[REP_ITERATIONS] += repeats;
	tree_forget();
}

/* ---- frames ---- */

static struct frame *frame_at(struct frame **table, uint64_t slot, bool make)
{
	struct frame **head = &table[hash64(slot >> 3, FRAME_BITS)], *found;

	for (found = *head; found; found = found->next)
		if (found->slot == slot)
			return found;
	if (!make)
		return NULL;
	found = need_memory(calloc(1, sizeof *found));
	found->slot = slot;
	found->next = *head;
	*head = found;
	return found;
}

/* ---- what blocks say ---- */

static void tail_jump(int function)
{
	uint32_t stop = frame ? frame->node : 0, node = current;

	/* back into a function that jumped here? */
	for (int depth = 0; depth < WALK_LIMIT && node && node != stop;
	     depth++, node = nodes[node].parent)
		if (nodes[node].function == function) {
			current = node;
			return;
		}
	tree_statistics.tail_jumps++;
	enter(child(current, function));
}

static void start_root(uint32_t parent, int function)
{
	frame = NULL;
	enter(child(parent, function));
}

static void interrupt(const struct block *block)
{
	struct frame *saved = need_memory(calloc(1, sizeof *saved));

	tree_flush();
	tree_statistics.interrupts++;
	saved->node = current;
	saved->up = frame;
	saved->pending = pending; /* it can land between a CALL and the callee's first block */
	saved->expected = expected;
	free(entering);
	entering = saved;
	frame = NULL;
	pending = NOTHING;
	enter(child(current, block->function));
}

static void returned_elsewhere(const struct block *block)
{
	tree_statistics.redirected++;
	tree_flush();
	if (is_fork_return(block->function)) {
		tree_statistics.forks++;
		start_root(0, block->function);
	} else if (block->function != nodes[current].function) {
		tail_jump(block->function);
	}
}

/* A RET from a slot that no CALL wrote: the return address was moved, or the call was before
 * counting began. */
static void returned_unknown(const struct block *block)
{
	struct frame *up = frame;
	int depth = 0;

	tree_flush();
	while (up && depth < WALK_LIMIT && up->return_address != block->address) {
		up = up->up;
		depth++;
	}
	if (up && depth < WALK_LIMIT) {
		tree_statistics.recovered++;
		current = up->node;
		frame = up->up;
	} else if (is_fork_return(block->function)) {
		tree_statistics.forks++;
		start_root(0, block->function);
	} else {
		tree_statistics.unmatched++;
		start_root(unknown_node, block->function);
	}
}

static void enter_user(void)
{
	tree_flush();
	tree_reset();
}

static void enter_kernel(const struct block *block)
{
	tree_flush();
	in_user = false;
	pending = NOTHING;
	tree_statistics.entries++;
	receptions = transmissions = 0;
	frame = NULL;
	enter(tagged_child(0, block->function, actor << 8));
}

static void settle(const struct block *block)
{
	bool same = block->function == nodes[current].function;

	switch (pending) {
	case NOTHING:
		if (!same) {
			tree_flush();
			tail_jump(block->function);
		}
		break;
	case CALLED:
		if (same && !block->start) {
			tree_statistics.local_calls++;
			break;
		}
		tree_flush();
		enter(child(current, block->function));
		break;
	case RETURNED:
		if (block->address == expected)
			tree_statistics.matched++;
		else
			returned_elsewhere(block);
		break;
	case RETURNED_UNKNOWN:
		returned_unknown(block);
		break;
	case INTERRUPT_UNKNOWN:
		tree_statistics.interrupt_unmatched++;
		if (!same) {
			tree_flush();
			start_root(unknown_node, block->function);
		}
		break;
	}
	pending = NOTHING;
}

void tree_block(const struct block *block)
{
	if (block->user) {
		if (!in_user)
			enter_user();
	} else if (in_user) {
		enter_kernel(block);
	} else if (block->interrupt) {
		interrupt(block);
	} else {
		settle(block);
	}
}

/* A block runs on from one function into the next. */
void tree_crossing(int function)
{
	if (in_user || nodes[current].function == function)
		return;
	tree_statistics.crossings++;
	tree_flush();
	tail_jump(function);
}

/* ---- what memory accesses say ---- */

void tree_call(uint64_t slot, uint64_t return_address)
{
	struct frame *made = frame_at(frames, slot, true);

	tree_statistics.calls++;
	made->return_address = return_address;
	made->node = current;
	made->up = frame;
	made->valid = true;
	frame = made;
	pending = CALLED;
}

void tree_return(uint64_t slot)
{
	struct frame *found = frame_at(frames, slot, false);

	tree_statistics.returns++;
	if (!found || !found->valid) {
		pending = RETURNED_UNKNOWN;
		return;
	}
	tree_flush();
	current = found->node;
	frame = found->up;
	expected = found->return_address;
	found->valid = false;
	pending = RETURNED;
}

/* The entry stub's first push tells where iretq will look. */
void tree_interrupt_push(uint64_t slot)
{
	struct frame *kept, *next;

	if (!entering)
		return;
	kept = frame_at(interrupted, slot, true);
	next = kept->next;
	*kept = *entering;
	kept->slot = slot;
	kept->next = next;
	kept->valid = true;
	free(entering);
	entering = NULL;
}

/* iretq reads the frame above the pushed error code (and vector). */
void tree_interrupt_return(uint64_t slot)
{
	struct frame *found = frame_at(interrupted, slot - 8, false);

	if (!found || !found->valid)
		found = frame_at(interrupted, slot - 16, false);
	if (!found || !found->valid) {
		pending = INTERRUPT_UNKNOWN;
		return;
	}
	tree_flush();
	tree_statistics.interrupt_returns++;
	found->valid = false;
	current = found->node;
	frame = found->up;
	pending = found->pending;
	expected = found->expected;
}
