/* nsprof's QEMU plugin: exact counts of what the guest's kernel executes between two marks in a
 * user program.
 *
 *   -plugin
 * nsprof-tcg.so,out=FILE,symbols=KALLSYMS[,memory=on][,footprint=on][,l1d=KiB:WAYS,l1i=..,l2=..][,addresses=on]
 *                         [,ram=FILE,snapshot=FILE]
 *
 * A mark is an eight-byte NOP in user mode: 0f 1f 84 00 KIND REGION 53 4e (nopl
 * 0x4e53RRKK(%rax,%rax,1)). KIND: 0 ends a sample, 1 begins one, 2 begins counting (until then the
 * guest runs uninstrumented), 3 copies the guest's memory, 4 tells which end acts (as REGION). The
 * output is text, a record a line; see docs/simulate.md and nsprof/vm/tcg_output.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "count.h"
#include "qemu_api.h"

EXPORT int qemu_plugin_version = NSPROF_QEMU_API;

enum mark { END, BEGIN, ARM, SNAPSHOT, ACTOR };

static qemu_plugin_id_t plugin;
static FILE *out;
static const char *ram_path, *snapshot_path;
static bool armed, in_sample, with_addresses, with_memory;
static int region, sample;
static struct live_counters at_begin;
static uint64_t repeats_at_begin;
static struct tree_statistics statistics_at_begin;
struct live_counters *live;
uint64_t rep_repeats;

void *need_memory(void *pointer)
{
	if (!pointer) {
		fprintf(stderr, "nsprof plugin: out of memory\n");
		exit(1);
	}
	return pointer;
}

/* ---- inline counters: memory of ours, or a scoreboard ---- */

/* One counter an instruction address, for per-address counts. */
#define ADDRESS_ROOM (1u << 18)
struct address {
	uint64_t address, base;
	struct address *next;
	uint32_t index;
	uint32_t l1d, l1i, l2; /* misses in this sample */
	char *text;	       /* disassembled */
};
static struct address *addresses[1 << 16], *address_list[ADDRESS_ROOM];
static uint32_t address_count;

#if NSPROF_QEMU_API == 1
static struct live_counters counters;
static uint64_t address_counters[ADDRESS_ROOM];

static void counters_init(void)
{
	live = &counters;
}

static void counters_find(void)
{
}

static uint64_t address_value(uint32_t index)
{
	return address_counters[index];
}

#define COUNT_EXECUTION(insn, field)                                                               \
	qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64,               \
						   &counters.field, 1)
#define COUNT_ADDRESS(insn, index)                                                                 \
	qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64,               \
						   &address_counters[index], 1)
#else
static struct live_counters before_vcpu;
static struct qemu_plugin_scoreboard *board, *address_board;
static uint64_t *address_counters;

static void counters_init(void)
{
	live = &before_vcpu;
	board = qemu_plugin_scoreboard_new(sizeof *live);
	if (with_addresses)
		address_board = qemu_plugin_scoreboard_new(ADDRESS_ROOM * sizeof(uint64_t));
}

/* Scoreboards move when a vCPU is added, which is over when the guest runs its first user program.
 */
static void counters_find(void)
{
	live = qemu_plugin_scoreboard_find(board, 0);
	if (with_addresses)
		address_counters = qemu_plugin_scoreboard_find(address_board, 0);
}

static uint64_t address_value(uint32_t index)
{
	return address_counters[index];
}

static qemu_plugin_u64 entry(struct qemu_plugin_scoreboard *score, size_t offset)
{
	return (qemu_plugin_u64){.score = score, .offset = offset};
}

#define FIELD(field) entry(board, offsetof(struct live_counters, field))
#define COUNT_EXECUTION(insn, field)                                                               \
	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,      \
							    FIELD(field), 1)
#define COUNT_ADDRESS(insn, index)                                                                 \
	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(                                       \
	    insn, QEMU_PLUGIN_INLINE_ADD_U64, entry(address_board, (index) * sizeof(uint64_t)), 1)
#endif

