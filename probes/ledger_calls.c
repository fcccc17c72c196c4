/* The ledger on kernel functions: copies, checksums, segmentation, fragmentation, netfilter.
 *
 * Each body takes the function's arguments and stands on two rungs: traced_* on fentry or fexit,
 * probed_* on kprobe or kretprobe (x86-64, arm64). Which function it is, is a constant that is
 * replaced in the instructions before each load (see calls.c): its slot, from which follow its
 * counter of hits and `what`.
 *
 * skb0..skb2  the skb is argument 0..2; bytes are its length
 * chain       nft_do_chain(pktinfo, chain); segments are the rules of that chain; detail: bit 0
 *             there are RULES_MAX or more
 * hook        nf_hook_slow(skb, state, entries, first); segments are the functions hooked there;
 *             detail: bits 0-7 the hook, 8-15 the protocol family
 * len1, len2  argument 1 or 2 is the number of bytes; the namespace is the current task's
 * help        skb_checksum_help(skb): bytes are those summed
 * expand      pskb_expand_head(skb, nhead, ntail): bytes are those copied; detail: bits 0-15
 *             headroom asked for, 16-31 headroom there was, 32 tailroom asked for, 33 the head is
 *             shared
 * pull        __pskb_pull_tail(skb, delta): bytes are those copied into the head
 * list        a returned list of skbs: segments are those in the list, bytes their lengths together
 * sent        sendmsg(sock, msg, size) returns: bytes are those it took; detail: bit 0 it failed,
 *             1 the pages themselves were taken (MSG_ZEROCOPY, MSG_SPLICE_PAGES)
 * got         recvmsg(sock, msg, size, flags) returns: bytes are those it gave; detail: bit 2 the
 *             whole length was asked for (MSG_TRUNC)
 * count       nothing is looked at
 *
 * traced_sent and traced_got know the socket, and its namespace; on return a kretprobe knows only
 * the task's.
 *
 * With DIRECT_LOADS (and NO_READS, where bpf_probe_read_kernel is refused) only traced_* can be
 * loaded: their arguments are typed.
 *
 * Defines: LEDGER_SLOTS, LEDGER_LOST, NFT_* (where this kernel's rules can be counted), and those
 * of ledger.h.
 */
#include "ledger.h"

#define SLOT 0x4e535046
#define FIRST_FUNCTION 100
#define LIST_MAX 128
#define RULES_MAX 1024
#define MSG_PAGES 0x0c000000 /* MSG_ZEROCOPY, MSG_SPLICE_PAGES */
#define MSG_TRUNC 0x20

BPF_HASH(ledger, struct ledger_key, struct ledger_value, LEDGER_ENTRIES);
BPF_PERCPU_ARRAY(hits, u64, LEDGER_SLOTS);
BPF_STACK_TRACE(stacks, LEDGER_STACKS);
#ifdef NFT_CHAINS
BPF_HASH(rules, u64, u64, 1024); /* of a chain, by where its rules lie; emptied with the window */
#endif
BPF_ARRAY(gate, u32, 1);

static __always_inline int gate_open(void)
{
	int zero = 0;
	u32 *open = gate.lookup(&zero);

	return open && *open;
}

static __always_inline void count(int slot)
{
	u64 *value = hits.lookup(&slot);

	if (value)
		(*value)++;
}

/* Counts the hit, which costs in any case; whether it is to be booked. A program on many functions
 * keeps the constant, and takes its slot from the attachment. */
static __always_inline int begin(void *ctx, struct ledger_key *key)
{
	int slot = SLOT;

	asm volatile("" : "+r"(slot)); /* keeps the constant one whole instruction */
	if (slot > 0xffff)
		slot = ((u64 (*)(void *))174)(ctx); /* bpf_get_attach_cookie */
	key->what = FIRST_FUNCTION + slot;
	count(slot);
	if (!gate_open())
		return 0;
	key->stack = stacks.get_stackid(ctx, LEDGER_STACK_FLAGS);
	return 1;
}

static __always_inline void book(struct ledger_key *key, u64 bytes, u64 segments)
{
	struct ledger_value fresh = {};
	struct ledger_value *value = ledger.lookup_or_try_init(key, &fresh);

	if (!value) {
		count(LEDGER_LOST);
		return;
	}
	__sync_fetch_and_add(&value->calls, 1);
	__sync_fetch_and_add(&value->bytes, bytes);
	__sync_fetch_and_add(&value->segments, segments);
}

