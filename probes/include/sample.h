/* What the sampler stores; nsprof/collect/sampling/maps.py mirrors these layouts. */
#ifndef NSPROF_SAMPLE_H
#define NSPROF_SAMPLE_H

#define STACK_DEPTH 127 /* kernel.perf_event_max_stack's default */

/* DUE_IDLE: late, and due while the CPU slept: a sample of idle time, wherever it landed. */
enum lateness { ON_TIME = 0, SKID = 1, LATENESS_UNKNOWN = 2, DUE_IDLE = 3 };

struct sample_key {
	u64 kernel_stack; /* hash of its addresses; 0: none */
	u64 user_stack;
	u64 task_cookie;
	u64 tx_cookie; /* the innermost transmission this stack is in, if it is in one; else, with
			  HOP_UP in rx_state, the bridge port that the received packet came in by */
	u64 rx_cookie; /* the packet last received on this CPU */
	u32 task_ns;
	u32 tx_ns;
	u32 tx_ifindex;
	u32 rx_ns;
	u32 rx_ifindex;
	u32 slice; /* seconds since start */
	u32 tgid;
	u32 pid;
	u16 cpu;
	u8 event;
	u8 lateness;
	u8 rx_state;	/* enum hop_rx_state and flags */
	u8 tx_depth;	/* bit 7: the transmission's 16 bytes of identity are its device's name */
	u8 user_mode;	/* the tick fell into user mode: no kernel stack is right */
	u8 stack_state; /* enum stack_state */
	char comm[16];
};

enum stack_state { STACK_OK = 0, STACK_UNREADABLE = 1, STACK_NOT_STORED = 2 };

struct sample_value {
	u64 count;
	u64 weight; /* sum of the event's sample_period */
};

struct stack {
	u64 length; /* addresses, leaf first */
	u64 address[STACK_DEPTH];
	u8 code[16]; /* the bytes of kernel text before the leaf address: was it an interrupt
			enable? */
};

/* Per event and CPU: everything needed to say what was lost. */
struct tally {
	u64 hits; /* times the program ran */
	u64 weight;
	u64 map_full;	/* samples that found no room */
	u64 stack_full; /* stacks that found no room */
	u64 no_stack;	/* unreadable stacks */
	u64 late;
	u64 missed; /* ticks of the timer's grid at which the program did not run */
	u64 last_due_ns;
	u64 last_period;       /* of a software counter: as reported at the previous overflow */
	u64 lateness_log2[32]; /* histogram of lateness, bin i: [2^i, 2^(i+1)) ns */
};

struct control {
	u64 start_ns;
	u64 period_ns[8]; /* by event; 0: not a timer */
	u64 late_ns;
	u64 software; /* bit i: event i is a software counter */
};

#endif