static struct address *address_of(uint64_t where)
{
	struct address **head = &addresses[hash64(where, 16)], *found;

	for (found = *head; found; found = found->next)
		if (found->address == where)
			return found;
	if (address_count == ADDRESS_ROOM)
		return NULL;
	found = need_memory(calloc(1, sizeof *found));
	found->address = where;
	found->index = address_count;
	found->next = *head;
	*head = found;
	address_list[address_count++] = found;
	return found;
}

/* ---- samples ---- */

static void sample_begin(int id)
{
	if (id != region) {
		region = id;
		sample = 0;
	}
	tree_reset();
	tree_new_epoch();
	if (lines_footprint || lines_caches)
		lines_new_sample();
	for (uint32_t i = 0; with_addresses && i < address_count; i++) {
		struct address *each = address_list[i];

		each->base = address_value(i);
		each->l1d = each->l1i = each->l2 = 0;
	}
	at_begin = *live;
	repeats_at_begin = rep_repeats;
	statistics_at_begin = tree_statistics;
	in_sample = true;
}

static void write_statistics(void)
{
#define WRITE(field)                                                                               \
	fprintf(out, " " #field "=%" PRIu64, tree_statistics.field - statistics_at_begin.field)
	WRITE(calls);
	WRITE(returns);
	WRITE(matched);
	WRITE(redirected);
	WRITE(unmatched);
	WRITE(recovered);
	WRITE(tail_jumps);
	WRITE(crossings);
	WRITE(interrupts);
	WRITE(interrupt_returns);
	WRITE(interrupt_unmatched);
	WRITE(entries);
	WRITE(local_calls);
	WRITE(forks);
#undef WRITE
}

static void write_nodes(void)
{
	const uint32_t *list;
	uint32_t count = tree_touched(&list);

	for (uint32_t i = 0; i < count; i++) {
		const struct node *node = &nodes[list[i]];
		uint64_t any = node->calls;

		for (int q = 0; q < QUANTITIES; q++)
			any |= node->count[q];
		if (!any)
			continue;
		fprintf(out, "S %u %" PRIu64, list[i], node->calls);
		for (int q = 0; q < QUANTITIES; q++)
			fprintf(out, " %" PRIu64, node->count[q]);
		fputc('\n', out);
	}
}

static void sample_end(int id)
{
	uint64_t kernel = live->kernel - at_begin.kernel, repeats = rep_repeats - repeats_at_begin;

	if (!in_sample || id != region)
		return;
	in_sample = false;
	fprintf(out, "R %d %d executed=%" PRIu64 " repeats=%" PRIu64 " user=%" PRIu64, id, sample++,
		kernel, repeats, live->user - at_begin.user);
	write_statistics();
	fputc('\n', out);
	write_nodes();
	if (lines_footprint)
		lines_write(out);
	for (uint32_t i = 0; with_addresses && i < address_count; i++) {
		const struct address *each = address_list[i];

		if (address_value(i) != each->base)
			fprintf(out, "A %" PRIx64 " %" PRIu64 " %u %u %u %s\n", each->address,
				address_value(i) - each->base, each->l1d, each->l1i, each->l2,
				each->text ? each->text : "");
	}
	tree_forget();
}

/* A sparse copy of the guest's memory, while the guest stands still in this very instruction. */
static void snapshot(void)
{
	int from = open(ram_path, O_RDONLY | O_CLOEXEC), to;
	off_t at = 0, end;
	struct stat status;
	bool good = from >= 0;

	to = open(snapshot_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	good = good && to >= 0 && !fstat(from, &status) && !ftruncate(to, status.st_size);
	while (good && (at = lseek(from, at, SEEK_DATA)) >= 0 &&
	       (end = lseek(from, at, SEEK_HOLE)) > at) {
		off_t read_at = at, write_at = at;

		while (good && read_at < end)
			good = copy_file_range(from, &read_at, to, &write_at,
					       (size_t)(end - read_at), 0) > 0;
		at = end;
	}
	fprintf(out, good ? "M\n" : "E snapshot of the guest's memory failed: %m\n");
	if (from >= 0)
		close(from);
	if (to >= 0)
		close(to);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);

static void at_exit(qemu_plugin_id_t id, void *data)
{
	(void)id;
	(void)data;
	for (uint32_t i = 1; i < node_count; i++)
		if (nodes[i].epoch)
			fprintf(out, "N %u %u %d %x %" PRIx64 " %s\n", i, nodes[i].parent,
				nodes[i].function, nodes[i].tag, symbols[nodes[i].function].address,
				symbols[nodes[i].function].name);
	fprintf(out, "Z\n");
	if (fclose(out))
		fprintf(stderr, "nsprof plugin: output incomplete: %m\n");
}

static void counting(qemu_plugin_id_t id)
{
	armed = true;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);
}

static void on_mark(unsigned int cpu, void *data)
{
	static bool asked;
	uintptr_t word = (uintptr_t)data;
	int kind = word & 0xff, id = (word >> 8) & 0xff;

	(void)cpu;
	if (kind == ARM && !asked) {
		asked = true;
		counters_find();
		/* forgets every callback and translation, then calls counting() */
		qemu_plugin_reset(plugin, counting);
	}
	if (!armed)
		return;
	if (kind == BEGIN)
		sample_begin(id);
	else if (kind == END)
		sample_end(id);
	else if (kind == ACTOR)
		tree_actor(id);
	else if (kind == SNAPSHOT && ram_path && snapshot_path)
		snapshot();
}

/* ---- what translated code calls ---- */

static void on_block(unsigned int cpu, void *data)
{
	(void)cpu;
	tree_block(data);
}

static void on_crossing(unsigned int cpu, void *data)
{
	(void)cpu;
	tree_crossing((int)(intptr_t)data);
}

/* QEMU 7.2 leaves the memory callbacks of an instruction that ended a block in place, and later
 * helpers replay them. So they count only once after the instruction itself has begun, which
 * changes live->armed. */
static uint64_t acted;

static bool stale(void)
{
	return acted == live->armed;
}

static void on_call(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
	(void)cpu;
	if (stale() || !qemu_plugin_mem_is_store(info))
		return;
	acted = live->armed;
	tree_call(address, (uint64_t)(uintptr_t)data);
}

static void on_return(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
	(void)cpu;
	(void)data;
	if (stale() || qemu_plugin_mem_is_store(info))
		return;
	acted = live->armed;
	tree_return(address);
}

static void on_interrupt_return(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address,
				void *data)
{
	(void)cpu;
	(void)data;
	if (stale() || qemu_plugin_mem_is_store(info))
		return;
	acted = live->armed;
	tree_interrupt_return(address);
}

static void on_interrupt_push(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address,
			      void *data)
{
	(void)cpu;
	(void)data;
	if (qemu_plugin_mem_is_store(info))
		tree_interrupt_push(address);
}

/* A rep string instruction is executed anew for each repetition: nothing else runs in between. */
static void on_rep(unsigned int cpu, void *data)
{
	static const void *last;
	static uint64_t last_count;

	(void)cpu;
	if (last == data && live->kernel == last_count + 1)
		rep_repeats++;
	last = data;
	last_count = live->kernel;
}

/* Loads and stores are told apart here: QEMU 7.2's inline counters take one for the other. */
static void on_data(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
	uint64_t physical;
	struct misses missed;
	bool store = qemu_plugin_mem_is_store(info);

	(void)cpu;
	/* In user mode it is a helper that replays a kernel instruction's callback (see stale()).
	 */
	if ((!in_sample && !lines_caches) || tree_in_user())
		return;
	tree_here()->count[store ? STORES : LOADS]++;
	if (!lines_footprint && !lines_caches)
		return;
	physical = page_lookup(address);
	if (!physical) {
		struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, address);

		if (!place || qemu_plugin_hwaddr_is_io(place))
			return;
		physical = qemu_plugin_hwaddr_phys_addr(place);
		page_remember(address, physical);
	}
	missed = lines_data(tree_here(), address, physical, 1u << qemu_plugin_mem_size_shift(info),
			    store, (uint64_t)(uintptr_t)data);
	if (with_addresses && missed.l1) {
		struct address *at = address_of((uint64_t)(uintptr_t)data);

		if (at) {
			at->l1d += missed.l1;
			at->l2 += missed.l2;
		}
	}
}