/* Whose an skb is: its device's namespace, else its socket's, else the task's. */
static __always_inline void owner(void *skb, struct ledger_key *key)
{
	void *device = SKB(skb, void *, dev);
	void *sk = SKB(skb, void *, sk);
	void *net = 0;

	if (device) {
		ledger_device(key, device);
	} else if (sk) {
		read_at(&net, sk, OFF_sock___sk_common_skc_net_net);
		if (net)
			ledger_net(key, net);
	} else {
		ledger_task(key);
	}
}

static __always_inline int on_skb(void *ctx, void *address)
{
	struct ledger_key key = {};
	u16 size = 0;

	if (!begin(ctx, &key))
		return 0;
	OPEN_SKB(skb, address);
	owner(skb, &key);
	book(&key, SKB(skb, u32, len), ledger_segments(skb, &size, 0));
	return 0;
}

#ifdef NFT_CHAINS
/* How many rules a chain has, walked once for each set of rules: at most RULES_MAX. */
static __always_inline u64 rules_of(void *chain, void *state)
{
	void *net = 0, *blob = 0, *rule;
	u64 known = 0, head, *found;
	u8 generation = 0;

	probe_read_at(&net, state, OFF_nf_hook_state_net);
	probe_read_at(&generation, net, OFF_net_nft_gencursor);
	probe_read_at(&blob, chain,
		      generation ? NFT_nft_chain_blob_gen_1 : NFT_nft_chain_blob_gen_0);
	if (!blob)
		return 0;
	found = rules.lookup((u64 *)&blob);
	if (found)
		return *found;
	rule = blob + NFT_nft_rule_blob_data;
	for (int i = 0; i < RULES_MAX; i++) {
		head = 1;
		bpf_probe_read_kernel(&head, 8, rule);
		if (head & 1) /* is_last */
			break;
		known++;
		rule += NFT_nft_rule_dp_data + (head >> 1 & 0xfff); /* dlen */
	}
	rules.update((u64 *)&blob, &known);
	return known;
}

static __always_inline int on_chain(void *ctx, void *info, void *chain)
{
	struct ledger_key key = {};
	void *address = 0, *state = 0;
	u64 known;

	if (!begin(ctx, &key))
		return 0;
	probe_read_at(&address, info, NFT_nft_pktinfo_skb);
	probe_read_at(&state, info, NFT_nft_pktinfo_state);
	OPEN_SKB(skb, address);
	owner(skb, &key);
	known = rules_of(chain, state);
	key.detail = known >= RULES_MAX;
	book(&key, SKB(skb, u32, len), known);
	return 0;
}
#else
/* Only the packet: the first member, in a module whose types are not known. */
static __always_inline int on_chain(void *ctx, void *info, void *chain)
{
	void *address = 0;

	bpf_probe_read_kernel(&address, 8, info);
	return on_skb(ctx, address);
}
#endif

static __always_inline int on_hook(void *ctx, void *address, void *state, void *entries, u64 first)
{
	struct ledger_key key = {};
	u16 hooked = 0;
	u8 hook = 0, family = 0;

	if (!begin(ctx, &key))
		return 0;
	OPEN_SKB(skb, address);
	owner(skb, &key);
	read_at(&hook, state, OFF_nf_hook_state_hook);
	read_at(&family, state, OFF_nf_hook_state_pf);
	read_at(&hooked, entries, OFF_nf_hook_entries_num_hook_entries);
	key.detail = hook | (u64)family << 8;
	book(&key, SKB(skb, u32, len), hooked > (u32)first ? hooked - (u32)first : 0);
	return 0;
}

static __always_inline int on_len(void *ctx, u64 bytes)
{
	struct ledger_key key = {};

	if (!begin(ctx, &key))
		return 0;
	ledger_task(&key);
	book(&key, (u32)bytes, 1);
	return 0;
}

static __always_inline int on_count(void *ctx)
{
	struct ledger_key key = {};

	if (!begin(ctx, &key))
		return 0;
	ledger_task(&key);
	book(&key, 0, 1);
	return 0;
}

