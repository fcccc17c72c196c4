/* The sampler: one program an event, run at each overflow of a perf event.
 *
 * Stacks are keyed by a 64-bit hash of their own addresses and stored once, so that no two share a
 * slot (a BPF_STACK_TRACE map has one slot a hash and drops what collides). Samples are added up by
 * their whole key.
 *
 * Defines: SAMPLES_MAX, STACKS_MAX; optional USER_STACKS, DIRECT_LOADS, PROBE_READ,
 * LATENESS_HISTOGRAM, HOP (with HOPS_FD and OWNERS_FD, descriptors of hop.c's tables).
 */
#include "kernel.h"
#include "sample.h"

BPF_HASH(samples, struct sample_key, struct sample_value, SAMPLES_MAX);
BPF_HASH(stacks, u64, struct stack, STACKS_MAX);
BPF_PERCPU_ARRAY(scratch, struct stack, 1);
BPF_PERCPU_ARRAY(tallies, struct tally, 8);
BPF_ARRAY(control, struct control, 1);

#ifdef HOP
#include "hop.h"

/* The tables of hop.c, by the descriptors that its loader has: several samplers in one process keep
 * apart. */
static __always_inline struct hop_cpu *hop_lookup(void)
{
	int zero = 0;

	return bpf_map_lookup_elem_(bpf_pseudo_fd(1, HOPS_FD), &zero);
}
#endif

static __always_inline u64 mix(u64 hash, u64 word)
{
	hash ^= word;
	hash *=
	    0x9fb21c651e98df25ULL; /* odd, high entropy: each step is a bijection of the state */
	return hash ^ (hash >> 32);
}

/* Puts the stack into its table unless it is there; returns its key, 0 when it could not be had. */
static inline u64 stack_key(void *ctx, u64 flags, struct tally *tally, u8 *state)
{
	int zero = 0;
	u64 hash = flags + 1;
	struct stack *stack = scratch.lookup(&zero);

	if (!stack)
		return 0;
	long bytes = bpf_get_stack(ctx, stack->address, sizeof(stack->address), flags);
	if (bytes <= 0) {
		*state = STACK_UNREADABLE;
		return 0;
	}
	u32 length = (u32)bytes / sizeof(u64);
	for (u32 i = 0; i < STACK_DEPTH; i++) {
		if (i >= length)
			break;
		hash = mix(hash, stack->address[i]);
	}
	hash |= 1; /* never 0 */
	stack->length = length;
	if (stacks.lookup(&hash))
		return hash;
#ifdef PROBE_READ
	__builtin_memset(stack->code, 0, sizeof(stack->code));
	if (!(flags & BPF_F_USER_STACK))
		bpf_probe_read_kernel(stack->code, sizeof(stack->code),
				      (void *)stack->address[0] - sizeof(stack->code));
#endif
	if (stacks.update(&hash, stack) != 0) {
		tally->stack_full++;
		*state = STACK_NOT_STORED;
		return 0;
	}
	return hash;
}

/* When this tick was due: the timer's own expiry, which is moved on only after the program has run.
 */
static __always_inline u64 due_ns(void *ctx)
{
	u64 due = 0;
#ifdef PROBE_READ
	void *event = 0;

	probe_read_at(&event, ctx, OFF_bpf_perf_event_data_kern_event);
	if (event)
		probe_read_at(&due, event, OFF_perf_event_hw_hrtimer_node_expires);
#endif
	return due;
}

/* When the kernel last stopped counting this CPU as idle: at the interrupt that woke it, or in the
 * idle loop (tick_nohz_stop_idle). The account is the one behind /proc/stat's idle time. It is a
 * per-CPU variable that kallsyms need not name; it lies OFF_tick_cpu_sched bytes behind the per-CPU
 * variable that the event's own timer points to. 0: not known.
 */
static __always_inline u64 idle_end_ns(void *ctx)
{
	u64 end = 0;
#if defined(PROBE_READ) && defined(OFF_tick_cpu_sched) && defined(OFF_tick_sched_idle_entrytime)
	void *event = 0, *clock = 0, *bases = 0;

	probe_read_at(&event, ctx, OFF_bpf_perf_event_data_kern_event);
	if (event)
		probe_read_at(&clock, event, OFF_perf_event_hw_hrtimer_base);
	if (clock)
		probe_read_at(&bases, clock, OFF_hrtimer_clock_base_cpu_base);
	if (bases)
		probe_read_at(&end, bases, OFF_tick_cpu_sched + OFF_tick_sched_idle_entrytime);
#endif
	return end;
}

static __always_inline u8 lateness(void *ctx, struct tally *tally, struct control *control,
				   u32 event, u64 now)
{
	u64 period = control->period_ns[event & 7];
	u64 due;

	if (!period)
		return ON_TIME; /* a counted event is delivered where it happens */
	due = due_ns(ctx);
	if (!due || due > now)
		return LATENESS_UNKNOWN;
	if (tally->last_due_ns && due > tally->last_due_ns + period + period / 2)
		tally->missed += (due - tally->last_due_ns + period / 2) / period - 1;
	tally->last_due_ns = due;
#ifdef LATENESS_HISTOGRAM
	u64 late = now - due;
	u32 bin = 0;
	for (u32 i = 0; i < 31; i++)
		if (late >> (i + 1))
			bin = i + 1;
	tally->lateness_log2[bin & 31]++;
#endif
	u64 idle_end = idle_end_ns(ctx);
	if (due < idle_end && idle_end <= now)
		return DUE_IDLE;
	if (now - due > control->late_ns) {
		tally->late++;
		return SKID;
	}
	return ON_TIME;
}