static void on_text(unsigned int cpu, void *data)
{
	(void)cpu;
	if (in_sample || lines_caches) {
		struct misses missed = lines_text(tree_here(), (uint64_t)(uintptr_t)data);
		struct address *at =
		    with_addresses && missed.l1 ? address_of((uint64_t)(uintptr_t)data) : NULL;

		if (at) {
			at->l1i += missed.l1;
			at->l2 += missed.l2;
		}
	}
}

/* ---- translation ---- */

enum flow { PLAIN, CALL, RETURN, INTERRUPT_RETURN };

static bool is_prefix(uint8_t byte)
{
	switch (byte) {
	case 0x26:
	case 0x2e:
	case 0x36:
	case 0x3e:
	case 0x64:
	case 0x65:
	case 0x66:
	case 0x67:
	case 0xf2:
	case 0xf3:
		return true;
	default:
		return (byte & 0xf0) == 0x40; /* REX */
	}
}

static enum flow flow_of(const uint8_t *code, size_t size)
{
	size_t i = 0;

	while (i < size && is_prefix(code[i]))
		i++;
	if (i >= size)
		return PLAIN;
	if (code[i] == 0xe8 || (code[i] == 0xff && i + 1 < size && ((code[i + 1] >> 3) & 7) == 2))
		return CALL;
	if (code[i] == 0xc3 || code[i] == 0xc2)
		return RETURN;
	return code[i] == 0xcf ? INTERRUPT_RETURN : PLAIN;
}