static __always_inline int on_help(void *ctx, void *address)
{
	struct ledger_key key = {};
	u32 headroom;

	if (!begin(ctx, &key))
		return 0;
	OPEN_SKB(skb, address);
	owner(skb, &key);
	headroom = SKB(skb, u64, data) - SKB(skb, u64, head);
	book(&key, SKB(skb, u32, len) - (SKB(skb, u16, csum_start) - headroom), 1);
	return 0;
}

static __always_inline int on_expand(void *ctx, void *address, u64 headroom, u64 tailroom)
{
	struct ledger_key key = {};
	u32 references = 0;
	u32 had;

	if (!begin(ctx, &key))
		return 0;
	OPEN_SKB(skb, address);
	owner(skb, &key);
#ifndef NO_READS
	bpf_probe_read_kernel(&references, 4,
			      SKB(skb, void *, head) + SKB(skb, u32, end) +
				  OFF_skb_shared_info_dataref);
#endif
	had = SKB(skb, u64, data) - SKB(skb, u64, head);
	key.detail = (headroom & 0xffff) | (u64)(had & 0xffff) << 16;
	if ((int)tailroom > 0)
		key.detail |= 1ULL << 32;
	if ((references & 0xffff) > 1)
		key.detail |= 1ULL << 33;
	book(&key, SKB(skb, u32, tail), 1); /* what lies before the tail is copied */
	return 0;
}

static __always_inline int on_pull(void *ctx, void *address, u64 delta)
{
	struct ledger_key key = {};

	if (!begin(ctx, &key))
		return 0;
	OPEN_SKB(skb, address);
	owner(skb, &key);
	book(&key, (u32)delta, 1);
	return 0;
}

static __always_inline int on_list(void *ctx, void *address)
{
	struct ledger_key key = {};
	u64 bytes = 0;
	u32 segments = 0, length;
	void *next = address;

	if (!begin(ctx, &key) || !address || (u64)address >= (u64)-4095)
		return 0; /* none needed, or an error */
	OPEN_SKB(skb, address);
	owner(skb, &key);
	for (int i = 0; i < LIST_MAX; i++) {
		if (!next)
			break;
		length = 0;
		read_at(&length, next, OFF_sk_buff_len);
		bytes += length;
		segments++;
		read_at(&next, next, OFF_sk_buff_next);
	}
	book(&key, bytes, segments);
	return 0;
}

/* What a socket took from or gave to its user; without the socket it is the task's namespace. */
static __always_inline int on_copy(void *ctx, void *socket, u64 detail, s32 bytes)
{
	struct ledger_key key = {.detail = detail};
	void *sk = 0, *net = 0;

	if (!begin(ctx, &key))
		return 0;
	if (bytes < 0) {
		key.detail |= 1;
		bytes = 0;
	}
	if (socket) {
		read_at(&sk, socket, OFF_socket_sk);
		if (sk)
			read_at(&net, sk, OFF_sock___sk_common_skc_net_net);
		if (net)
			ledger_net(&key, net);
	} else {
		ledger_task(&key);
	}
	book(&key, bytes, 1);
	return 0;
}

static __always_inline int on_sent(void *ctx, void *socket, void *message, s32 bytes)
{
	u32 flags = 0;

	read_at(&flags, message, OFF_msghdr_msg_flags);
	return on_copy(ctx, socket, flags & MSG_PAGES ? 2 : 0, bytes);
}

#if defined(__aarch64__)
#define REGISTER(ctx, n) (*(u64 *)((void *)(ctx) + 8 * (n)))
#define RESULT(ctx) REGISTER(ctx, 0)
#define FOURTH(ctx) REGISTER(ctx, 3)
#else /* struct pt_regs of x86-64, in words: di 14, si 13, dx 12, cx 11, ax 10 */
#define REGISTER(ctx, n) (*(u64 *)((void *)(ctx) + 8 * (14 - (n))))
#define RESULT(ctx) (*(u64 *)((void *)(ctx) + 80))
#define FOURTH(ctx) (*(u64 *)((void *)(ctx) + 88))
#endif
#define ARGUMENT(ctx, n) (*(u64 *)((void *)(ctx) + 8 * (n)))