#ifdef HOP
#ifdef PROBE_READ
/* Asks the packet itself which device it is with now. The packet may be gone, its memory another's:
 * the answer holds only if the device found has the address that the packet was sent to. */
static inline void hop_ask_packet(struct hop_cpu *cpu, struct sample_key *key)
{
	struct hop hop = {};
	void *device = 0;
	u64 address = cpu->rx_key.address;

	probe_read_at(&device, (void *)cpu->rx_skb, OFF_sk_buff_dev);
	if ((u64)device == cpu->rx_key.device) {
		key->rx_state = cpu->rx_state == HOP_MAY_MOVE ? HOP_PLAIN : HOP_LOST;
		return;
	}
	if (!((u64)device >> 63))
		return;
	if (cpu->rx_state == HOP_MAY_MOVE)
		address = hop_link_address((void *)cpu->rx_skb, 0);
	if (!address || address != hop_device_address(device))
		return;
	hop_of_found(device, &hop);
	if (cpu->rx_state == HOP_LOST) {
		bpf_map_update_elem_(bpf_pseudo_fd(1, OWNERS_FD), &cpu->rx_key, &hop, BPF_ANY);
		cpu->rx = hop;
		cpu->rx_state = HOP_MOVED;
	}
	key->rx_state = HOP_MOVED;
	key->rx_cookie = hop.cookie;
	key->rx_ns = hop.inode;
	key->rx_ifindex = hop.ifindex;
}
#endif

static inline void hop_current(struct hop_cpu *cpu, u64 sp, struct sample_key *key)
{
	hop_find_live(cpu, sp);
	u64 depth = *(volatile u64 *)&cpu->live;

	if (depth) {
		struct hop_tx *tx = hop_slot(cpu, *(volatile u64 *)&cpu->innermost - 1);
		key->tx_depth = depth | (cpu->tx_named ? 0x80 : 0);
		key->tx_cookie = tx->at.cookie;
		key->tx_ns = tx->at.inode;
		key->tx_ifindex = tx->at.ifindex;
	} else if (cpu->rx_flags & HOP_UP) {
		key->tx_cookie = cpu->port.cookie;
		key->tx_ns = cpu->port.inode;
		key->tx_ifindex = cpu->port.ifindex;
	}
	key->rx_state = cpu->rx_state;
	key->rx_cookie = cpu->rx.cookie;
	key->rx_ns = cpu->rx.inode;
	key->rx_ifindex = cpu->rx.ifindex;
#ifdef PROBE_READ
	if (cpu->rx_state == HOP_LOST || cpu->rx_state == HOP_MAY_MOVE)
		hop_ask_packet(cpu, key);
#endif
	key->rx_state |= cpu->rx_flags;
}
#endif

/* How many of its unit this overflow stands for. A software counter reports the period that it is
 * going to use from the next overflow on, while the one that has run out was reported at the
 * previous overflow (perf_swevent_event and perf_swevent_set_period): while the period adapts, the
 * sum would be several times too high. */
static __always_inline u64 weight_of(u64 period, struct tally *tally, struct control *control,
				     u32 event)
{
	u64 before = tally->last_period;

	if (!(control->software >> (event & 7) & 1))
		return period;
	tally->last_period = period;
	return before ? before : 1;
}

static inline int sample(struct bpf_perf_event_data *ctx, u32 event)
{
	u64 now = bpf_ktime_get_ns();
	int zero = 0, index = event;
	struct tally *tally = tallies.lookup(&index);
	struct control *control_ = control.lookup(&zero);

	if (!tally || !control_)
		return 0;
	u64 weight = weight_of(ctx->sample_period, tally, control_, event);
	u64 ip = PT_REGS_IP(&ctx->regs);
	tally->hits++;
	tally->weight += weight;

	struct sample_key key = {};
	key.event = event;
	key.cpu = bpf_get_smp_processor_id();
	key.slice = (now - control_->start_ns) / 1000000000ULL;
	key.lateness = lateness(ctx, tally, control_, event, now);
	u64 both = bpf_get_current_pid_tgid();
	key.tgid = both >> 32;
	key.pid = both;
	bpf_get_current_comm(key.comm, sizeof(key.comm));
#ifdef DIRECT_LOADS
	netns_of_task((void *)bpf_get_current_task_btf(), &key.task_cookie, &key.task_ns);
#else
	netns_of_task((void *)bpf_get_current_task(), &key.task_cookie, &key.task_ns);
#endif
	key.user_mode = !(ip >> 63);
	if (!key.user_mode)
		key.kernel_stack = stack_key(ctx, 0, tally, &key.stack_state);
	if (key.stack_state == STACK_UNREADABLE)
		tally->no_stack++;
#ifdef USER_STACKS
	if (key.pid) {
		u8 ignored =
		    0; /* a task may have no readable user stack; its kernel stack still counts */
		key.user_stack = stack_key(ctx, BPF_F_USER_STACK, tally, &ignored);
	}
#endif
#ifdef HOP
	struct hop_cpu *cpu = hop_lookup();
	if (cpu && !key.user_mode)
		hop_current(cpu, PT_REGS_SP(&ctx->regs), &key);
#endif
	struct sample_value *value = samples.lookup(&key);
	if (!value) {
		struct sample_value fresh = {};
		if (samples.insert(&key, &fresh) != 0) {
			tally->map_full++;
			return 0;
		}
		value = samples.lookup(&key);
		if (!value) {
			tally->map_full++;
			return 0;
		}
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->weight, weight);
	return 0;
}

int on_event_0(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 0);
}

int on_event_1(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 1);
}

int on_event_2(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 2);
}

int on_event_3(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 3);
}

int on_event_4(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 4);
}

int on_event_5(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 5);
}

int on_event_6(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 6);
}

int on_event_7(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, 7);
}