/* rep/repne with ins, outs, movs, cmps, stos, lods, scas */
static bool is_rep_string(const uint8_t *code, size_t size)
{
	bool rep = false;

	for (size_t i = 0; i < size; i++) {
		if (code[i] == 0xf3 || code[i] == 0xf2)
			rep = true;
		else if (!is_prefix(code[i]))
			return rep && ((code[i] >= 0xa4 && code[i] <= 0xa7) ||
				       (code[i] >= 0xaa && code[i] <= 0xaf) ||
				       (code[i] >= 0x6c && code[i] <= 0x6f));
	}
	return false;
}

static const uint8_t *bytes_of(struct qemu_plugin_insn *insn, uint8_t copy[16], size_t size)
{
#if NSPROF_QEMU_API <= 2
	(void)copy;
	(void)size;
	return qemu_plugin_insn_data(insn);
#else
	qemu_plugin_insn_data(insn, copy, size < 16 ? size : 16);
	return copy;
#endif
}

static struct block *block_of(uint64_t address, bool kernel)
{
	static struct block *known[1 << 16];
	struct block **head = &known[hash64(address, 16)], *block;
	bool first = false;
	int symbol;

	for (block = *head; block; block = block->next)
		if (block->address == address)
			return block;
	block = need_memory(calloc(1, sizeof *block));
	block->address = address;
	block->user = !kernel;
	block->next = *head;
	*head = block;
	if (!kernel)
		return block;
	symbol = symbol_at(address);
	block->function = symbols[symbol].function;
	block->start = symbols[symbol].address == address;
	block->interrupt = symbols[symbol].interrupt_entry && block->start;
	if (is_irq_stub(address, &first)) {
		block->start = true;
		block->interrupt = first;
	}
	return block;
}

static void translate_user(struct qemu_plugin_insn *insn)
{
	uint8_t copy[16];
	size_t size = qemu_plugin_insn_size(insn);
	const uint8_t *code = bytes_of(insn, copy, size);

	if (size == 8 && !memcmp(code, "\x0f\x1f\x84\x00", 4) && code[6] == 0x53 && code[7] == 0x4e)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(uintptr_t)(code[4] | code[5] << 8));
	if (armed)
		COUNT_EXECUTION(insn, user);
}