int traced_skb0(void *ctx)
{
	return on_skb(ctx, (void *)ARGUMENT(ctx, 0));
}
int probed_skb0(void *ctx)
{
	return on_skb(ctx, (void *)REGISTER(ctx, 0));
}
int traced_skb1(void *ctx)
{
	return on_skb(ctx, (void *)ARGUMENT(ctx, 1));
}
int probed_skb1(void *ctx)
{
	return on_skb(ctx, (void *)REGISTER(ctx, 1));
}
int traced_skb2(void *ctx)
{
	return on_skb(ctx, (void *)ARGUMENT(ctx, 2));
}
int probed_skb2(void *ctx)
{
	return on_skb(ctx, (void *)REGISTER(ctx, 2));
}
int probed_chain(void *ctx)
{
	return on_chain(ctx, (void *)REGISTER(ctx, 0), (void *)REGISTER(ctx, 1));
}
int traced_chain(void *ctx)
{
	return on_chain(ctx, (void *)ARGUMENT(ctx, 0), (void *)ARGUMENT(ctx, 1));
}
int traced_hook(void *ctx)
{
	return on_hook(ctx, (void *)ARGUMENT(ctx, 0), (void *)ARGUMENT(ctx, 1),
		       (void *)ARGUMENT(ctx, 2), ARGUMENT(ctx, 3));
}
int probed_hook(void *ctx)
{
	return on_hook(ctx, (void *)REGISTER(ctx, 0), (void *)REGISTER(ctx, 1),
		       (void *)REGISTER(ctx, 2), FOURTH(ctx));
}
int traced_len1(void *ctx)
{
	return on_len(ctx, ARGUMENT(ctx, 1));
}
int probed_len1(void *ctx)
{
	return on_len(ctx, REGISTER(ctx, 1));
}
int traced_len2(void *ctx)
{
	return on_len(ctx, ARGUMENT(ctx, 2));
}
int probed_len2(void *ctx)
{
	return on_len(ctx, REGISTER(ctx, 2));
}
int traced_count(void *ctx)
{
	return on_count(ctx);
}
int probed_count(void *ctx)
{
	return on_count(ctx);
}
int traced_help(void *ctx)
{
	return on_help(ctx, (void *)ARGUMENT(ctx, 0));
}
int probed_help(void *ctx)
{
	return on_help(ctx, (void *)REGISTER(ctx, 0));
}
int traced_expand(void *ctx)
{
	return on_expand(ctx, (void *)ARGUMENT(ctx, 0), ARGUMENT(ctx, 1), ARGUMENT(ctx, 2));
}
int probed_expand(void *ctx)
{
	return on_expand(ctx, (void *)REGISTER(ctx, 0), REGISTER(ctx, 1), REGISTER(ctx, 2));
}
int traced_pull(void *ctx)
{
	return on_pull(ctx, (void *)ARGUMENT(ctx, 0), ARGUMENT(ctx, 1));
}
int probed_pull(void *ctx)
{
	return on_pull(ctx, (void *)REGISTER(ctx, 0), REGISTER(ctx, 1));
}
/* fexit: the result stands behind the three arguments of __skb_gso_segment. */
int traced_list(void *ctx)
{
	return on_list(ctx, (void *)ARGUMENT(ctx, 3));
}
int probed_list(void *ctx)
{
	return on_list(ctx, (void *)RESULT(ctx));
}
/* fexit: the result stands behind the three arguments of a sendmsg, the four of a recvmsg. */
int traced_sent(void *ctx)
{
	return on_sent(ctx, (void *)ARGUMENT(ctx, 0), (void *)ARGUMENT(ctx, 1),
		       (s32)ARGUMENT(ctx, 3));
}
int probed_sent(void *ctx)
{
	return on_copy(ctx, 0, 0, (s32)RESULT(ctx));
}
/* A reader that polls and finds nothing is no event. */
int traced_got(void *ctx)
{
	if ((s32)ARGUMENT(ctx, 4) < 0)
		return 0;
	return on_copy(ctx, (void *)ARGUMENT(ctx, 0), ARGUMENT(ctx, 3) & MSG_TRUNC ? 4 : 0,
		       (s32)ARGUMENT(ctx, 4));
}
int probed_got(void *ctx)
{
	if ((s32)RESULT(ctx) < 0)
		return 0;
	return on_copy(ctx, 0, 0, (s32)RESULT(ctx));
}