/* Callbacks are registered before inline additions: they see the counters as of before the
 * instruction. */
static void translate_kernel(struct qemu_plugin_insn *insn, const struct block *block,
			     int *function, uint64_t *line)
{
	uint8_t copy[16];
	uint64_t address = qemu_plugin_insn_vaddr(insn);
	size_t size = qemu_plugin_insn_size(insn);
	const uint8_t *code = bytes_of(insn, copy, size);
	int here = symbols[symbol_at(address)].function;
	enum flow flow = flow_of(code, size);

	if (here != *function) {
		*function = here;
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_crossing, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(intptr_t)here);
	}
	if ((lines_footprint || lines_caches) && address >> 6 != *line) {
		*line = address >> 6;
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_text, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(uintptr_t)address);
	}
	if (is_rep_string(code, size))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_rep, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(uintptr_t)address);
	COUNT_EXECUTION(insn, kernel);
	if (with_addresses) {
		struct address *counter = address_of(address);

		if (counter && !counter->text)
			counter->text = qemu_plugin_insn_disas(insn);
		if (counter)
			COUNT_ADDRESS(insn, counter->index);
	}
	if (flow != PLAIN)
		COUNT_EXECUTION(insn, armed);
	if (with_memory)
		qemu_plugin_register_vcpu_mem_cb(insn, on_data, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, (void *)(uintptr_t)address);
	if (block->interrupt)
		qemu_plugin_register_vcpu_mem_cb(insn, on_interrupt_push, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, NULL);
	if (flow == CALL)
		qemu_plugin_register_vcpu_mem_cb(insn, on_call, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW,
						 (void *)(uintptr_t)(address + size));
	else if (flow == RETURN)
		qemu_plugin_register_vcpu_mem_cb(insn, on_return, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, NULL);
	else if (flow == INTERRUPT_RETURN)
		qemu_plugin_register_vcpu_mem_cb(insn, on_interrupt_return, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, NULL);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	uint64_t address = qemu_plugin_tb_vaddr(tb), line = 0;
	bool kernel = address >> 63;
	struct block *block;
	int function;

	(void)id;
	if (!armed) {
		for (size_t i = 0; !kernel && i < count; i++)
			translate_user(qemu_plugin_tb_get_insn(tb, i));
		return;
	}
	block = block_of(address, kernel);
	function = block->function;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (kernel)
			translate_kernel(insn, block, &function, &line);
		else
			translate_user(insn);
	}
}

/* ---- set-up ---- */

static bool option(const char *name, const char *value)
{
	if (!strcmp(name, "out"))
		return (out = fopen(value, "we")) != NULL;
	if (!strcmp(name, "symbols"))
		return symbols_load(value);
	if (!strcmp(name, "footprint"))
		lines_footprint = !strcmp(value, "on");
	else if (!strcmp(name, "memory"))
		with_memory = !strcmp(value, "on");
	else if (!strcmp(name, "addresses"))
		with_addresses = !strcmp(value, "on");
	else if (!strcmp(name, "ram"))
		ram_path = strdup(value);
	else if (!strcmp(name, "snapshot"))
		snapshot_path = strdup(value);
	else
		return lines_cache(name, value);
	return true;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	plugin = id;
	if (!info->system_emulation || info->system.max_vcpus != 1 ||
	    strcmp(info->target_name, "x86_64")) {
		fprintf(stderr, "nsprof plugin: wants an x86_64 machine with one vCPU\n");
		return -1;
	}
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (value)
			*value++ = '\0';
		if (!value || !option(argv[i], value)) {
			fprintf(stderr, "nsprof plugin: cannot use option %s\n", argv[i]);
			return -1;
		}
	}
	if (!out || !symbols) {
		fprintf(stderr, "nsprof plugin: out= and symbols= are needed\n");
		return -1;
	}
	with_memory = with_memory || lines_footprint || lines_caches;
	counters_init();
	tree_init();
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	return 0;
}
